"""`cachedit bench step` and `bench gemm`: their records, their tables, and what they refuse. Times are not judged."""

import json
import re

import pytest

STEP_KEYS = ["step_seconds", "median_step", "attention_backend", "linear_seconds", "linear_operations",
             "attention_seconds", "attention_operations", "other_seconds", "fp32_roof", "bf16_roof", "int8_roof"]
GEMM_KEYS = ["form", "m", "n", "k", "gflops", "percent_of_roof", "weight_gb_per_s", "memory_roof_gb_per_s",
             "percent_of_memory_roof"]
FORMS = ["fp32", "bf16", "int8", "int8_weight_only", "int4_weight_only", "float8_weight_only"]
LARGE = [(1536, 3072, 3072), (1536, 12288, 3072), (1536, 3072, 15360)]
SMALL = [(16, 12288, 3072), (1, 12288, 3072)]
STEP = ("bench", "step", "--height", 64, "--width", 64)
GEMM = ("bench", "gemm", "--repeats", 1)
# What the demo model's blocks compute at 64 x 64 pixels, which are 16 tokens of picture and 24 of text: 12 matrices of
# width x width a token in 4 double and 8 single blocks. Modulations and what lies around the blocks come on top.
WIDTH, TOKENS = 128, 16 + 24
BLOCK_OPERATIONS = 2 * TOKENS * WIDTH * WIDTH * 12 * (4 + 8)
ATTENTION_OPERATIONS = 4 * TOKENS * TOKENS * WIDTH * (4 + 8)


@pytest.fixture
def measure(run_cli):
    """The finished process and the JSON it wrote."""

    def run(*arguments):
        done = run_cli(*arguments, "--threads", 1, "--json", "bench.json")
        assert done.returncode == 0, done.stderr
        return done, json.loads((run_cli.folder / "bench.json").read_text(encoding="utf-8"))

    return run


def check_step(found, steps):
    assert list(found) == STEP_KEYS
    assert len(found["step_seconds"]) == steps
    total = sum(found["step_seconds"])
    assert min(found["step_seconds"]) > 0
    assert min(found["step_seconds"]) <= found["median_step"] <= max(found["step_seconds"])
    parts = [found[f"{part}_seconds"] for part in ("linear", "attention", "other")]
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(total)
    # The profile is of the steps that count, not of the first one.
    assert BLOCK_OPERATIONS * steps <= found["linear_operations"] <= 1.5 * BLOCK_OPERATIONS * steps
    assert found["attention_operations"] == ATTENTION_OPERATIONS * steps
    for part in ("linear", "attention"):
        rate = found[f"{part}_operations"] / found[f"{part}_seconds"]
        assert rate < 1.5 * max(found["fp32_roof"], found["bf16_roof"], found["int8_roof"])
    assert min(found["fp32_roof"], found["bf16_roof"], found["int8_roof"]) > 1e8


@pytest.mark.parametrize(("options", "backend"), [
    (("--dtype", "bf16", "--attn", "flash"), "flash"),
    (("--dtype", "bf16", "--attn", "sage", "--quantize-type", "int8_per_row"), "sage"),
    (("--dtype", "fp32",), "native"),
])
def test_parts_of_a_step_add_up(measure, options, backend):
    done, found = measure(*STEP, "--breakdown", *options)
    check_step(found, 3)
    assert found["attention_backend"] == backend
    lines = done.stdout.splitlines()
    assert re.fullmatch(rf"\d+\.\d{{3}} s/step \(median of 3\), attention {backend}", lines[0])
    assert [line.split("  ")[0] for line in lines[1:4]] == ["linear layers", "attention", "other operators"]
    percentages = [float(re.search(r"([0-9.]+) %", line).group(1)) for line in lines[1:4]]
    assert sum(percentages) == pytest.approx(100, abs=0.2)  # each is rounded to a tenth
    total = sum(found["step_seconds"])
    for part, percentage in zip(("linear", "attention", "other"), percentages, strict=True):
        assert percentage == pytest.approx(100 * found[f"{part}_seconds"] / total, abs=0.06)
    assert ["GFLOP/s" in line for line in lines[1:4]] == [True, True, False]
    assert lines[4].startswith("roofs: fp32 ") and len(lines) == 5


def test_without_the_parts(measure):
    done, found = measure(*STEP, "--steps", 2)
    check_step(found, 2)
    assert len(done.stdout.splitlines()) == 1 and "median of 2" in done.stdout


