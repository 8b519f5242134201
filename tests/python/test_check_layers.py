"""tools/check_layers.py finds each kind of fault, names its line, and passes the tree as it is."""

import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("check_layers", ROOT / "tools" / "check_layers.py")
check_layers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_layers)


def faults(tmp_path, files):
    """The faults of a tree made of {path: text}."""
    (tmp_path / "src").mkdir()
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return check_layers.check_tree(tmp_path)


def test_the_tree_as_it_is_has_no_fault():
    assert check_layers.check_tree(ROOT) == []


def test_arrows_of_the_table_lead_to_rooms_and_never_in_a_circle():
    order = list(check_layers.ROOMS)
    for room, uses in check_layers.ROOMS.items():
        assert uses <= set(order)
        # Every room uses only rooms listed before it.
        assert all(order.index(used) < order.index(room) for used in uses), room


@pytest.mark.parametrize(
    ("path", "line", "expected"),
    [
        ("src/io/a.cc", '#include "nn/layers.h"', 'io may not include "nn/layers.h"'),
        ("src/nn/a.cc", '#  include "models/flux/config.h"', "nn may not include"),
        ("src/attention/a.cc", '#include "io/json_config.h"', "attention may not include"),
        ("src/pipelines/a.cc", '#include "kernels/gemm.h"', "pipelines may not include"),
        ("src/nn/a.cc", '#include "layers.h"', "write includes from src/"),
        ("src/nn/a.cc", '#include "../io/safetensors.h"', "write includes from src/"),
        ("src/kernels/a.cc", '#include "cachedit/error.h"', "kernels take raw pointers"),
        ("src/kernels/a.cc", "#include <c10/util/StringUtil.h>", "src/kernels/ may not include"),
        ("src/base/a.cc", "#include <ATen/core/Tensor.h>", "src/base/ may not include"),
        ("src/nn/a.cc", "#include <torch/torch.h>", "costs 25 seconds"),
        ("tests/nn/a.cc", "#include <ATen/ATen.h>", "costs 25 seconds"),
        ("src/garage/a.cc", "int x;", "unknown room garage"),
        ("apps/cli/a.cc", '#include "base/fail.h"', "programs include only"),
        ("apps/cli/a.cc", '#include "absent.h"', "programs include only"),
        ("examples/a.cc", '#include "nn/layers.h"', "programs include only"),
        ("include/cachedit/a.h", '#pragma once\n#include "base/log.h"', "public headers include only"),
        ("include/cachedit/a.h", "#pragma once\n#include <nlohmann/json.hpp>", "may not include"),
        ("include/cachedit/a.h", "#pragma once\n#include <mpi.h>", "may not include"),
        ("src/nn/CMakeLists.txt", "cachedit_room(nn TORCH USES base models)", "nn may not use models"),
    ],
)
def test_a_forbidden_include_is_named(tmp_path, path, line, expected):
    found = faults(tmp_path, {path: line + "\n"})
    assert len(found) == 1
    assert found[0].startswith(f"{path}:{1 + line.count(chr(10))}: ")
    assert expected in found[0]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/nn/a.cc", '#include "nn/layers.h"\n#include "io/json_config.h"\n#include "cachedit/error.h"\n'),
        ("src/pipelines/flux/a.cc", '#include "models/flux/config.h"\n#include "text/tokenizer.h"\n'),
        ("src/kernels/cpu/a.cc", '#include "kernels/cpu/gemm.h"\n#include <cstdint>\n'),
        ("tests/nn/a.cc", '#include "support/temp_dir.h"\n#include "nn/layers.h"\n'),
        ("include/cachedit/a.h", '#pragma once\n#include <ATen/core/Tensor.h>\n#include "cachedit/error.h"\n'),
        ("src/nn/CMakeLists.txt", "cachedit_room(nn TORCH USES base io LINK some::library)\n"),
        ("src/nn/a.cc", '// #include "models/flux/config.h"\n'),
    ],
)
def test_what_the_table_allows_passes(tmp_path, path, text):
    assert faults(tmp_path, {path: text}) == []


def test_a_program_may_include_the_file_beside_it(tmp_path):
    files = {"apps/cli/a.cc": '#include "options.h"\n', "apps/cli/options.h": "#pragma once\n"}
    assert faults(tmp_path, files) == []


@pytest.mark.parametrize(("lines", "count"), [(500, 0), (501, 1)])
def test_a_file_past_the_limit_is_a_fault(tmp_path, lines, count):
    assert len(faults(tmp_path, {"tools/a.py": "x = 1\n" * lines})) == count


def test_header_rules(tmp_path):
    found = faults(tmp_path, {"src/io/a.h": "int x;\nusing namespace std;\n"})
    assert [fault.split(": ", 1)[0] for fault in found] == ["src/io/a.h:1", "src/io/a.h:2"]
    assert "#pragma once" in found[0]
    assert "using namespace" in found[1]


def test_exit_codes(tmp_path, capsys):
    assert check_layers.main([str(ROOT)]) == 0
    assert "layers: 0 faults" in capsys.readouterr().out
    assert check_layers.main([str(tmp_path)]) == 2
    faults(tmp_path, {"src/io/a.cc": '#include "nn/layers.h"\n'})
    assert check_layers.main([str(tmp_path)]) == 1
    assert "layers: 1 fault\n" in capsys.readouterr().out
