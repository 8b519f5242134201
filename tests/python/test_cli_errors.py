"""Bad requests: exit code 2 (or 1 for what the run met), a message that names what was given, and no file."""

import resource

import numpy as np
import pytest
from PIL import Image

FAST = ("--prompt", "red apple", "--steps", 1, "--width", 32, "--height", 32, "--threads", 1, "--seed", 1)


# The request.


@pytest.mark.parametrize(("arguments", "says"), [
    (("generate",), "--prompt"),
    (("generate", "--prompt"), "--prompt"),
    (("generate", "--prompt", "a", "--bogus", "1"), "--bogus"),
    (("generate", "--prompt", "a", "extra"), "extra"),
    (("generate", "--prompt", "a", "--prompt", "b"), "--prompt"),
    (("generate", "--prompt", "a", "--dtype", "fp9"), ("fp9", "bf16")),
    (("generate", "--prompt", "a", "--device", "tpu"), ("tpu", "cuda:N")),
    (("generate", "--prompt", "a", "--device", "cuda:x"), "cuda:x"),
    (("generate", "--prompt", "a", "--format", "gif"), ("gif", "webp")),
    (("generate", "--prompt", "a", "--output-type", "video"), ("video", "latent")),
    (("generate", "--prompt", "a", "--threads", "0"), ("threads", "0")),
    (("generate", "--prompt", "a", "--threads", "100000"), ("threads", "100000")),
    (("generate", "--prompt", "a", "--threads", "two"), ("threads", "two")),
    (("inspect", "a", "b"), "b"),
    (("compare", "a"), "b"),
    (("bogus",), "bogus"),
    ((), "subcommand"),
    *((("generate", "--prompt", "a", option, ""), option)
      for option in ("--model-path", "--save-path", "--json", "--image-path", "--contact-sheet")),
    (("generate", "--prompt-file", ""), "--prompt-file"),
    (("inspect", ""), "model"),
])
def test_usage(refused, arguments, says):
    refused(*arguments, code=2, says=says)


SETTINGS = {
    "--width": ["0", "-64", "8", "15", "1000000000", "1e9", "abc", "", "64.0", "0x40", "010", "nan",
                "99999999999999999999"],
    "--height": ["0", "-64", "8", "16385", "64px"],
    "--steps": ["0", "-1", "10001", "2.5", "many", "9223372036854775808"],
    "--num-inference-steps": ["0"],
    "--seed": ["-2", "1.5", "x", "9223372036854775808", "18446744073709551615"],
    "--num-images-per-prompt": ["0", "-1", "100000", "9223372036854775807"],
    "--max-sequence-length": ["0", "-1", "513"],
    "--guidance-scale": ["nan", "inf", "-1", "high"],
    "--true-cfg-scale": ["nan", "inf", "-1"],
    "--sigmas": ["0", "1.5", "-1", "nan", "1,0.5,0.7", "1,x", "1,0"],
}


@pytest.mark.parametrize(("option", "value"), [(o, v) for o, values in SETTINGS.items() for v in values])
def test_settings_out_of_range(refused, option, value):
    field = option.removeprefix("--").replace("-", "_").replace("num_inference_steps", "steps")
    message = refused("generate", "--prompt", "red apple", f"{option}={value}", code=2, says=())
    # In the library's spelling or in the command line's.
    assert field in message.replace("-", "_")
    if option != "--sigmas" and value:
        assert value in message
    else:
        assert any(part in message for part in value.split(","))


@pytest.mark.parametrize("strength", ["0", "1.5", "-0.5", "nan"])
def test_strength_out_of_range(refused, run_cli, strength):
    Image.new("RGB", (32, 32)).save(run_cli.folder / "a.png")
    refused("generate", "--prompt", "a", "--image-path", "a.png", f"--strength={strength}", code=2,
            says=("strength", strength), leaves=["a.png"])


def test_a_small_strength_still_runs_a_step(generate):
    Image.new("RGB", (32, 32)).save(generate.folder / "a.png")
    report = generate.report(*FAST[:2], "--image-path", "a.png", "--strength", "0.001", "--steps", 4)
    assert len(report["step_seconds"]) == 1