@pytest.mark.parametrize(("arguments", "code", "says"), [
    (("--steps", 0), 2, ("steps must be at least 1", "0")),
    (("--steps", "010"), 2, ("--steps", "'010'")),
    (("--steps", "-1"), 2, ("steps must be at least 1", "-1")),
    (("--threads", 0), 2, ("threads", "0")),
    (("--height", "63.5"), 2, ("--height", "'63.5'")),
    (("--dtype", "fp8"), 2, ("--dtype", "fp8")),
    (("--attn", "falsh"), 2, ("'falsh'", "flash")),
    (("--attn", ""), 2, ("--attn", "empty")),
    (("--quantize-type", "fp9"), 2, "'fp9'"),
    (("--exclude-layers", "a"), 2, "--exclude-layers has no effect without --quantize"),
    (("--model-path", "nowhere"), 1, "nowhere"),
    (("--json", "no/such/folder/step.json"), 1, "no/such/folder"),
    (("--json", ""), 2, ("--json", "empty")),
    (("--bogus",), 2, "--bogus"),
])
def test_what_bench_step_refuses(refused, arguments, code, says):
    refused("bench", "step", "--breakdown", *arguments, code=code, says=says)


def check_gemm(done, found, forms, shapes):
    assert [(r["form"], r["m"], r["n"], r["k"]) for r in found] == [
        (form, *shape) for form in forms for shape in shapes]
    lines = done.stdout.splitlines()
    assert lines[0].split()[:4] == ["form", "M", "N", "K"]
    assert [line.split()[:4] for line in lines[1:]] == [
        [r["form"], *(str(r[key]) for key in "mnk")] for r in found]
    for record in found:
        assert list(record) == GEMM_KEYS
        assert record["gflops"] > 0
        assert 0 < record["percent_of_roof"] < 300  # the roof and the kernel do not run at the same time
        reading = [record[key] for key in GEMM_KEYS[-3:]]
        if record["m"] > 16:
            assert reading == [None, None, None]
            continue
        assert min(reading) > 0
        assert record["percent_of_memory_roof"] == pytest.approx(
            100 * record["weight_gb_per_s"] / record["memory_roof_gb_per_s"])
        assert record["percent_of_memory_roof"] < 300


def test_every_shape_is_measured_by_default(measure):
    check_gemm(*measure(*GEMM, "--form", "int8"), ["int8"], LARGE + SMALL)


@pytest.mark.parametrize(("form", "element_bytes"), [("bf16", 2), ("int4_weight_only", 0.5 + 4 / 64)])
def test_small_batches_say_how_fast_weights_are_read(measure, form, element_bytes):
    """Both rates are of one time, so that their ratio is the form's: bytes of an element over operations with it."""
    done, found = measure(*GEMM, "--form", form, "--rows", 1)
    check_gemm(done, found, [form], SMALL[1:])
    per_element = found[0]["weight_gb_per_s"] / found[0]["gflops"] * 2
    # Scales of the columns come on top, 4 bytes in 3072.
    assert element_bytes <= per_element < 1.01 * element_bytes


def test_forms_and_rows_may_be_chosen(measure):
    check_gemm(*measure(*GEMM, "--form", "int8,bf16", "--rows", "1536"), ["int8", "bf16"], LARGE)


def test_help_lists_the_forms(run_cli):
    assert ", ".join(FORMS) in " ".join(run_cli("bench", "gemm", "--help").stdout.split())


@pytest.mark.parametrize(("arguments", "code", "says"), [
    (("--form", "int9"), 2, ("unknown form: got 'int9'", *FORMS)),
    (("--form", "int8,int9"), 2, "'int9'"),
    (("--form", ""), 2, ("--form", "empty")),
    (("--rows", "2"), 2, ("number of rows", "2", "1536, 16, 1")),
    (("--rows", "1,x"), 2, ("--rows", "'x'")),
    (("--repeats", 0), 2, ("repeats must be at least 1", "0")),
    (("--repeats", "010"), 2, ("--repeats", "'010'")),
    (("--threads", 0), 2, ("threads", "0")),
    (("--threads", "x"), 2, ("--threads", "'x'")),
    (("--json", "no/such/folder/gemm.json"), 1, "no/such/folder"),
    (("--bogus",), 2, "--bogus"),
])
def test_what_bench_gemm_refuses(refused, arguments, code, says):
    refused("bench", "gemm", *arguments, code=code, says=says)
