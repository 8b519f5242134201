"""Checkpoints that are damaged, incomplete or of another kind: exit code 1, and the fault is named."""

import json
import struct

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

FAST = ("--prompt", "red apple", "--steps", 1, "--width", 32, "--height", 32, "--threads", 1, "--seed", 1)


def edit_json(path, change):
    value = json.loads(path.read_text(encoding="utf-8"))
    change(value)
    path.unlink()
    path.write_text(json.dumps(value), encoding="utf-8")


def replace(path, content):
    path.unlink()
    path.write_bytes(content)


@pytest.mark.parametrize(("model", "says"), [
    ("absent/folder/deep", "no such folder"), ("./absent", "no such folder"),
    ("file", "file"), ("folder", "model_index.json"), ("org/absent", "hf download org/absent"),
])
@pytest.mark.parametrize("command", ["generate", "inspect"])
def test_no_checkpoint(refused, run_cli, command, model, says):
    (run_cli.folder / "file").write_text("x")
    (run_cli.folder / "folder").mkdir()
    arguments = ("generate", *FAST, "--model-path", model) if command == "generate" else ("inspect", model)
    refused(*arguments, code=1, says=says, leaves=["file", "folder"])


def set_index(**values):
    return lambda model: edit_json(model / "model_index.json", lambda index: index.update(values))


def drop_index(name):
    return lambda model: edit_json(model / "model_index.json", lambda index: index.pop(name))


def set_config(component, file="config.json", **values):
    return lambda model: edit_json(model / component / file, lambda config: config.update(values))


def remove(path):
    return lambda model: (model / path).unlink()


def remove_folder(name):
    def change(model):
        for path in (model / name).iterdir():
            path.unlink()
        (model / name).rmdir()

    return change


def write(path, content):
    return lambda model: replace(model / path, content)


LAYOUT = {
    "index not JSON": (write("model_index.json", b"{"), ["model_index.json"]),
    "index a list": (write("model_index.json", b"[]"), ["model_index.json", "_class_name"]),
    "index without a class": (drop_index("_class_name"), ["model_index.json", "_class_name"]),
    "another pipeline": (set_index(_class_name="WanPipeline"), ["WanPipeline", "FluxPipeline"]),
    "component not listed": (drop_index("vae"), ["vae", "AutoencoderKL"]),
    "component null": (set_index(vae=[None, None]), ["vae", "AutoencoderKL"]),
    "component malformed": (set_index(vae=["diffusers"]), ["vae"]),
    "component of another class": (set_index(text_encoder_2=["transformers", "CLIPTextModel"]),
                                   ["text_encoder_2", "T5EncoderModel", "CLIPTextModel"]),
    "another scheduler": (set_index(scheduler=["diffusers", "DDIMScheduler"]),
                          ["DDIMScheduler", "FlowMatchEulerDiscreteScheduler"]),
    "component folder missing": (remove_folder("vae"), ["vae"]),
    "config missing": (remove("transformer/config.json"), ["transformer", "config.json"]),
    "config not JSON": (write("vae/config.json", b"\xff\xfe"), ["vae", "config.json"]),
    "config of another class": (set_config("transformer", _class_name="SD3Transformer2DModel"),
                                ["transformer", "SD3Transformer2DModel"]),
    "scheduler of another class": (
        set_config("scheduler", "scheduler_config.json", _class_name="EulerDiscreteScheduler"),
        ["EulerDiscreteScheduler"]),
    "unknown key": (set_config("transformer", rope_theta=5), ["transformer", "rope_theta", "5"]),
    "unknown key of the VAE": (set_config("vae", extra_blocks=3), ["vae", "extra_blocks"]),
    "unknown key of the scheduler": (
        set_config("scheduler", "scheduler_config.json", power=3), ["scheduler", "power"]),
    "value of the wrong type": (set_config("transformer", num_layers="four"), ["num_layers", "four"]),
    "value out of range": (set_config("transformer", num_layers=-1), ["num_layers", "-1"]),
    "rotary sizes that do not add up": (set_config("transformer", axes_dims_rope=[8, 8, 8]),
                                        ["axes_dims_rope"]),
    "more layers than weights": (set_config("transformer", num_layers=5), ["transformer_blocks.4."]),
    "fewer layers than weights": (set_config("transformer", num_layers=3), ["transformer_blocks.3."]),
    "channels that do not fit": (set_config("vae", latent_channels=8), ["decoder.conv_in.weight", "[64, 8, 3, 3]", "[64, 16, 3, 3]"]),
    "weights missing": (remove("vae/diffusion_pytorch_model.safetensors"),
                        ["vae", "diffusion_pytorch_model.safetensors"]),
    "vocabulary missing": (remove("tokenizer/vocab.json"), ["vocab.json"]),
    "merges missing": (remove("tokenizer/merges.txt"), ["merges.txt"]),
    "piece model damaged": (write("tokenizer_2/spiece.model", b"\x01\x02\x03"), ["spiece.model"]),
    "piece model missing": (remove("tokenizer_2/spiece.model"), ["spiece.model"]),
}


