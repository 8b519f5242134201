"""What `cachedit` tells about a run and a checkpoint: the JSON report, progress, inspect."""

import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import time

import pytest
from PIL import Image
from safetensors import safe_open

SMALL = ("--prompt", "red apple", "--steps", 3, "--width", 32, "--height", 32, "--seed", 7, "--threads", 1)


# The report.


def test_the_report(generate, demo_model):
    report = generate.report(*SMALL, "--num-images-per-prompt", 2)
    assert set(report) == {"version", "settings", "attention_backend", "seconds", "step_seconds",
                           "cache", "cache_comparison", "parallel", "quantization", "peak_memory_bytes",
                           "outputs"}
    assert report["settings"] == {
        "model_path": str(demo_model), "pipeline": "FluxPipeline", "dtype": "bf16", "device": "cpu",
        "attention_backend": "native", "cache": None, "quantize_type": None, "op_libraries": [],
        "threads": 1, "prompt_file": None, "save_path": None, "format": "png", "contact_sheet": None,
        "output_type": "image", "vae_tiling": False, "vae_slicing": False, "quiet": False,
        "prompts": [{"prompt": "red apple", "height": 32, "width": 32, "num_inference_steps": 3, "seed": 7,
                     "num_images_per_prompt": 2, "max_sequence_length": 24, "true_cfg_scale": 1.0}]}
    seconds = report["seconds"]
    assert set(seconds) == {"load", "text", "denoise", "decode", "total"}
    assert all(value > 0 for value in seconds.values())
    parts = sum(value for stage, value in seconds.items() if stage != "total")
    assert parts <= seconds["total"]
    assert len(report["step_seconds"]) == 3
    assert all(value > 0 for value in report["step_seconds"])
    assert sum(report["step_seconds"]) <= seconds["denoise"]
    assert 20 << 20 < report["peak_memory_bytes"] < 4 << 30
    assert [output["path"] for output in report["outputs"]] == [
        "./000-red-apple-32x32-seed7-0.png", "./001-red-apple-32x32-seed7-1.png"]
    for output in report["outputs"]:
        assert {key: output[key] for key in ("prompt", "seed", "width", "height")} == {
            "prompt": "red apple", "seed": 7, "width": 32, "height": 32}


def flat(settings):
    [prompt] = settings["prompts"]
    return {**{key: value for key, value in settings.items() if key != "prompts"}, **prompt}


