"""`cachedit generate` as a user meets it: pictures, their names and texts, and what options do."""

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

SMALL = ("--prompt", "red apple", "--steps", 2, "--seed", 7, "--threads", 1, "--width", 32, "--height", 32)


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# Pictures and their texts.


def test_a_picture_carries_its_prompt_and_settings(generate):
    paths = generate("--prompt", "red apple, café", "--steps", 3, "--seed", 42, "--width", 64, "--height",
                     48, "--threads", 1, "--negative-prompt", "blue", "--true-cfg-scale", 2, "--save-path",
                     "apple.png")
    assert paths == [generate.folder / "apple.png"]
    with Image.open(paths[0]) as picture:
        assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (64, 48))
        text = picture.text["parameters"]
    prompt, negative, settings = text.split("\n")
    assert prompt == "red apple, café"
    assert negative == "Negative prompt: blue"
    fields = dict(item.split(": ", 1) for item in settings.split(", "))
    assert fields["Steps"] == "3"
    assert fields["Seed"] == "42"
    assert fields["Size"] == "64x48"
    assert fields["CFG scale"] == "2"
    assert fields["Model"] == "emoji-flux"  # its name; the folder is nobody else's business
    assert fields["Version"].startswith("cachedit ")


def test_the_picture_is_the_model_s_own_size_by_default(generate):
    [path] = generate("--prompt", "koala", "--steps", 1, "--seed", 1, "--threads", 1)
    assert path.name == "000-koala-128x128-seed1.png"
    with Image.open(path) as picture:
        assert picture.size == (128, 128)


@pytest.mark.parametrize(("arguments", "name", "kind"), [
    (("--save-path", "a.jpg"), "a.jpg", "JPEG"),
    (("--save-path", "a.JPEG"), "a.JPEG", "JPEG"),
    (("--save-path", "a.webp"), "a.webp", "WEBP"),
    (("--save-path", "a.png", "--format", "png"), "a.png", "PNG"),
    (("--format", "jpg"), "000-red-apple-32x32-seed7.jpg", "JPEG"),
    (("--format", "jpeg"), "000-red-apple-32x32-seed7.jpg", "JPEG"),
    (("--format", "webp", "--save-path", "deep/er"), "deep/er/000-red-apple-32x32-seed7.webp", "WEBP"),
    (("--save-path", "folder/"), "folder/000-red-apple-32x32-seed7.png", "PNG"),
])
def test_formats_and_places(generate, arguments, name, kind):
    [path] = generate(*SMALL, *arguments)
    assert path == generate.folder / name
    assert files_in(generate.folder) == [name]
    with Image.open(path) as picture:
        assert (picture.format, picture.size) == (kind, (32, 32))


def test_formats_hold_the_same_picture(generate):
    pixels = {}
    for kind in ("png", "webp", "jpg"):
        with Image.open(generate(*SMALL, "--save-path", f"a.{kind}")[0]) as picture:
            pixels[kind] = np.asarray(picture.convert("RGB"), np.float64)
    assert np.array_equal(pixels["png"], pixels["webp"])
    assert np.abs(pixels["png"] - pixels["jpg"]).mean() < 8


def test_an_existing_file_is_replaced(generate):
    (generate.folder / "a.png").write_text("old")
    [path] = generate(*SMALL, "--save-path", "a.png")
    Image.open(path).verify()
    assert files_in(generate.folder) == ["a.png"]


def test_two_prompts_and_two_images_make_four_files_of_the_size_in_their_names(generate):
    (generate.folder / "prompts.txt").write_text("red apple\nkoala\n", encoding="utf-8")
    paths = generate("--prompt-file", "prompts.txt", "--num-images-per-prompt", 2, "--steps", 1, "--seed", 3,
                     "--width", 50, "--height", 32, "--threads", 1, "--save-path", "out")
    assert [path.name for path in paths] == [
        "000-red-apple-48x32-seed3-0.png", "001-red-apple-48x32-seed3-1.png",
        "002-koala-48x32-seed3-0.png", "003-koala-48x32-seed3-1.png"]
    assert len({path.read_bytes() for path in paths}) == 4
    for path in paths:
        with Image.open(path) as picture:
            assert picture.size == (48, 32)
    assert "50" in generate.stderr and "48" in generate.stderr  # the size that was floored, and to what


def test_several_pictures_for_one_file_name_are_numbered(generate):
    paths = generate(*SMALL, "--num-images-per-prompt", 2, "--save-path", "a.png")
    assert [path.name for path in paths] == ["a-0.png", "a-1.png"]
    assert files_in(generate.folder) == ["a-0.png", "a-1.png"]


def test_the_first_of_several_images_is_the_one_that_a_single_request_makes(generate):
    fp32 = (*SMALL, "--dtype", "fp32")
    first, second, third = (np.asarray(Image.open(path), np.int16)
                            for path in generate(*fp32, "--num-images-per-prompt", 3))
    single = np.asarray(Image.open(generate(*fp32, "--save-path", "one.png")[0]), np.int16)
    assert np.abs(first - single).max() <= 1  # larger products may add up in another order
    assert min(np.abs(a - b).max() for a, b in ((first, second), (first, third), (second, third))) > 4


