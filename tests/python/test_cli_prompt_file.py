"""--prompt-file: plain lines, JSON lines with settings of their own, and what is wrong with a line."""

import json

import pytest
from PIL import Image

FAST = ("--steps", 1, "--width", 32, "--height", 32, "--threads", 1)


@pytest.fixture
def prompt_file(run_cli):
    def write(text):
        path = run_cli.folder / "prompts"
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        return path

    return write


def lines(*objects):
    return "".join(json.dumps(item) + "\n" for item in objects)


@pytest.mark.parametrize("text", [
    "red apple\n\n# a remark\n  \t\nblue fish\n",
    "red apple\r\nblue fish\r\n",
    "\ufeffred apple\nblue fish",
])
def test_plain_lines(generate, prompt_file, text):
    report = generate.report("--prompt-file", prompt_file(text), *FAST, "--seed", 1)
    assert [output["prompt"] for output in report["outputs"]] == ["red apple", "blue fish"]
    assert [item["prompt"] for item in report["settings"]["prompts"]] == ["red apple", "blue fish"]
    assert report["settings"]["prompt_file"].endswith("/prompts")
    assert "[1/2]" in generate.stderr and "[2/2]" in generate.stderr


def test_lines_have_settings_of_their_own(generate, prompt_file):
    Image.new("RGB", (48, 32), (200, 0, 0)).save(generate.folder / "start.png")
    text = lines(
        {"prompt": "a"},
        {"prompt": "b", "steps": 3, "seed": 5, "width": 64, "height": 48},
        {"prompt": "c", "num_inference_steps": 2, "negative_prompt": "d", "true_cfg_scale": 2.5},
        {"prompt": "e", "sigmas": [1, 0.5], "steps": 2, "max_sequence_length": 8},
        {"prompt": "f", "image_path": "start.png", "strength": 0.5, "steps": 4, "num_images_per_prompt": 2},
        {"prompt": "g", "guidance_scale": 2, "seed": -1},
    )
    path = prompt_file("# settings\n" + text + "\n")
    report = generate.report("--prompt-file", path, *FAST, "--seed", 9, "--save-path", "out/")
    a, b, c, e, f, g = report["settings"]["prompts"]
    assert (a["seed"], a["num_inference_steps"], a["width"], a["height"]) == (9, 1, 32, 32)
    assert (b["seed"], b["num_inference_steps"], b["width"], b["height"]) == (5, 3, 64, 48)
    assert (c["num_inference_steps"], c["negative_prompt"], c["true_cfg_scale"]) == (2, "d", 2.5)
    assert (e["sigmas"], e["max_sequence_length"]) == ([1, 0.5], 8)
    assert (f["image_path"], f["strength"], f["num_images_per_prompt"]) == ("start.png", 0.5, 2)
    assert g["guidance_scale"] == 2 and g["seed"] != 9
    assert len(report["step_seconds"]) == 1 + 3 + 2 + 2 + 2 + 1
    assert len(report["outputs"]) == 7
    for output in report["outputs"]:
        with Image.open(generate.folder / output["path"]) as picture:
            assert picture.size == (output["width"], output["height"])
            assert f"Seed: {output['seed']}," in picture.text["parameters"]


def test_a_line_makes_the_picture_that_the_options_make(generate, prompt_file):
    path = prompt_file(lines({"prompt": "koala", "seed": 4, "steps": 2, "width": 48, "height": 32}))
    [from_line] = generate("--prompt-file", path, "--threads", 1, "--save-path", "a.png")
    [from_options] = generate("--prompt", "koala", "--seed", 4, "--steps", 2, "--width", 48, "--height", 32,
                              "--threads", 1, "--save-path", "b.png")
    assert from_line.read_bytes() == from_options.read_bytes()


def test_the_settings_of_a_report_make_the_same_pictures_again(generate, prompt_file):
    Image.new("RGB", (48, 32), (200, 0, 0)).save(generate.folder / "start.png")
    first = generate.report("--prompt", "koala", "--image-path", "start.png", "--strength", 0.4, "--steps", 5,
                            "--negative-prompt", "x", "--true-cfg-scale", 2, "--save-path", "a")
    path = prompt_file(lines(*first["settings"]["prompts"]))
    second = generate.report("--prompt-file", path, "--save-path", "b")
    assert second["settings"]["prompts"] == first["settings"]["prompts"]
    a, b = (generate.folder / report["outputs"][0]["path"] for report in (first, second))
    assert a.read_bytes() == b.read_bytes()


@pytest.mark.parametrize(("text", "number", "expected"), [
    (lines({"prompt": "a"}, {"prompt": "b", "stesp": 3}), 2, "stesp"),
    (lines({"prompt": "a", "steps": "3"}), 1, "steps"),
    (lines({"prompt": "a", "steps": 1.5}), 1, "steps"),
    (lines({"prompt": "a", "steps": True}), 1, "steps"),
    (lines({"prompt": "a", "width": [64]}), 1, "width"),
    (lines({"prompt": "a", "height": None}), 1, "height"),
    (lines({"prompt": 3}), 1, "prompt"),
    (lines({"prompt": ["a", "b"]}), 1, "prompt"),
    (lines({"prompt": "a", "seed": -2}), 1, "seed"),
    ('{"prompt": "a", "seed": 18446744073709551615}', 1, "18446744073709551615"),
    ('{"prompt": "a", "width": 9223372036854775809}', 1, "9223372036854775809"),
    (lines({"prompt": "a", "guidance_scale": "high"}), 1, "guidance_scale"),
    (lines({"prompt": "a", "sigmas": 0.5}), 1, "sigmas"),
    (lines({"prompt": "a", "sigmas": [1, "x"]}), 1, "sigmas"),
    (lines({"prompt": "a", "strength": 0.5}), 1, "strength"),
    (lines({"prompt": "a"}, {"seed": 3}), 2, "prompt"),
    (lines({"prompt": "a"}) + "\n# remark\n{\"prompt\": \n", 4, "JSON"),
    (lines({"prompt": "a"}) + "blue fish\n", 2, "JSON"),
    (lines({"prompt": "a"}) + "[1]\n", 2, "object"),
    (b'{"prompt": "a\xff"}\n', 1, "JSON"),
])
def test_a_bad_line_is_named(run_cli, prompt_file, text, number, expected):
    path = prompt_file(text)
    done = run_cli("generate", "--prompt-file", path, *FAST)
    assert done.returncode == 2, done.stderr
    assert f"{path}:{number}]" in done.stderr
    assert expected in done.stderr
    assert done.stdout == ""
    assert list(run_cli.folder.iterdir()) == [path]


@pytest.mark.parametrize(("text", "expected"), [
    ("", "holds no prompt"),
    ("# only\n\n  \n", "holds no prompt"),
    (b"caf\xe9\n", "UTF-8"),
    (b"a\0b\n", "zero byte"),
    (lines({"prompt": "a\0b"}), "zero byte"),
    (lines({"prompt": "a", "negative_prompt": "\0"}), "zero byte"),
])
def test_a_file_without_usable_prompts_is_refused(run_cli, prompt_file, text, expected):
    path = prompt_file(text)
    done = run_cli("generate", "--prompt-file", path, *FAST)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert list(run_cli.folder.iterdir()) == [path]


@pytest.mark.parametrize("name", ["absent.txt", "."])
def test_a_file_that_cannot_be_read_is_an_error(run_cli, name):
    done = run_cli("generate", "--prompt-file", name, *FAST)
    assert done.returncode == 1
    assert f"[{name}]" in done.stderr
