"""What bench/step.py and bench/quantize_memory.py say of bars that are missed and of peers that are left out, with
invented measurements."""

import argparse
import pathlib
import sys

import pytest

STEP_SECONDS = {"bf16 + flash": 5.0, "int8_per_row + sage": 2.5}
DIFFUSERS_SECONDS = 6.5
PEER = """#!/bin/sh
case "$*" in *q8_0*) s=15.5 ;; *bf16*) s=9.25 ;; *) s=5.9 ;; esac
for i in 1 2 3; do echo "  |=====>  | $i/3 - ${s}s/it"; done
"""


@pytest.fixture
def scripts(source_dir, monkeypatch):
    monkeypatch.syspath_prepend(str(source_dir / "bench"))
    import quantize_memory
    import step

    return argparse.Namespace(step=step, quantize_memory=quantize_memory)


@pytest.fixture
def saved(scripts, monkeypatch):
    """What the scripts save, by name."""
    found = {}
    monkeypatch.setattr(scripts.step.common, "save", lambda name, rows, options: found.update({name: rows}))
    return found


@pytest.fixture
def run_step(scripts, saved, monkeypatch, capsys):
    """bench/step.py with measurements that meet every bar, but for those that are given: exit status and text."""

    def run(*arguments, seconds=None, int8_percent=95.0, other=0.02, cached=0.5):
        step = scripts.step
        ours = {**STEP_SECONDS, **(seconds or {})}
        monkeypatch.setattr(sys, "argv", ["step.py", "--rounds", "1", *map(str, arguments)])
        monkeypatch.setattr(step.make_flux_width_checkpoint, "ensure", lambda: pathlib.Path("model"))
        name_of = {tuple(flags): name for name, flags in step.OURS.items()}

        def report(options, size, flags, steps=4):
            if tuple(flags) not in name_of:  # cached steps
                return {"step_seconds": [5.0, 5.0, cached, 5.0, cached], "cache": [{"cached_steps": [2, 4]}]}
            return {"step_seconds": [9.0] + [ours[name_of[tuple(flags)]]] * (steps - 1)}

        monkeypatch.setattr(step, "ours", report)
        monkeypatch.setattr(step, "diffusers_step", lambda options, size: DIFFUSERS_SECONDS)
        reading = {"weight_gb_per_s": 30.5, "memory_roof_gb_per_s": 40.0, "percent_of_memory_roof": 76.25}
        monkeypatch.setattr(step, "gemms", lambda options: [
            {"form": "int8", "m": 1536, "n": 3072, "k": 3072, "gflops": 900.0, "percent_of_roof": int8_percent,
             **dict.fromkeys(reading)},
            {"form": "int8", "m": 1, "n": 12288, "k": 3072, "gflops": 60.0, "percent_of_roof": 6.0, **reading}])
        part = {"step_seconds": [1.0], "linear_seconds": 0.9 - other, "linear_operations": 1e12,
                "attention_seconds": 0.1, "attention_operations": 1e11, "other_seconds": other}
        monkeypatch.setattr(step, "breakdowns", lambda options: {name: dict(part) for name in step.OURS})
        status = step.main()
        assert set(saved) == {"step"}  # whatever was missed
        return status, capsys.readouterr().out

    return run


def test_bars_that_are_met(run_step, saved):
    status, text = run_step()
    assert status == 0 and "MISSED" not in text
    assert "stable-diffusion.cpp is skipped: give --sd-binary and --sd-model TYPE=FILE" in text
    assert "weights read at 30.5 GB/s, 76.2 % of memory's 40.0" in text
    assert len(saved["step"]["steps"]) == 4 and all(row["met"] for row in saved["step"]["steps"])


