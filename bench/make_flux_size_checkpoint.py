"""A checkpoint whose transformer has FLUX.1-dev's size (19 double and 38 single blocks, 24 heads x 128, 11.9 billion
parameters, 22.2 GiB in bf16), random, with the demo model's text encoders and VAE, for measuring memory. Written shard
by shard: making it takes little memory. Needs numpy only.

    bench/make_flux_size_checkpoint.py [--remove]
"""

import argparse
import json
import shutil
import struct

import common

FOLDER = common.RESULTS / "flux-size"
DOUBLE, SINGLE = 19, 38
WIDTH, HEAD, TEXT, POOLED, CHANNELS = 3072, 128, 128, 128, 64  # text widths: the demo model's encoders
SHARD_BYTES = 4 << 30
# Repeated in every matrix: what the numbers are does not matter, only that a step stays finite.
PATTERN_BYTES = 64 << 20


def _linear(name, out, inputs):
    return [(f"{name}.weight", (out, inputs)), (f"{name}.bias", (out,))]


def _double_block(name):
    tensors = []
    for norm in ("norm1", "norm1_context"):
        tensors += _linear(f"{name}.{norm}.linear", 6 * WIDTH, WIDTH)
    for layer in ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0", "to_add_out"):
        tensors += _linear(f"{name}.attn.{layer}", WIDTH, WIDTH)
    for norm in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
        tensors.append((f"{name}.attn.{norm}.weight", (HEAD,)))
    for ff in ("ff", "ff_context"):
        tensors += _linear(f"{name}.{ff}.net.0.proj", 4 * WIDTH, WIDTH)
        tensors += _linear(f"{name}.{ff}.net.2", WIDTH, 4 * WIDTH)
    return tensors


def _single_block(name):
    tensors = _linear(f"{name}.norm.linear", 3 * WIDTH, WIDTH)
    for layer in ("to_q", "to_k", "to_v"):
        tensors += _linear(f"{name}.attn.{layer}", WIDTH, WIDTH)
    tensors += [(f"{name}.attn.{norm}.weight", (HEAD,)) for norm in ("norm_q", "norm_k")]
    tensors += _linear(f"{name}.proj_mlp", 4 * WIDTH, WIDTH)
    return tensors + _linear(f"{name}.proj_out", WIDTH, 5 * WIDTH)


def tensors():
    """Names and shapes, as diffusers' FluxTransformer2DModel has them."""
    every = _linear("x_embedder", WIDTH, CHANNELS) + _linear("context_embedder", WIDTH, TEXT)
    for embedder, inputs in (("timestep_embedder", 256), ("guidance_embedder", 256), ("text_embedder", POOLED)):
        every += _linear(f"time_text_embed.{embedder}.linear_1", WIDTH, inputs)
        every += _linear(f"time_text_embed.{embedder}.linear_2", WIDTH, WIDTH)
    for i in range(DOUBLE):
        every += _double_block(f"transformer_blocks.{i}")
    for i in range(SINGLE):
        every += _single_block(f"single_transformer_blocks.{i}")
    return every + _linear("norm_out.linear", 2 * WIDTH, WIDTH) + _linear("proj_out", CHANNELS, WIDTH)


def _size(shape):
    count = 2  # bytes of a bf16
    for entries in shape:
        count *= entries
    return count


def _bf16(values):
    import numpy

    return (values.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()


def _shards(every):
    shards, used = [[]], 0
    for name, shape in every:
        if used and used + _size(shape) > SHARD_BYTES:
            shards.append([])
            used = 0
        shards[-1].append((name, shape))
        used += _size(shape)
    return shards


def _write_shard(path, shard, pattern):
    import numpy

    header, offset = {}, 0
    for name, shape in shard:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + _size(shape)]}
        offset += _size(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shard:
            left = _size(shape)
            if len(shape) == 1:
                norm = ".norm_" in name
                file.write(_bf16(numpy.full(shape, 1.0 if norm else 0.0)))
                continue
            while left > 0:
                left -= file.write(memoryview(pattern)[:min(left, len(pattern))])


def ensure():
    """Writes the checkpoint unless it is there, and returns its folder."""
    if (FOLDER / "model_index.json").is_file():
        return FOLDER
    import numpy

    every = tensors()
    total = sum(_size(shape) for _, shape in every)
    free = shutil.disk_usage(common.RESULTS.parent).free
    if free < total * 1.1:
        raise SystemExit(f"{FOLDER}: needs {total / common.GIB:.1f} GiB, {free / common.GIB:.1f} GiB are free")
    print(f"making {FOLDER.relative_to(common.ROOT)}: {total / common.GIB:.1f} GiB", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    folder = FOLDER / "transformer"
    folder.mkdir(parents=True)
    pattern = _bf16(numpy.random.default_rng(0).normal(0.0, 0.005, PATTERN_BYTES // 2))
    shards = _shards(every)
    weight_map = {}
    for i, shard in enumerate(shards):
        name = f"diffusion_pytorch_model-{i + 1:05}-of-{len(shards):05}.safetensors"
        _write_shard(folder / name, shard, pattern)
        weight_map.update((tensor, name) for tensor, _ in shard)
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps({
        "_class_name": "FluxTransformer2DModel", "attention_head_dim": HEAD, "axes_dims_rope": [16, 56, 56],
        "guidance_embeds": True, "in_channels": CHANNELS, "joint_attention_dim": TEXT, "num_attention_heads": 24,
        "num_layers": DOUBLE, "num_single_layers": SINGLE, "out_channels": None, "patch_size": 1,
        "pooled_projection_dim": POOLED}, indent=2))
    shutil.copytree(common.DEMO_MODEL, FOLDER, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("transformer", "model_index.json", "*.md", "*.png"))
    shutil.copy(common.DEMO_MODEL / "model_index.json", FOLDER)  # last: it marks the folder as whole
    return FOLDER


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--remove", action="store_true", help="delete it")
    if parser.parse_args().remove:
        shutil.rmtree(FOLDER, ignore_errors=True)
    else:
        print(ensure())


if __name__ == "__main__":
    main()
