"""Quantized layers are made one after the other while a checkpoint loads: peak memory of whole processes."""

import json
import math
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

HEADS, HEAD, TEXT, POOLED, CHANNELS = 6, 128, 128, 128, 64  # widths of text: the demo model's encoders
WIDTH = HEADS * HEAD
DOUBLE, SINGLE = 3, 7
SHARDS = 2
MIB = 1 << 20


def linear(name, out, inputs):
    return {f"{name}.weight": (out, inputs), f"{name}.bias": (out,)}


def double_block(name):
    shapes = {}
    for norm in ("norm1", "norm1_context"):
        shapes |= linear(f"{name}.{norm}.linear", 6 * WIDTH, WIDTH)
    for layer in ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0", "to_add_out"):
        shapes |= linear(f"{name}.attn.{layer}", WIDTH, WIDTH)
    for norm in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
        shapes[f"{name}.attn.{norm}.weight"] = (HEAD,)
    for ff in ("ff", "ff_context"):
        shapes |= linear(f"{name}.{ff}.net.0.proj", 4 * WIDTH, WIDTH) | linear(f"{name}.{ff}.net.2", WIDTH, 4 * WIDTH)
    return shapes


def single_block(name):
    shapes = linear(f"{name}.norm.linear", 3 * WIDTH, WIDTH)
    for layer in ("to_q", "to_k", "to_v"):
        shapes |= linear(f"{name}.attn.{layer}", WIDTH, WIDTH)
    for norm in ("norm_q", "norm_k"):
        shapes[f"{name}.attn.{norm}.weight"] = (HEAD,)
    return shapes | linear(f"{name}.proj_mlp", 4 * WIDTH, WIDTH) | linear(f"{name}.proj_out", WIDTH, 5 * WIDTH)


def flux_shapes():
    shapes = linear("x_embedder", WIDTH, CHANNELS) | linear("context_embedder", WIDTH, TEXT)
    for embedder, inputs in (("timestep_embedder", 256), ("text_embedder", POOLED)):
        shapes |= linear(f"time_text_embed.{embedder}.linear_1", WIDTH, inputs)
        shapes |= linear(f"time_text_embed.{embedder}.linear_2", WIDTH, WIDTH)
    for i in range(DOUBLE):
        shapes |= double_block(f"transformer_blocks.{i}")
    for i in range(SINGLE):
        shapes |= single_block(f"single_transformer_blocks.{i}")
    return shapes | linear("norm_out.linear", 2 * WIDTH, WIDTH) | linear("proj_out", CHANNELS, WIDTH)


def random_tensor(name, shape, generator):
    """Values that keep a step finite."""
    if len(shape) == 1:
        return torch.full(shape, 1.0 if ".norm_" in name else 0.0, dtype=torch.bfloat16)
    return torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.5 / math.sqrt(shape[1]), generator=generator)


@pytest.fixture(scope="module")
def big_model(demo_model, tmp_path_factory):
    """A random FLUX of 260 MB in bf16, with the demo model's other components."""
    folder = tmp_path_factory.mktemp("flux")
    shutil.copytree(demo_model, folder / "model", copy_function=os.symlink,
                    ignore=shutil.ignore_patterns("transformer", "*.md", "*.png", "cache_*"))
    transformer = folder / "model" / "transformer"
    transformer.mkdir()
    generator = torch.Generator().manual_seed(0)
    shapes = list(flux_shapes().items())
    weight_map = {}
    for i in range(SHARDS):
        file = f"diffusion_pytorch_model-{i + 1:05}-of-{SHARDS:05}.safetensors"
        shard = {name: random_tensor(name, shape, generator)
                 for name, shape in shapes[len(shapes) * i // SHARDS:len(shapes) * (i + 1) // SHARDS]}
        save_file(shard, transformer / file)
        weight_map |= dict.fromkeys(shard, file)
    (transformer / "diffusion_pytorch_model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map}))
    (transformer / "config.json").write_text(json.dumps({
        "_class_name": "FluxTransformer2DModel", "attention_head_dim": HEAD, "axes_dims_rope": [16, 56, 56],
        "guidance_embeds": False, "in_channels": CHANNELS, "joint_attention_dim": TEXT, "num_attention_heads": HEADS,
        "num_layers": DOUBLE, "num_single_layers": SINGLE, "out_channels": None, "patch_size": 1,
        "pooled_projection_dim": POOLED}))
    yield folder / "model"
    shutil.rmtree(folder)


# The peak of a process that was forked counts what its parent held, which is LibTorch here: a small one starts it.
LAUNCHER = """
import os, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(child, 0)
print(usage.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.fixture
def peak_of(cli_path, cli_environment, tmp_path):
    """Peak resident bytes of a command that has to succeed, mapped pages of files included."""

    def run(*arguments):
        command = [sys.executable, "-I", "-S", "-c", LAUNCHER, cli_path, *arguments]
        done = subprocess.run(list(map(str, command)), cwd=tmp_path, env=cli_environment, capture_output=True,
                              text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def draw(peak_of, tmp_path):
    """One step: (peak, what the report says of the transformer)."""

    def run(*arguments):
        peak = peak_of("generate", "--prompt", "red apple", "--steps", 1, "--seed", 1, "--width", 64, "--height", 64,
                       "--threads", 1, "--dtype", "bf16", "--json", "report.json", *arguments)
        report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
        return peak, next(one for one in report["quantization"] if one["component"] == "transformer")

    return run


# All bounds are parts of the checkpoint's bf16 bytes, on top of the same run with the demo model, which is the program
# and LibTorch. The int8 weights are half of them and their scales less than a hundredth. The slack is 37 MiB: one layer
# at a time lies beside them (7 MiB in bf16 at most, its pages of the file, what packing needs), activations are wider
# than the demo model's, and peaks of one program differ by some MiB. A whole bf16 copy, be it pages of the mapped
# file, would add 1.0.
SLACK = 0.15


def test_layers_are_quantized_one_by_one(draw, big_model):
    program, _ = draw()
    plain, part = draw("--model-path", big_model)
    whole = part["stored_bytes"]
    assert 200 * MIB < whole < 300 * MIB and part["quantized_layers"] == 0
    assert plain - program > 0.9 * whole, "the peak shows weights that are held"
    quantized, part = draw("--model-path", big_model, "--quantize-type", "int8_per_row")
    assert part["types"] == {"int8_per_row": DOUBLE * 14 + SINGLE * 6}
    assert part["stored_bytes"] == whole
    assert part["bytes"] < 0.53 * whole
    assert quantized - program < (0.5 + SLACK) * whole


def test_a_written_checkpoint_is_held_once(draw, peak_of, big_model, demo_model, tmp_path):
    """Writing it takes what one shard's int8 weights do; drawing with it, what all of them do."""
    whole = sum(path.stat().st_size for path in (big_model / "transformer").glob("*.safetensors"))
    options = ("--quantize-type", "int8_per_row", "--threads", 1)
    program = peak_of("quantize", "--model-path", demo_model, *options, "--save-path", "demo")
    writing = peak_of("quantize", "--model-path", big_model, *options, "--save-path", "big")
    assert writing - program < (0.5 / SHARDS + SLACK) * whole
    program, _ = draw()
    mapped, part = draw("--model-path", "big")
    assert part["types"] == {"int8_per_row": DOUBLE * 14 + SINGLE * 6}
    assert part["stored_bytes"] < 0.53 * whole
    assert mapped - program < (0.5 + SLACK) * whole
    shutil.rmtree(tmp_path / "big")