@pytest.fixture(scope="module")
def other_model(demo_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "other"
    shutil.copytree(demo_model, folder)
    return folder


@pytest.mark.parametrize(("option", "value", "changed"), [
    ("--prompt", "koala", {"prompt": "koala"}),
    ("--negative-prompt", "blue", {"negative_prompt": "blue"}),
    ("--true-cfg-scale", 2.5, {"true_cfg_scale": 2.5}),
    ("--guidance-scale", 2.5, {"guidance_scale": 2.5}),
    ("--height", 48, {"height": 48}),
    ("--width", 48, {"width": 48}),
    ("--num-inference-steps", 2, {"num_inference_steps": 2}),
    ("--steps", 2, {"num_inference_steps": 2}),
    ("--seed", 8, {"seed": 8}),
    ("--num-images-per-prompt", 2, {"num_images_per_prompt": 2}),
    ("--max-sequence-length", 16, {"max_sequence_length": 16}),
    ("--sigmas", "1", {"sigmas": [1.0]}),
    ("--image-path", "start.png", {"image_path": "start.png", "strength": 0.6}),
    ("--strength", 0.9, {"strength": 0.9}),
    ("--dtype", "fp32", {"dtype": "fp32"}),
    ("--device", "cpu", {}),
    ("--attn", "flash", {"attention_backend": "flash"}),
    ("--attention-backend", "auto", {"attention_backend": "auto"}),
    ("--threads", 2, {"threads": 2}),
    ("--save-path", "out", {"save_path": "out"}),
    ("--format", "webp", {"format": "webp"}),
    ("--output-type", "latent", {"output_type": "latent", "format": "safetensors"}),
    ("--contact-sheet", "sheet.png", {"contact_sheet": "sheet.png"}),
    ("--vae-tiling", None, {"vae_tiling": True}),
    ("--vae-slicing", None, {"vae_slicing": True}),
    ("--quiet", None, {"quiet": True}),
    ("--model-path", "other", {"model_path": "other"}),
])
def test_each_option_alone_changes_its_field_and_no_other(generate, other_model, option, value, changed):
    base = {"--prompt": "a", "--steps": 1, "--height": 32, "--width": 32, "--seed": 7, "--threads": 1}
    Image.new("RGB", (32, 32)).save(generate.folder / "start.png")
    if option == "--strength":
        base["--image-path"] = "start.png"
    if option == "--model-path":
        (generate.folder / value).symlink_to(other_model)

    def settings(options):
        arguments = [part for pair in options.items() for part in pair if part is not None]
        return flat(generate.report(*arguments)["settings"])

    before = settings(base)
    if option == "--num-inference-steps":
        del base["--steps"]
    after = settings({**base, option: value})
    assert {key: after[key] for key in after if key not in before or after[key] != before[key]} == changed
    assert set(before) <= set(after)


def test_a_report_in_a_place_whose_name_is_not_utf8(run_cli):
    done = run_cli("generate", *SMALL, "--save-path", b"caf\xe9", "--json", "report.json")
    assert done.returncode == 0, done.stderr
    [output] = json.loads((run_cli.folder / "report.json").read_text())["outputs"]
    assert output["path"] == "caf\ufffd/000-red-apple-32x32-seed7.png"
    [printed] = done.stdout.splitlines()
    assert (run_cli.folder / printed).is_file()


def test_a_model_in_a_place_whose_name_is_not_utf8(run_cli, demo_model):
    os.symlink(os.fsencode(demo_model), os.fsencode(run_cli.folder) + b"/caf\xe9")
    done = run_cli("generate", *SMALL, "--model-path", b"caf\xe9", "--json", "report.json")
    assert done.returncode == 0, done.stderr
    [output] = json.loads((run_cli.folder / "report.json").read_text())["outputs"]
    assert "Model: caf\ufffd," in Image.open(run_cli.folder / output["path"]).text["parameters"]
    listed = json.loads(run_cli("inspect", b"caf\xe9", "--json").stdout)
    assert listed["path"] == "caf\ufffd"


# Progress.


def test_progress_is_lines_where_stderr_is_no_terminal(generate):
    generate(*SMALL)
    progress, summary = generate.stderr.splitlines()
    assert re.fullmatch(r"step 3/3, \d+\.\d\d steps/s, 0\.0 s left", progress)
    assert re.fullmatch(r"1 output\(s\) in .*load .*text .*denoise .*\(3 steps\), decode .*peak memory \d+ MiB",
                        summary)


def test_quiet_means_nothing_on_stderr(generate):
    assert len(generate(*SMALL, "--quiet")) == 1
    assert generate.stderr == ""


def read_terminal(descriptor):
    output = b""
    while True:
        try:
            part = os.read(descriptor, 4096)
        except OSError:  # Linux reports the end of a terminal as an error
            return output.decode()
        if not part:
            return output.decode()
        output += part


def on_terminal(cli_path, cli_environment, folder, *arguments):
    """(exit code, stdout, what a terminal got as stderr)."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([cli_path, "generate", *map(str, arguments)], cwd=folder, env=cli_environment,
                          stdout=subprocess.PIPE, stderr=theirs, stdin=subprocess.DEVNULL) as process:
        os.close(theirs)
        screen = read_terminal(ours)
        os.close(ours)
        stdout = process.stdout.read().decode()
    return process.returncode, stdout, screen


def test_progress_is_a_bar_on_a_terminal(cli_path, cli_environment, tmp_path):
    code, stdout, screen = on_terminal(cli_path, cli_environment, tmp_path, "--prompt", "a", "--steps", 60,
                                       "--seed", 1, "--threads", 1)
    assert code == 0
    assert stdout == "./000-a-128x128-seed1.png\n"
    bars = re.findall(r"\r\033\[K\[(#*)(\.*)\] (\d+)/60  \d+\.\d\d steps/s  [\d.:]+( s)? left", screen)
    assert len(bars) >= 2
    steps = [int(bar[2]) for bar in bars]
    assert steps == sorted(set(steps)) and steps[-1] == 60
    for filled, empty, step, _ in bars:
        assert len(filled) == 30 * int(step) // 60 and len(filled) + len(empty) == 30
    assert screen.count("\n") == 2  # the bar, and the summary
    assert "1 output(s)" in screen.splitlines()[-1]


def test_quiet_draws_no_bar(cli_path, cli_environment, tmp_path):
    assert on_terminal(cli_path, cli_environment, tmp_path, *SMALL, "--quiet")[2] == ""


# Stopping.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_leaves_finished_pictures_and_nothing_else(cli_path, cli_environment, tmp_path, number):
    folder = tmp_path / "out"
    (tmp_path / "prompts").write_text('{"prompt": "a", "steps": 1}\n{"prompt": "b", "steps": 10000}\n')
    command = [cli_path, "generate", "--prompt-file", "prompts", "--seed", "1", "--threads", "1",
               "--save-path", folder, "--json", "report.json", "--contact-sheet", "sheet.png"]
    with subprocess.Popen(command, cwd=tmp_path, env=cli_environment, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()  # the second picture is under way
        process.send_signal(number)
        started = time.monotonic()
        rest, errors = process.communicate(timeout=60)
        waited = time.monotonic() - started
    assert process.returncode == 130, errors
    assert first.strip() == str(folder / "000-a-128x128-seed1.png")
    assert rest == ""
    assert "stopped after step" in errors or "stopped;" in errors
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "000-a-128x128-seed1.png", "out", "prompts"]
    Image.open(folder / "000-a-128x128-seed1.png").verify()
    assert waited < 30  # a few steps, not the minutes that are left


def test_stopping_on_a_terminal_ends_the_bar_s_line(cli_path, cli_environment, tmp_path):
    ours, theirs = pty.openpty()
    with subprocess.Popen([cli_path, "generate", "--prompt", "a", "--steps", "10000", "--threads", "1"],
                          cwd=tmp_path, env=cli_environment, stdout=subprocess.DEVNULL, stderr=theirs,
                          stdin=subprocess.DEVNULL) as process:
        os.close(theirs)
        start = os.read(ours, 4096).decode()  # waits for the first bar
        process.send_signal(signal.SIGINT)
        screen = start + read_terminal(ours)
        os.close(ours)
    assert process.returncode == 130
    *_, bar, message = screen.splitlines()
    assert "[" in bar and message.startswith("cachedit: ")
    assert list(tmp_path.iterdir()) == []


# Looking into checkpoints.


COMPONENTS = {"scheduler": "FlowMatchEulerDiscreteScheduler", "text_encoder": "CLIPTextModel",
              "text_encoder_2": "T5EncoderModel", "tokenizer": "CLIPTokenizer", "tokenizer_2": "T5Tokenizer",
              "transformer": "FluxTransformer2DModel", "vae": "AutoencoderKL"}


def test_inspect_as_a_table(run_cli, demo_model):
    done = run_cli("inspect", demo_model)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == [str(demo_model), "FluxPipeline"]
    for name, class_name in COMPONENTS.items():
        assert re.search(rf"^{name} +{class_name} ", done.stdout, re.MULTILINE)
    assert re.search(r"^transformer .* bf16 +4\.50 M +8\.59 MiB +4 double \+ 8 single$", done.stdout, re.MULTILINE)
    assert "unsupported" not in done.stdout
    assert run_cli("inspect").stdout == done.stdout  # the shipped model is the default


def test_inspect_as_json(run_cli, demo_model):
    info = json.loads(run_cli("inspect", demo_model, "--json").stdout)
    assert (info["path"], info["class"], info["unsupported"]) == (str(demo_model), "FluxPipeline", "")
    assert {item["name"]: item["class"] for item in info["components"]} == COMPONENTS
    for item in info["components"]:
        assert item["unsupported"] == ""
        files = list((demo_model / item["name"]).glob("*.safetensors"))
        if not files:
            assert (item["parameters"], item["bytes"], item["dtype"]) == (0, 0, "")
            continue
        with safe_open(files[0], "pt") as file:
            tensors = [file.get_tensor(name) for name in file.keys()]
        assert item["dtype"] == "bf16"
        assert item["parameters"] == sum(tensor.numel() for tensor in tensors)
        assert item["bytes"] == sum(tensor.nbytes for tensor in tensors)


def test_inspect_tells_what_is_unsupported_and_why(run_cli, model_copy):
    index = json.loads((model_copy / "model_index.json").read_text())
    index["_class_name"] = "FluxFillPipeline"
    index["image_encoder"] = ["transformers", "CLIPVisionModelWithProjection"]
    (model_copy / "model_index.json").unlink()
    (model_copy / "model_index.json").write_text(json.dumps(index))
    config = json.loads((model_copy / "vae" / "config.json").read_text())
    (model_copy / "vae" / "config.json").unlink()
    (model_copy / "vae" / "config.json").write_text(json.dumps({**config, "shuffle": 2}))
    done = run_cli("inspect", model_copy, "--json")
    assert done.returncode == 0, done.stderr
    info = json.loads(done.stdout)
    assert "FluxImg2ImgPipeline" in info["unsupported"]
    reasons = {item["name"]: item["unsupported"] for item in info["components"] if item["unsupported"]}
    assert set(reasons) == {"image_encoder", "vae"}
    assert "CLIPVisionModelWithProjection" in reasons["image_encoder"]
    assert "shuffle" in reasons["vae"]
    table = run_cli("inspect", model_copy).stdout
    assert "unsupported: vae: " in table and "shuffle" in table


# The Hugging Face cache.


@pytest.fixture
def hub(tmp_path, demo_model):
    """A cache in which org/emoji has one snapshot, linked to blobs as the hub's own client does."""
    home = tmp_path / "hf"
    repository = home / "hub" / "models--org--emoji"
    commit = "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(demo_model, repository / "snapshots" / commit, copy_function=os.symlink)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return {"HF_HOME": str(home)}


def test_a_hub_name_is_found_in_the_cache(generate, hub):
    [path] = generate(*SMALL, "--model-path", "org/emoji", env=hub)
    assert "Model: org/emoji," in Image.open(path).text["parameters"]
    [shipped] = generate(*SMALL, "--save-path", "shipped.png")
    assert Image.open(path).tobytes() == Image.open(shipped).tobytes()
    elsewhere = {"HF_HUB_CACHE": str(pathlib.Path(hub["HF_HOME"]) / "hub")}
    assert generate(*SMALL, "--model-path", "org/emoji", env=elsewhere)


def test_inspect_takes_a_hub_name(run_cli, hub):
    done = run_cli("inspect", "org/emoji", env=hub)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].endswith("/snapshots/0123456789abcdef0123456789abcdef01234567")


@pytest.mark.parametrize(("name", "command"), [
    ("org/absent", "hf download org/absent"),
    ("org/emoji@v2", "hf download org/emoji --revision v2"),
])
@pytest.mark.parametrize("subcommand", [("inspect",), ("generate", "--prompt", "a", "--model-path")])
def test_what_the_cache_lacks_comes_with_the_command_that_fetches_it(run_cli, hub, subcommand, name, command):
    done = run_cli(*subcommand, name, env=hub)
    assert done.returncode == 1
    assert done.stdout == ""
    assert command in done.stderr
    assert name in done.stderr