@pytest.mark.parametrize("missed", [
    {"seconds": {"bf16 + flash": 6.4}}, {"seconds": {"int8_per_row + sage": 4.0}}, {"int8_percent": 74.9},
    {"other": 0.07}, {"cached": 1.0},
])
def test_a_bar_that_is_missed(run_step, missed):
    status, text = run_step("--size", 512, **missed)
    assert status == 1 and "MISSED" in text
    assert "s in all" in text.splitlines()[-1]


@pytest.fixture
def peer(tmp_path):
    """A program that reports steps as stable-diffusion.cpp does."""
    path = tmp_path / "sd"
    path.write_text(PEER)
    path.chmod(0o755)
    return path


def test_the_peer_is_measured_where_its_bars_are(run_step, saved, peer):
    models = ("--sd-model", "bf16=bf16.gguf", "--sd-model", "q8_0=q8_0.gguf")
    status, text = run_step("--sd-binary", peer, *models)
    assert status == 0
    assert "stable-diffusion.cpp is measured at 512 x 512 only: not at 1024 x 1024" in text
    rows = {row["peer_name"]: row["ratio"] for row in saved["step"]["steps"]}
    assert rows["stable-diffusion.cpp q8_0"] == pytest.approx(15.5 / 2.5)
    assert rows["stable-diffusion.cpp bf16"] == pytest.approx(9.25 / 2.5)
    status, text = run_step("--sd-binary", peer, *models, "--sd-model", "q4_0=q4_0.gguf")
    assert status == 1 and text.count("MISSED") == 1
    assert saved["step"]["steps"][3]["peer_name"] == "stable-diffusion.cpp q4_0"  # the fastest
    assert not saved["step"]["steps"][3]["met"]


def test_the_peer_at_a_size_without_bars(run_step, saved, peer):
    status, text = run_step("--size", 1024, "--sd-binary", peer, "--sd-model", "q8_0=q8_0.gguf")
    assert status == 0
    assert "stable-diffusion.cpp is skipped: it is measured at 512 x 512 only; give --size 512" in text
    assert {row["peer_name"] for row in saved["step"]["steps"]} == {"diffusers bf16"}


def test_a_type_of_the_peer_that_is_not_given(run_step, saved, peer):
    _, text = run_step("--size", 512, "--sd-binary", peer, "--sd-model", "bf16=bf16.gguf")
    assert "stable-diffusion.cpp q8_0 is skipped: give --sd-model q8_0=FILE to measure it" in text
    peers = [row["peer_name"] for row in saved["step"]["steps"]]
    assert peers == ["diffusers bf16", "diffusers bf16", "stable-diffusion.cpp bf16"]


def test_a_model_of_the_peer_needs_its_type(run_step, capsys):
    with pytest.raises(SystemExit) as refusal:
        run_step("--sd-model", "model.gguf")
    assert refusal.value.code == 2
    assert "needs TYPE=FILE: got 'model.gguf'" in capsys.readouterr().err


@pytest.mark.parametrize(("gib", "status"), [(12.9, 0), (13.1, 1)])
def test_a_limit_of_memory(scripts, saved, monkeypatch, capsys, tmp_path, gib, status):
    memory = scripts.quantize_memory
    model = tmp_path / "model"
    model.mkdir()
    part = {"component": "transformer", "quantized_layers": 1, "linear_layers": 2, "stored_bytes": 1, "bytes": 1}
    report = {"quantization": [part], "seconds": {"load": 1, "denoise": 1}}
    demo_peak = 0.2 * memory.common.GIB
    monkeypatch.setattr(memory, "run", lambda options, path, kind, folder: (
        report, demo_peak + (gib * memory.common.GIB if path == model else 0), 1.0))
    monkeypatch.setattr(memory.make_flux_size_checkpoint, "ensure", lambda: model)
    monkeypatch.setattr(sys, "argv", ["quantize_memory.py", "--keep"])
    assert memory.main() == status
    assert saved["quantize_memory"][0]["met"] is (status == 0)
    assert ("MISSED" in capsys.readouterr().out) is (status == 1)
    assert model.is_dir()