def test_contact_sheet(generate):
    paths = generate(*SMALL, "--num-images-per-prompt", 6, "--contact-sheet", "sheet.png", "--save-path", "p")
    assert len(paths) == 7
    assert paths[-1].name == "sheet.png"
    sheet = np.asarray(Image.open(paths[-1]))
    assert sheet.shape == (64, 128, 3)
    for index, path in enumerate(paths[:-1]):
        y, x = index // 4 * 32, index % 4 * 32
        assert np.array_equal(sheet[y:y + 32, x:x + 32], np.asarray(Image.open(path)))
    assert (sheet[32:, 64:] == 255).all()


def test_latents(generate):
    [path] = generate(*SMALL[:-2], "--height", 48, "--num-images-per-prompt", 2, "--output-type", "latent")
    assert path.suffix == ".safetensors"
    with safe_open(path, "np") as file:
        assert list(file.keys()) == ["latents"]
        assert file.get_slice("latents").get_dtype() == "BF16"
        assert file.get_slice("latents").get_shape() == [2, 6, 64]
        metadata = file.metadata()
    assert (metadata["height"], metadata["width"]) == ("48", "32")
    assert "Seed: 7" in metadata["parameters"]
    [path] = generate(*SMALL, "--output-type", "latent", "--dtype", "fp32", "--save-path", "a.safetensors")
    with safe_open(path, "np") as file:
        latents = file.get_tensor("latents")
    assert latents.dtype == np.float32 and latents.shape == (1, 4, 64)
    assert np.isfinite(latents).all() and latents.std() > 0.1


# Seeds.


def test_a_fixed_seed_repeats_byte_for_byte(generate):
    first, again = (generate(*SMALL, "--save-path", name)[0].read_bytes() for name in ("a.png", "b.png"))
    assert again == first
    other = generate(*SMALL[:4], "--seed", 8, *SMALL[6:], "--save-path", "c.png")[0]
    assert not np.array_equal(np.asarray(Image.open(other)), np.asarray(Image.open(generate.folder / "a.png")))


@pytest.mark.parametrize("seed", [(), ("--seed", -1)], ids=["none", "-1"])
def test_no_seed_means_another_one_each_time_which_is_told(generate, seed):
    unseeded = ("--prompt", "koala", "--steps", 1, "--width", 32, "--height", 32, "--threads", 1, *seed)
    outputs = [generate.report(*unseeded)["outputs"][0] for _ in range(2)]
    assert outputs[0]["seed"] != outputs[1]["seed"]
    first = (generate.folder / outputs[0]["path"]).read_bytes()
    assert first != (generate.folder / outputs[1]["path"]).read_bytes()
    [again] = generate("--prompt", "koala", "--steps", 1, "--width", 32, "--height", 32, "--threads", 1,
                       "--seed", outputs[0]["seed"], "--save-path", "again.png")
    assert again.read_bytes() == first


def test_prompts_of_a_file_get_seeds_of_their_own(generate):
    (generate.folder / "prompts.txt").write_text("a\na\n")
    report = generate.report("--prompt-file", "prompts.txt", "--steps", 1, "--width", 32, "--height", 32,
                       "--threads", 1)
    assert len({output["seed"] for output in report["outputs"]}) == 2


def test_the_largest_seed(generate):
    report = generate.report(*SMALL[:2], "--steps", 1, "--width", 32, "--height", 32, "--seed", 2**63 - 1)
    assert report["outputs"][0]["seed"] == 2**63 - 1


# What options do.


def pixels_of(generate, *arguments):
    return np.asarray(Image.open(generate(*SMALL, *arguments, "--save-path", "x.png")[0]), np.int16)


def test_sigmas_set_the_steps(generate):
    small = ("--prompt", "koala", "--seed", 7, "--width", 32, "--height", 32, "--threads", 1)
    report = generate.report(*small, "--sigmas", "1,0.7,0.3")
    assert len(report["step_seconds"]) == 3
    assert report["settings"]["prompts"][0]["sigmas"] == [1, 0.7, 0.3]
    even, same, other = (np.asarray(Image.open(generate(*small, *option, "--save-path", "a.png")[0]))
                         for option in (("--steps", 2), ("--sigmas", "1,0.5"), ("--sigmas", "1,0.9")))
    assert np.array_equal(even, same)
    assert not np.array_equal(even, other)


