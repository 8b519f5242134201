"""`cachedit bench attention`: its records, its table, and what it refuses. Times are not judged."""

import json
import math

import pytest

KEYS = ["case", "backend", "dtype", "isa", "ms", "gflops", "roof_gflops", "ratio_to_sdpa", "cosine", "rel_l1",
        "scratch_bytes"]
TINY = ("bench", "attention", "--case", "tiny", "--repeats", 1, "--threads", 1)
TINY_OPERATIONS = 4 * 2 * 160 * 160 * 64
BACKENDS = ["native", "flash", "sage", "ffpa", "ffpa_fp8", "ffpa_fp8_per_block", "ffpa_fp4"]
# What each scheme promises, see docs/attention.md; bf16 and fp16 round more than fp32.
COSINES = {"sage": 0.999, "ffpa_fp8": 0.999, "ffpa_fp8_per_block": 0.998, "ffpa_fp4": 0.98}


def records(run_cli, *arguments, **options):
    done = run_cli(*TINY, *arguments, "--json", "bench.json", **options)
    assert done.returncode == 0, done.stderr
    return done, json.loads((run_cli.folder / "bench.json").read_text(encoding="utf-8"))


def test_every_backend_and_dtype_is_measured_by_default(run_cli):
    done, found = records(run_cli)
    assert sorted((r["backend"], r["dtype"]) for r in found) == sorted(
        (backend, dtype) for backend in BACKENDS for dtype in ("fp32", "bf16", "fp16"))
    for record in found:
        assert list(record) == KEYS
        assert record["case"] == "tiny"
        assert min(record[key] for key in ("ms", "gflops", "roof_gflops", "ratio_to_sdpa")) > 0
        assert record["gflops"] == pytest.approx(TINY_OPERATIONS / record["ms"] / 1e6)
        exact = record["backend"] not in COSINES
        assert record["cosine"] >= COSINES.get(record["backend"], 0.9999), record
        assert 0 <= record["rel_l1"] <= (0.2 if not exact else 1e-5 if record["dtype"] == "fp32" else 1e-2), record
        assert 0 <= record["scratch_bytes"] <= 4 << 20
        assert record["scratch_bytes"] > 0 or record["backend"] == "native"
    assert len({record["isa"] for record in found}) == 1
    lines = done.stdout.splitlines()
    assert lines[0].split()[:4] == ["case", "backend", "dtype", "isa"]
    assert [line.split()[:3] for line in lines[1:]] == [[r["case"], r["backend"], r["dtype"]] for r in found]


def test_quantization_shows_in_the_figures(run_cli):
    _, found = records(run_cli, "--attn", "flash,sage,ffpa_fp4", "--dtype", "fp32")
    flash, sage, fp4 = (record["rel_l1"] for record in found)
    assert flash < 1e-5 < 1e-3 < sage < fp4


def test_masks_and_who_takes_none(run_cli):
    done = run_cli("bench", "attention", "--case", "tiny_mask", "--repeats", 1, "--threads", 1, "--json", "bench.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((run_cli.folder / "bench.json").read_text(encoding="utf-8"))
    assert {record["backend"] for record in found} == set(BACKENDS) - {"flash", "sage"}
    for record in found:
        assert record["cosine"] >= COSINES.get(record["backend"], 0.9999), record
    for name in ("flash", "sage"):
        assert done.stderr.count(f"left out: tiny_mask, {name}: it takes no mask") == 1


def test_tensors_of_one_dtype_have_one_roof(run_cli):
    _, found = records(run_cli, "--attn", "native,flash")
    roofs = {dtype: {r["roof_gflops"] for r in found if r["dtype"] == dtype} for dtype in ("fp32", "bf16", "fp16")}
    assert all(len(values) == 1 for values in roofs.values())
    assert roofs["fp16"] == roofs["fp32"], "fp16 is computed in fp32"


def test_a_selection(run_cli):
    _, found = records(run_cli, "--attn", "flash,native", "--dtype", "bf16,fp32")
    assert [(r["backend"], r["dtype"]) for r in found] == [
        ("flash", "bf16"), ("native", "bf16"), ("flash", "fp32"), ("native", "fp32")]


def test_the_instruction_level_comes_from_the_environment(run_cli):
    _, found = records(run_cli, "--attn", "flash", "--dtype", "fp32", env={"CACHEDIT_CPU_ISA": "portable"})
    assert [r["isa"] for r in found] == ["portable"]
    assert found[0]["rel_l1"] <= 1e-5
    assert math.isclose(found[0]["cosine"], 1, rel_tol=1e-9)


def test_help_lists_the_cases(run_cli):
    text = run_cli("bench", "attention", "--help").stdout
    for name in ("flux_512", "flux_1024", "flux_1024_mask", "wan", "d64", "d192", "d256", "d512", "tokens_16384",
                 "tiny", "tiny_mask"):
        assert f"  {name} " in text


@pytest.mark.parametrize(("arguments", "says"), [
    (("--case", "huge"), ("'huge'", "flux_1024", "tiny")),
    (("--case", "tiny,huge"), ("'huge'", "flux_1024")),
    (("--case", ""), ("--case", "empty")),
    (("--case", "tiny", "--attn", "falsh"), ("'falsh'", "flash", "ffpa_fp4")),
    (("--case", "tiny", "--dtype", "fp8"), ("'fp8'", "fp32, bf16, fp16")),
    (("--case", "tiny", "--repeats", "0"), ("repeats", "0")),
    (("--case", "tiny", "--repeats", "010"), ("--repeats", "'010'")),
    (("--case", "tiny", "--threads", "0"), ("threads", "0")),
    (("--case", "d512", "--attn", "flash"), ("flash", "512")),  # nothing left to measure
    (("--case", "flux_1024_mask", "--attn", "sage"), ("sage", "mask")),
    (("--bogus",), ("--bogus",)),
])
def test_what_is_refused(refused, arguments, says):
    refused("bench", "attention", *arguments, code=2, says=says)


def test_a_backend_of_other_devices_is_refused(refused):
    refused("bench", "attention", "--case", "tiny", "--attn", "_flash_3", code=1, says=("_flash_3", "CPU"))


def test_a_report_needs_a_place(refused):
    refused(*TINY, "--json", "no/such/folder/bench.json", code=1, says="no/such/folder")


def test_bench_needs_to_know_what(refused):
    refused("bench", code=2, says="cachedit bench attention")
    refused("bench", "unet", code=2, says="unet")