@pytest.mark.parametrize("fault", LAYOUT)
def test_checkpoints_that_do_not_fit(refused, model_copy, fault):
    change, says = LAYOUT[fault]
    if fault.endswith("missing") and fault.split()[0] in ("vocabulary", "merges", "piece"):
        for path in model_copy.glob("tokenizer*/tokenizer.json"):
            path.unlink()  # it holds the same in another form
    change(model_copy)
    refused("generate", *FAST, "--model-path", model_copy, code=1, says=says)


def test_index_of_image_to_image_is_the_same_model(run_cli, model_copy):
    set_index(_class_name="FluxImg2ImgPipeline")(model_copy)
    assert run_cli("generate", *FAST, "--model-path", model_copy).returncode == 0


# Weights.

VAE = "vae/diffusion_pytorch_model.safetensors"
TENSOR = "decoder.conv_in.bias"


def edit_tensors(path, change):
    tensors = load_file(path)
    change(tensors)
    path.unlink()
    save_file(tensors, path)


def set_tensor(name, value):
    def change(tensors):
        tensors[name] = value

    return lambda model: edit_tensors(model / VAE, change)


def drop_tensor(name):
    return lambda model: edit_tensors(model / VAE, lambda tensors: tensors.pop(name))


def edit_header(change):
    """Changes the JSON header of the VAE's file; the data stays as it is."""

    def edit(model):
        content = (model / VAE).read_bytes()
        [length] = struct.unpack("<Q", content[:8])
        header = json.loads(content[8:8 + length])
        changed = change(header)
        text = changed if isinstance(changed, bytes) else json.dumps(header).encode()
        replace(model / VAE, struct.pack("<Q", len(text)) + text + content[8 + length:])

    return edit


def entry(**values):
    return edit_header(lambda header: header[TENSOR].update(values))


def move(begin, end):
    """Moves a tensor's bytes relative to where they are."""
    def change(header):
        offsets = header[TENSOR]["data_offsets"]
        header[TENSOR]["data_offsets"] = [offsets[0] + begin, offsets[1] + end]

    return edit_header(change)


def twice(header):
    text = json.dumps(header)
    item = json.dumps({TENSOR: header[TENSOR]})[1:-1]
    return (text[:-1] + ", " + item + "}").encode()


def cut(count):
    return lambda model: replace(model / VAE, (model / VAE).read_bytes()[:-count])


def length_field(value):
    return lambda model: replace(model / VAE, struct.pack("<Q", value) + (model / VAE).read_bytes()[8:])


WEIGHTS = {
    "tensor missing": (drop_tensor(TENSOR), ["missing (1)", TENSOR]),
    "tensor too many": (set_tensor("decoder.surplus", torch.zeros(3)), ["decoder.surplus", "[3]"]),
    "tensor of another shape": (set_tensor(TENSOR, torch.zeros(5)), [TENSOR, "[64]", "[5]"]),
    "tensor of another rank": (set_tensor(TENSOR, torch.zeros(64, 1)), [TENSOR, "[64]", "[64, 1]"]),
    "empty file": (write(VAE, b""), ["0 bytes"]),
    "seven bytes": (write(VAE, b"1234567"), ["7 bytes"]),
    "sixteen bytes": (write(VAE, struct.pack("<Q", 4) + b"abcdefgh"), ["not a safetensors file"]),
    "a web page": (write(VAE, b"<!DOCTYPE html><html>not found</html>"), ["not a safetensors file"]),
    "one byte cut off": (cut(1), ["truncated"]),
    "half cut off": (cut(1_000_000), ["truncated"]),
    "header length 0": (length_field(0), ["0 bytes"]),
    "header length beyond the file": (length_field(1 << 30), [str(1 << 30)]),
    "header length 2^63": (length_field(1 << 63), [str(1 << 63)]),
    "header length 2^64 - 1": (length_field((1 << 64) - 1), [str((1 << 64) - 1)]),
    "header not JSON": (edit_header(lambda header: b"{'a': 1}"), ["JSON"]),
    "header not UTF-8": (edit_header(lambda header: b'{"\xff": 1}'), ["JSON"]),
    "header a list": (edit_header(lambda header: b"[]"), ["JSON object"]),
    "header nested too deep": (edit_header(lambda header: b'{"a":' * 100_000), ["JSON"]),
    "duplicate names": (edit_header(twice), [TENSOR, "duplicate"]),
    "overlap": (move(-2, -2), ["overlap"]),
    "bytes before the file": (entry(data_offsets=[-128, 0]), [TENSOR, "-128"]),
    "bytes after the file": (entry(data_offsets=[1 << 40, (1 << 40) + 128]), [TENSOR, "truncated"]),
    "bytes that end before they begin": (entry(data_offsets=[256, 128]), [TENSOR, "256"]),
    "bytes that do not fit the shape": (move(0, 2), [TENSOR, "128 bytes"]),
    "negative dimension": (entry(shape=[-64]), [TENSOR, "-64"]),
    "shape that overflows": (entry(shape=[1 << 32, 1 << 32]), [TENSOR, "overflow"]),
    "unknown dtype": (entry(dtype="BF17"), [TENSOR, "BF17"]),
    "dtype that is no text": (entry(dtype=3), [TENSOR, "dtype"]),
    "entry without shape": (edit_header(lambda header: header[TENSOR].pop("shape") and None), [TENSOR, "shape"]),
    "entry a text": (edit_header(lambda header: header.update({TENSOR: "here"})), [TENSOR, "here"]),
}