def test_image_to_image_runs_the_last_steps_and_keeps_the_picture_s_size(generate):
    picture = np.zeros((48, 80, 3), np.uint8)
    picture[:, :40] = (200, 30, 30)
    Image.fromarray(picture).save(generate.folder / "start.png")
    start = ("--prompt", "red apple", "--seed", 1, "--steps", 10, "--threads", 1, "--image-path", "start.png")
    report = generate.report(*start, "--strength", 0.3)
    assert len(report["step_seconds"]) == 3
    settings = report["settings"]["prompts"][0]
    # What was asked for, so that the settings make the same picture again.
    assert (settings["num_inference_steps"], settings["strength"]) == (10, 0.3)
    [output] = report["outputs"]
    assert (output["width"], output["height"]) == (80, 48)
    weak = Image.open(generate.folder / output["path"])
    assert "Denoising strength: 0.3" in weak.text["parameters"]
    strong = generate.report(*start, "--strength", 1.0)
    assert len(strong["step_seconds"]) == 10
    distance = [np.abs(np.asarray(p, np.int16) - picture).mean()
                for p in (weak, Image.open(generate.folder / strong["outputs"][0]["path"]))]
    assert distance[0] < distance[1]
    default = generate.report(*start)["settings"]["prompts"][0]
    assert default["strength"] == 0.6
    sized = generate.report(*start, "--width", 32)["outputs"][0]
    assert (sized["width"], sized["height"]) == (32, 48)


def test_pictures_of_every_kind_start_image_to_image(generate):
    gradient = np.linspace(0, 255, 40 * 56 * 3).reshape(40, 56, 3).astype(np.uint8)
    picture = Image.fromarray(gradient)
    picture.save(generate.folder / "a.png")
    picture.save(generate.folder / "a.webp", lossless=True)
    picture.convert("RGBA").save(generate.folder / "b.png")
    results = {name: pixels_of(generate, "--image-path", name).tobytes() for name in ("a.png", "a.webp", "b.png")}
    assert len(set(results.values())) == 1
    picture.convert("L").save(generate.folder / "grey.png")
    picture.save(generate.folder / "a.jpg")
    for name in ("grey.png", "a.jpg"):
        assert pixels_of(generate, "--image-path", name).shape == (32, 32, 3)


def test_vae_slicing_changes_nothing_and_tiling_little(generate):
    plain = generate(*SMALL, "--num-images-per-prompt", 2, "--save-path", "a")
    sliced = generate(*SMALL, "--num-images-per-prompt", 2, "--vae-slicing", "--save-path", "b")
    for one, other in zip(plain, sliced, strict=True):
        difference = np.asarray(Image.open(one), np.int16) - np.asarray(Image.open(other), np.int16)
        assert np.abs(difference).max() <= 2
    # Larger than a tile, so that tiles are cut and blended.
    large = ("--width", 192, "--height", 160)
    fp32 = ("--prompt", "red apple", "--seed", 7, "--steps", 4, "--threads", 1, "--dtype", "fp32", *large)
    whole = np.asarray(Image.open(generate(*fp32, "--save-path", "a.png")[0]), np.float64)
    tiled = np.asarray(Image.open(generate(*fp32, "--vae-tiling", "--save-path", "b.png")[0]), np.float64)
    assert not np.array_equal(whole, tiled)
    assert 10 * np.log10(255**2 / ((whole - tiled) ** 2).mean()) >= 30


def test_dtypes(generate):
    pictures = {dtype: pixels_of(generate, "--dtype", dtype) for dtype in ("auto", "bf16", "fp32", "fp16")}
    assert np.array_equal(pictures["auto"], pictures["bf16"])
    assert not np.array_equal(pictures["fp32"], pictures["bf16"])
    for dtype in ("bf16", "fp16"):
        assert np.abs(pictures["fp32"] - pictures[dtype]).mean() < 8


def test_a_long_prompt_is_cut_with_a_warning_that_names_what_was_cut(generate):
    prompt = " ".join(["red apple"] * 30 + ["zebra"])
    generate("--prompt", prompt, "--steps", 1, "--seed", 1, "--width", 32, "--height", 32)
    warnings = [line for line in generate.stderr.splitlines() if "warning" in line]
    assert len(warnings) == 2  # one for each encoder
    assert all("zebra" in line for line in warnings)


@pytest.mark.parametrize(("arguments", "expected"), [
    (("--negative-prompt", "blue"), "negative prompt has no effect"),
    (("--true-cfg-scale", "3"), "has no effect without a negative prompt"),
    (("--guidance-scale", "5"), "guidance_scale 5 has no effect"),
])
def test_settings_without_effect_are_told(generate, arguments, expected):
    generate(*SMALL, *arguments)
    assert expected in generate.stderr


def test_sizes_are_floored_with_a_warning_that_names_both(generate):
    [path] = generate("--prompt", "a", "--steps", 1, "--seed", 1, "--width", 95, "--height", 64)
    assert "95 x 64" in generate.stderr and "80 x 64" in generate.stderr
    with Image.open(path) as picture:
        assert picture.size == (80, 64)


def test_true_cfg_needs_both_and_changes_the_picture(generate):
    plain = pixels_of(generate)
    assert np.array_equal(pixels_of(generate, "--negative-prompt", "blue"), plain)
    assert not np.array_equal(pixels_of(generate, "--negative-prompt", "blue", "--true-cfg-scale", 3), plain)
    # An empty negative prompt is one.
    assert not np.array_equal(pixels_of(generate, "--negative-prompt", "", "--true-cfg-scale", 3), plain)


def test_an_empty_prompt_is_a_prompt(generate):
    [path] = generate("--prompt", "", "--steps", 1, "--seed", 1, "--width", 32, "--height", 32)
    assert path.name == "000-picture-32x32-seed1.png"