@pytest.mark.parametrize("option", ["--prompt", "--negative-prompt"])
@pytest.mark.parametrize("text", [b"caf\xe9", b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80"])
def test_texts_that_are_not_utf8(refused, option, text):
    other = ("--prompt", "a") if option != "--prompt" else ()
    refused("generate", option, text, *other, code=2, says=(option[2:].replace("-", " "), "UTF-8"))


@pytest.mark.parametrize(("arguments", "says"), [
    (("--prompt", "a", "--prompt-file", "p"), ("--prompt", "--prompt-file")),
    (("--prompt", "", "--prompt-file", "p"), ("--prompt", "--prompt-file")),
    (("--prompt", "a", "--strength", "0.5"), ("--strength", "--image-path")),
    (("--prompt", "a", "--save-path", "a.png", "--format", "jpg"), (".png", "jpg")),
    (("--prompt", "a", "--save-path", "a.safetensors"), (".safetensors", "picture")),
    (("--prompt", "a", "--save-path", "a.png", "--output-type", "latent"), (".png", "safetensors")),
    (("--prompt", "a", "--format", "png", "--output-type", "latent"), ("latent", "--format")),
    (("--prompt", "a", "--contact-sheet", "s.png", "--output-type", "latent"), ("latent", "--contact-sheet")),
    (("--prompt", "a", "--contact-sheet", "s.gif"), ".gif"),
    (("--prompt", "a", "--contact-sheet", "sheet"), "format"),
    (("--prompt", "a", "--sigmas", "1,0.5", "--steps", "3"), ("sigmas", "3", "2")),
    (("--prompt", "a", "--json", "x.png", "--save-path", "x.png"), ("--save-path", "--json", "x.png")),
    (("--prompt", "a", "--contact-sheet", "x.png", "--save-path", "x.png"), ("--contact-sheet", "x.png")),
])
def test_options_that_contradict_each_other(refused, arguments, says):
    refused("generate", *arguments, code=2, says=says)


# Pictures to start from.


def cut_png(path):
    Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)).save(path)
    path.write_bytes(path.read_bytes()[:-200])


@pytest.mark.parametrize(("make", "code", "says"), [
    (None, 1, "cannot read"),
    (lambda path: path.mkdir(), 1, "older"),
    (lambda path: path.write_bytes(b""), 2, "empty"),
    (lambda path: path.write_text("no picture at all"), 2, "PNG"),
    (lambda path: Image.new("RGB", (8, 8)).save(path, "GIF"), 2, "PNG"),
    (cut_png, 2, ""),
    (lambda path: Image.new("RGB", (1, 1)).save(path, "PNG"), 2, "at least 16"),
    (lambda path: Image.new("RGB", (20000, 16)).save(path, "PNG"), 2, "20000"),
], ids=["absent", "folder", "empty", "text", "gif", "cut off", "one pixel", "too wide"])
def test_pictures_that_cannot_be_used(refused, run_cli, make, code, says):
    if make:
        make(run_cli.folder / "start.png")
    message = refused("generate", *FAST[:4], "--image-path", "start.png", code=code, says=(),
                      leaves=["start.png"] if make else [])
    assert "start.png" in message or "at least 16" in message
    assert says in message


# Places to write to.


@pytest.fixture
def occupied(run_cli):
    (run_cli.folder / "file").write_text("")
    (run_cli.folder / "folder.png").mkdir()
    return ["file", "folder.png"]


@pytest.mark.parametrize(("option", "place"), [
    ("--save-path", "absent/a.png"), ("--save-path", "file/a.png"), ("--save-path", "file/folder"),
    ("--save-path", "file"), ("--save-path", "/proc/self/a.png"), ("--save-path", "a" * 300 + ".png"),
    ("--json", "absent/r.json"), ("--json", "folder.png"), ("--json", "file/r.json"),
    ("--contact-sheet", "absent/s.png"), ("--contact-sheet", "folder.png"),
])
def test_places_that_cannot_be_written_are_found_first(refused, occupied, option, place):
    # Before the checkpoint is looked at, let alone anything computed.
    for model in ("absent-model", None):
        refused("generate", *FAST, option, place, *(("--model-path", model) if model else ()), code=1,
                says=place, leaves=occupied)


# Devices and memory.


def test_cuda_without_cuda(refused, cli_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    for device in ("cuda", "cuda:0", "cuda:99"):
        refused("generate", *FAST, "--device", device, code=1, says=("CUDA", device, "cpu"))


@pytest.mark.parametrize("size", [4096, 16384])
def test_out_of_memory(refused, size):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))

    refused("generate", "--prompt", "red apple", "--steps", 1, "--width", size, "--height", size, "--threads", 1,
            "--num-images-per-prompt", 8, code=1, says=("memory", "--vae-tiling"), preexec_fn=limit)
