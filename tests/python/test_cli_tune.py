"""`cachedit tune`: the files that it writes, what they are good for, and what it refuses."""

import xml.etree.ElementTree

import pytest

PROMPTS = "red apple\nkoala\nmaple leaf\nfrog face\n"
SMALL = ("--steps", 8, "--height", 64, "--width", 64, "--max-sequence-length", 24, "--threads", 1)


@pytest.fixture
def prompt_file(run_cli):
    path = run_cli.folder / "prompts.txt"
    path.write_text(PROMPTS, encoding="utf-8")
    return path


def tune(run_cli, prompt_file, *arguments):
    return run_cli("tune", "--prompt-file", prompt_file, *SMALL, *arguments)


def test_the_tuned_file_serves_generate_and_cache_dit(run_cli, prompt_file, generate):
    done = tune(run_cli, prompt_file, "--target-psnr", 25, "--max-runs", 4, "--plot", "frontier.svg",
                "--save-path", "tuned.yaml")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["speed-up", "PSNR"]
    assert len([line for line in lines[: lines.index("")] if "DBCache_" in line]) == 4
    assert any(line.startswith("best: DBCache_F1B0") for line in lines)

    folder = run_cli.folder
    plot = xml.etree.ElementTree.parse(folder / "frontier.svg").getroot()
    assert len([e for e in plot.iter() if e.tag.endswith("circle")]) == 4

    settings = ("--prompt", "koala", "--steps", 8, "--height", 64, "--width", 64, "--seed", 3)
    report = generate.report(*settings, "--config-path", "tuned.yaml")
    best = next(line for line in lines if line.startswith("best: ")).removeprefix("best: ")
    assert report["cache"][0]["config"] == best
    assert 0 < len(report["cache"][0]["cached_steps"]) < 8

    cache_dit = pytest.importorskip("cache_dit")
    loaded = cache_dit.load_configs(str(folder / "tuned.yaml"))["cache_config"]
    assert loaded.Fn_compute_blocks == 1
    if loaded.steps_computation_mask is not None:
        assert len(loaded.steps_computation_mask) == 8


@pytest.mark.parametrize("arguments, texts", [
    (("--target-psnr", 0), ["target_psnr", "0"]),
    (("--max-runs", 0), ["max_runs", "0"]),
    (("--save-path", "nowhere/tuned.yaml"), ["nowhere"]),
    (("--model-path", "no-such-model"), ["no-such-model"]),
])
def test_bad_input_is_named_and_leaves_nothing_behind(run_cli, prompt_file, arguments, texts):
    done = tune(run_cli, prompt_file, *arguments)
    assert done.returncode in (1, 2), done.stdout
    for text in texts:
        assert text in done.stderr
    assert sorted(path.name for path in run_cli.folder.iterdir()) == ["prompts.txt"]


def test_a_target_out_of_reach_writes_no_file(run_cli, prompt_file):
    done = tune(run_cli, prompt_file, "--target-psnr", 99, "--max-runs", 1)
    assert done.returncode == 2
    assert "no configuration reaches 99 dB" in done.stderr
    assert sorted(path.name for path in run_cli.folder.iterdir()) == ["prompts.txt"]
