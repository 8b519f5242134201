"""The VAE against diffusers, live: the demo model, a model of FLUX.1's shape, tiles and slices.

Needs the probe (CACHEDIT_PROBE, or build/release/tests/cachedit_probe) and the peers' Python.
"""

import json
import os
import pathlib
import subprocess

import pytest
import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROBE = pathlib.Path(os.environ.get("CACHEDIT_PROBE", ROOT / "build/release/tests/cachedit_probe"))
DEMO = ROOT / "models" / "emoji-flux" / "vae"
# One thread each: two pools that wait for each other on a loaded machine crawl.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
torch.set_num_threads(1)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# fp32: the order of summation. bfloat16: how far the peer itself is from its fp32.
TOLERANCE = {"fp32": 1e-5, "bf16": 3e-2}


def random(seed, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def picture(batch, height, width):
    """Smooth, in [-1, 1]."""
    small = random(height + width, (batch, 3, 6, 6))
    return torch.nn.functional.interpolate(small, (height, width), mode="bicubic").clamp(-1, 1)


def probe(direction, folder, tmp_path, tensors, **options):
    given, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    save_file(tensors, given)
    done = subprocess.run([PROBE, "vae", direction, folder, given, out, json.dumps(options)],
                          text=True, capture_output=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return load_file(out)


def relative_error(got, want):
    assert got.shape == want.shape
    got, want = got.double(), want.double()
    return ((got - want).norm() / want.norm()).item()


def load(folder, dtype="fp32"):
    return AutoencoderKL.from_pretrained(folder, torch_dtype=DTYPES[dtype]).eval()


def check(vae, folder, tmp_path, pixels, dtype="fp32", **options):
    """Both sides encode `pixels`, draw from the latents and decode them."""
    with torch.inference_mode():
        posterior = vae.encode(pixels.to(vae.dtype)).latent_dist
        latents = posterior.mean.contiguous()
        decoded = vae.decode(latents).sample
    encoded = probe("encode", folder, tmp_path, {"pixels": pixels}, dtype=dtype, seed=5, **options)
    for name, want in (("mean", latents), ("logvar", posterior.logvar),
                       ("sample", posterior.sample(torch.Generator().manual_seed(5)))):
        assert encoded[name].dtype == want.dtype
        assert relative_error(encoded[name], want) <= TOLERANCE[dtype], name
    got = probe("decode", folder, tmp_path, {"latents": latents}, dtype=dtype, **options)["pixels"]
    assert got.dtype == decoded.dtype
    assert relative_error(got, decoded) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch,height,width", [(1, 128, 128), (2, 72, 160), (1, 8, 8), (3, 16, 24),
                                                (1, 384, 256)])
def test_demo(batch, height, width, dtype, tmp_path):
    check(load(DEMO, dtype), DEMO, tmp_path, picture(batch, height, width), dtype)


# Settings with which diffusers' pixels and latents are cut alike.
@pytest.mark.parametrize("height,width", [(256, 256), (136, 128), (320, 200), (64, 520)])
@pytest.mark.parametrize("tile,overlap", [(128, 0.25), (64, 0.5), (128, 0.0)])
def test_demo_in_tiles(height, width, tile, overlap, tmp_path):
    vae = load(DEMO)
    vae.enable_tiling()
    vae.tile_sample_min_size, vae.tile_latent_min_size = tile, tile // 8
    vae.tile_overlap_factor = overlap
    check(vae, DEMO, tmp_path, picture(2, height, width), tiling=True, tile_sample_min_size=tile,
          tile_overlap_factor=overlap)


# Settings with which diffusers returns another size than it was given, or joins tiles askew.
@pytest.mark.parametrize("tile,overlap", [(200, 0.25), (100, 0.3), (136, 0.1)])
def test_demo_in_tiles_that_do_not_divide(tile, overlap, tmp_path):
    vae = load(DEMO)
    pixels = picture(1, 320, 264)
    with torch.inference_mode():
        latents = vae.encode(pixels).latent_dist.mean.contiguous()
    options = {"tiling": True, "tile_sample_min_size": tile, "tile_overlap_factor": overlap}
    encoded = probe("encode", DEMO, tmp_path, {"pixels": pixels}, **options)
    assert encoded["mean"].shape == latents.shape
    decoded = probe("decode", DEMO, tmp_path, {"latents": latents}, **options)["pixels"]
    assert decoded.shape == pixels.shape
    assert decoded.isfinite().all()


def test_demo_in_slices(tmp_path):
    vae = load(DEMO)
    vae.enable_slicing()
    check(vae, DEMO, tmp_path, picture(3, 64, 96), slicing=True)


@pytest.mark.parametrize("overrides", [
    {},
    {"layers_per_block": 2, "norm_num_groups": 16},
    {"use_quant_conv": False, "use_post_quant_conv": False, "latent_channels": 16},
    {"mid_block_add_attention": False, "act_fn": "gelu"},
    {"block_out_channels": (32, 32, 64, 64, 96), "act_fn": "relu"},
    {"in_channels": 4, "out_channels": 4, "block_out_channels": (64,)},
], ids=str)
def test_settings(overrides, tmp_path):
    torch.manual_seed(0)
    config = {"block_out_channels": (32, 64, 96), "sample_size": 64, **overrides}
    levels = len(config["block_out_channels"])
    vae = AutoencoderKL(down_block_types=("DownEncoderBlock2D",) * levels,
                        up_block_types=("UpDecoderBlock2D",) * levels, **config).eval()
    vae.save_pretrained(tmp_path)
    pixels = picture(2, 32, 48)
    if overrides.get("in_channels") == 4:
        pixels = torch.cat([pixels, pixels[:, :1]], 1)
    check(vae, tmp_path, tmp_path, pixels)


def test_the_shape_of_flux(tmp_path):
    torch.manual_seed(0)
    vae = AutoencoderKL(block_out_channels=(128, 256, 512, 512), layers_per_block=2,
                        down_block_types=("DownEncoderBlock2D",) * 4,
                        up_block_types=("UpDecoderBlock2D",) * 4, latent_channels=16,
                        use_quant_conv=False, use_post_quant_conv=False, sample_size=1024,
                        scaling_factor=0.3611, shift_factor=0.1159).eval()
    vae.save_pretrained(tmp_path)
    check(vae, tmp_path, tmp_path, picture(1, 64, 48))