@pytest.mark.parametrize("fault", WEIGHTS)
def test_damaged_weights(refused, model_copy, fault):
    change, says = WEIGHTS[fault]
    change(model_copy)
    refused("generate", *FAST, "--model-path", model_copy, code=1, says=["vae", *says])


@pytest.mark.parametrize("fault", ["one byte cut off", "header not JSON", "unknown dtype"])
def test_inspect_reports_damaged_weights(run_cli, model_copy, fault):
    change, says = WEIGHTS[fault]
    change(model_copy)
    done = run_cli("inspect", model_copy, "--json")
    assert done.returncode == 0, done.stderr
    [reason] = [item["unsupported"] for item in json.loads(done.stdout)["components"] if item["unsupported"]]
    assert all(text in reason for text in says)


def shard(model, change=None):
    """Splits the VAE into two files with an index, as diffusers does."""
    tensors = load_file(model / VAE)
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, model / "vae" / file)
    (model / VAE).unlink()
    index = {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}
    if change:
        change(index["weight_map"], names)
    (model / f"{VAE}.index.json").write_text(json.dumps(index))


def test_shards_make_the_same_picture(generate, model_copy):
    [whole] = generate(*FAST, "--save-path", "a.png")
    shard(model_copy)
    [sharded] = generate(*FAST, "--save-path", "b.png", "--model-path", model_copy)
    assert np.array_equal(np.asarray(Image.open(whole)), np.asarray(Image.open(sharded)))


def point_to(file):
    return lambda index, names: index.update({names[0]: file})


@pytest.mark.parametrize(("change", "says"), [
    (point_to("c.safetensors"), ["c.safetensors"]),
    (point_to("../vae/a.safetensors"), ["../vae/a.safetensors", "folder"]),
    (point_to("/etc/passwd"), ["/etc/passwd", "folder"]),
    (point_to(".."), ["..", "folder"]),
    (point_to(3), ["3"]),
    (lambda index, names: index.update({"decoder.promised": "a.safetensors"}), ["decoder.promised"]),
    (lambda index, names: index.pop(TENSOR), [TENSOR]),
    (lambda index, names: index.clear(), ["weight_map"]),
], ids=["absent", "outside", "absolute", "parent", "number", "not in its shard", "not in the index", "empty"])
def test_damaged_indexes(refused, model_copy, change, says):
    shard(model_copy, change)
    refused("generate", *FAST, "--model-path", model_copy, code=1, says=["vae", *says])


def test_all_absent_shards_are_named(refused, model_copy):
    shard(model_copy)
    for name in ("a", "b"):
        (model_copy / "vae" / f"{name}.safetensors").unlink()
    refused("generate", *FAST, "--model-path", model_copy, code=1, says=["a.safetensors", "b.safetensors"])


def test_pickles_are_not_read(refused, model_copy):
    (model_copy / VAE).unlink()
    (model_copy / "vae" / "diffusion_pytorch_model.bin").write_bytes(b"pickle")
    refused("generate", *FAST, "--model-path", model_copy, code=1,
            says=["only safetensors are read", "diffusion_pytorch_model.bin"])


def test_weights_that_are_not_finite_are_refused_instead_of_drawn(refused, model_copy):
    path = model_copy / "transformer" / "diffusion_pytorch_model.safetensors"

    def change(tensors):
        tensors["proj_out.bias"].fill_(float("nan"))

    edit_tensors(path, change)
    refused("generate", *FAST, "--model-path", model_copy, "--dtype", "fp32", "--quiet", code=1, says="finite")
