"""The attention backends through the command line: which there are, which one runs, and what is refused."""

import json
import pathlib

import numpy as np
import pytest
import torch
from PIL import Image

SMALL = ("--prompt", "red apple", "--steps", 2, "--width", 32, "--height", 32, "--seed", 7, "--threads", 1)
NAMES = ["native", "_sdpa_cudnn", "_native_cudnn", "flash", "_flash_3", "sage", "ffpa", "ffpa_fp8",
         "ffpa_fp8_per_block", "ffpa_fp4", "_native_npu", "_npu_fia"]
ON_CPU = ["native", "flash", "sage", "ffpa", "ffpa_fp8", "ffpa_fp8_per_block", "ffpa_fp4"]


@pytest.fixture
def backends(run_cli):
    def run(*arguments, **options):
        done = run_cli("backends", "--json", *arguments, **options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


# What runs.


@pytest.mark.parametrize("name", ON_CPU)
def test_the_backend_that_was_asked_for_runs(generate, name):
    report = generate.report(*SMALL, "--attn", name)
    assert report["settings"]["attention_backend"] == name
    assert report["attention_backend"] == name
    assert f"; attention {name}; " in generate.stderr


def test_auto_says_what_it_took(generate):
    report = generate.report(*SMALL, "--attention-backend", "auto")
    assert report["settings"]["attention_backend"] == "auto"
    assert report["attention_backend"] == "flash"


def test_auto_logs_its_choice_once(run_cli):
    done = run_cli("generate", *SMALL, "--attn", "auto", env={"CACHEDIT_LOG_LEVEL": "info"})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("[attention auto] takes flash") == 1


def test_pictures_differ_by_what_ran(generate):
    """The option is more than a word in a report: lower precision shows."""
    native, again, coarse = (
        pathlib.Path(generate.folder, generate(*SMALL, "--attn", name, "--save-path", f"{i}.png")[0]).read_bytes()
        for i, name in enumerate(("native", "native", "ffpa_fp4")))
    assert native == again
    assert native != coarse


def test_the_environment_chooses_where_no_option_does(run_cli):
    def ran(*arguments, **env):
        done = run_cli("generate", *SMALL, *arguments, "--json", "report.json", env=env)
        assert done.returncode == 0, done.stderr
        return json.loads((run_cli.folder / "report.json").read_text())["attention_backend"]

    assert ran() == "native"
    assert ran(CACHE_DIT_ATTN_BACKEND="ffpa") == "ffpa"
    assert ran(CACHE_DIT_ATTN_BACKEND="") == "native"
    assert ran("--attn", "sage", CACHE_DIT_ATTN_BACKEND="ffpa") == "sage"
    assert ran("--attn", "sage", CACHE_DIT_ATTN_BACKEND="_flash_3") == "sage"


@pytest.mark.parametrize("value", ["1", "on", "0", "false", ""])
def test_checks_accept_finite_results(run_cli, value):
    done = run_cli("generate", *SMALL, "--attn", "flash", env={"CACHE_DIT_ATTN_CHECKS": value})
    assert done.returncode == 0, done.stderr


def test_a_forced_instruction_level_draws_the_same(run_cli):
    def pixels(**env):
        done = run_cli("generate", *SMALL, "--dtype", "fp32", "--attn", "flash", "--save-path", "a.png", env=env)
        assert done.returncode == 0, done.stderr
        return np.asarray(Image.open(run_cli.folder / "a.png")).astype(int)

    assert np.abs(pixels() - pixels(CACHEDIT_CPU_ISA="portable")).max() <= 1


# What is refused.


@pytest.mark.parametrize("option", ["--attn", "--attention-backend"])
def test_unknown_names_list_the_valid_ones(refused, option):
    refused("generate", *SMALL, option, "bogus", code=2, says=("bogus", "auto", *NAMES))


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(ON_CPU)))
def test_a_backend_that_cannot_run_here_says_why_and_what_can(refused, name):
    refused("generate", *SMALL, "--device", "cpu", "--attn", name, code=1,
            says=(f"[attention {name}]", "not available on cpu", "use auto, native, flash"))


@pytest.mark.parametrize(("variable", "value", "says"), [
    ("CACHE_DIT_ATTN_BACKEND", "bogus", ("CACHE_DIT_ATTN_BACKEND", "bogus", "ffpa_fp8_per_block")),
    ("CACHE_DIT_ATTN_CHECKS", "maybe", ("CACHE_DIT_ATTN_CHECKS", "maybe", "off")),
    ("CACHEDIT_CPU_ISA", "avx9", ("CACHEDIT_CPU_ISA", "avx9", "portable")),
    ("CACHEDIT_OP_LIBRARIES", "/no/a.so:/no/b.so", ("/no/a.so", "no such file")),
])
def test_bad_values_of_variables(run_cli, variable, value, says):
    command = ("backends",) if variable == "CACHEDIT_OP_LIBRARIES" else ("generate", *SMALL)
    attn = ("--attn", "flash") if variable == "CACHEDIT_CPU_ISA" else ()
    done = run_cli(*command, *attn, env={variable: value})
    assert done.returncode == 1
    assert all(text in done.stderr for text in says), done.stderr
    assert done.stdout == ""
    assert not list(run_cli.folder.iterdir())


@pytest.mark.parametrize("command", [("generate", *SMALL), ("backends",)])
def test_op_libraries_are_files_that_load(refused, run_cli, command):
    refused(*command, "--op-library", "/no/such.so", code=1, says=("/no/such.so", "no such file"))
    refused(*command, "--op-library", "", code=2, says="--op-library")
    text = run_cli.folder.parent / "text.so"
    text.write_text("not a library")
    refused(*command, "--op-library", text, code=1, says=(str(text), "shared library"))


def test_several_op_libraries_are_reported(generate):
    folder = pathlib.Path(torch.__file__).parent / "lib"
    paths = [str(folder / "libc10.so"), str(folder / "libtorch.so")]
    report = generate.report(*SMALL, "--op-library", paths[0], "--op-library", paths[1])
    assert report["settings"]["op_libraries"] == paths


# The table.


def test_the_table_has_every_backend(backends):
    listed = {backend["name"]: backend for backend in backends()["backends"]}
    assert list(listed)[:12] == NAMES
    on_cpu = [name for name, backend in listed.items()
              if name in NAMES and any(d["device"] == "cpu" and d["available"] for d in backend["devices"])]
    assert on_cpu == ON_CPU
    for backend in listed.values():
        for device in backend["devices"]:
            assert device["available"] == (device["reason"] == "") == (device["remedy"] == "")
            assert device["dtypes"]
            assert device["head_dim"]["min"] <= device["head_dim"]["max"]


def test_masks_by_backend(backends):
    """The documentation's table: with masks, and with masks under context parallelism."""
    devices = [(backend["name"], device) for backend in backends()["backends"] for device in backend["devices"]]
    masks = {name for name, device in devices if device["mask"]}
    assert masks == {"native", "_sdpa_cudnn", "ffpa", "ffpa_fp8", "ffpa_fp8_per_block", "ffpa_fp4",
                     "_native_npu", "_npu_fia"}
    parallel = {name for name, device in devices if device["mask_under_context_parallelism"]}
    assert parallel == {"native", "_sdpa_cudnn", "_native_npu", "_npu_fia"}


@pytest.mark.parametrize(("arguments", "backend", "passed_over"), [
    (("1,4608,24,128",), "flash", []),
    (("1,4608,24,128", "--mask", "bool"), "ffpa", ["flash"]),
    (("1,4608,24,128", "--mask", "float", "--dtype", "fp32"), "ffpa", ["flash"]),
    (("1,1024,8,512", "--dtype", "fp16"), "ffpa", ["flash"]),
    (("2,16,8,2048",), "native", ["flash", "ffpa"]),
    (("2,16,8,100000",), None, ["flash", "ffpa", "native"]),
])
def test_what_auto_would_take(backends, arguments, backend, passed_over):
    choice = backends("--device", "cpu", "--shape", *arguments)["auto"]
    assert choice["backend"] == backend
    assert choice["why"]
    assert [p["name"] for p in choice["passed_over"]] == passed_over
    assert all(p["reason"] for p in choice["passed_over"])


def test_the_table_as_text(run_cli):
    done = run_cli("backends", "--device", "cpu", "--shape", "1,4608,24,128", "--mask", "bool")
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in NAMES)
    assert "auto for 1,4608,24,128, bf16, mask bool on cpu: ffpa" in done.stdout
    assert "not flash: it takes no mask" in done.stdout
    assert "head dim 192" in done.stdout  # of the fp8 kernels on CUDA


@pytest.mark.parametrize(("arguments", "says"), [
    (("--shape", "1,2,3"), "1,2,3"),
    (("--shape", "1,2,3,4,5"), "1,2,3,4,5"),
    (("--shape", "1,2,3,x"), "1,2,3,x"),
    (("--shape", "1, 2,3,4"), "1, 2,3,4"),
    (("--shape", "1,2,3,99999999999999999999"), "99999999999999999999"),
    (("--shape", ""), "--shape"),
    (("--shape", "1,0,3,4"), "tokens 0"),
    (("--shape", "1,2,3,-4"), "head dim -4"),
    (("--shape", "1,2,3,4", "--dtype", "fp9"), "fp9"),
    (("--shape", "1,2,3,4", "--mask", "maybe"), "maybe"),
    (("--shape", "1,2,3,4", "--device", "tpu"), "tpu"),
    (("--mask", "bool"), "--shape"),
    (("extra",), "extra"),
])
def test_bad_queries(refused, arguments, says):
    refused("backends", *arguments, code=2, says=says)


@pytest.mark.parametrize("device", ["cuda", "cuda:3", "npu"])
def test_devices_that_are_not_there(refused, device):
    if device.startswith("cuda") and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    refused("backends", "--shape", "1,2,3,4", "--device", device, code=1, says=device)
