"""Goldens of the VAE: what diffusers' AutoencoderKL computes for the demo model and tiny configs.

Run with the peers' Python: python tests/goldens/make_vae.py
Writes tests/goldens/vae_*: configs, tensor lists and expected.safetensors with the inputs
("pixels", "latents") and, for each, diffusers' results.
"""

import pathlib
import sys
import tempfile

import torch
from diffusers import AutoencoderKL
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import tiny_weights  # noqa: E402

DEMO = HERE.parent.parent / "models" / "emoji-flux" / "vae"


def random(seed, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def picture(batch, channels, height, width):
    """Smooth waves with an edge, in [-1, 1]."""
    y = torch.linspace(-1, 1, height)[:, None]
    x = torch.linspace(-1, 1, width)[None, :]
    planes = [torch.sin(3 * (c + 1) * x + 2 * b) * torch.cos((2 + b) * y - c)
              for b in range(batch) for c in range(channels)]
    image = torch.stack(planes).reshape(batch, channels, height, width)
    return torch.where((x * x + y * y < 0.3)[None, None], 0.8 - image, image).clamp(-1, 1)


def run(vae, pixels, latents, expected, prefix=""):
    with torch.inference_mode():
        posterior = vae.encode(pixels).latent_dist
        decoded = vae.decode(latents).sample
    expected[f"{prefix}mean"] = posterior.mean.contiguous()
    expected[f"{prefix}logvar"] = posterior.logvar.contiguous()
    expected[f"{prefix}decoded"] = decoded.contiguous()


def make_tiny(name, pixels, latents, tile=None, **config):
    levels = len(config["block_out_channels"])
    vae = AutoencoderKL(down_block_types=("DownEncoderBlock2D",) * levels,
                        up_block_types=("UpDecoderBlock2D",) * levels, **config).eval()
    shapes = tiny_weights.fill(vae)
    folder = HERE / name
    with tempfile.TemporaryDirectory() as saved:
        vae.save_pretrained(saved)
        tiny_weights.store_without_weights(saved, folder / "checkpoint" / "vae")
    tiny_weights.write_shapes(folder / "checkpoint" / "vae" / "tensors.json", shapes)
    expected = {"pixels": pixels, "latents": latents}
    run(vae, pixels, latents, expected)
    if tile:
        vae.enable_tiling()
        vae.tile_sample_min_size, vae.tile_latent_min_size = tile
        run(vae, pixels, latents, expected, "tiled.")
    save_file(expected, folder / "expected.safetensors")


def make_demo():
    vae = AutoencoderKL.from_pretrained(DEMO, torch_dtype=torch.float32).eval()
    pixels = picture(1, 3, 48, 32)
    with torch.inference_mode():
        latents = vae.encode(pixels).latent_dist.mode().contiguous()
    expected = {"pixels": pixels, "latents": latents}
    run(vae, pixels, latents, expected)
    (HERE / "vae_demo").mkdir(exist_ok=True)
    save_file(expected, HERE / "vae_demo" / "expected.safetensors")


def make_samples():
    """Draws from given moments: for each dtype, from a seed, with logvar beyond both clamps."""
    expected = {}
    for label, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16,
                         "fp16": torch.float16}.items():
        moments = random(7, (2, 6, 5, 7)) * 2
        moments[:, 3:, 0, 0] = 30
        moments[:, 3:, 1, 1] = -40
        posterior = DiagonalGaussianDistribution(moments.to(dtype))
        expected[f"{label}.mean"] = posterior.mean.contiguous()
        expected[f"{label}.logvar"] = posterior.logvar.contiguous()
        expected[f"{label}.sample"] = posterior.sample(
            torch.Generator("cpu").manual_seed(42)).contiguous()
    (HERE / "vae_sample").mkdir(exist_ok=True)
    save_file(expected, HERE / "vae_sample" / "expected.safetensors")


def main():
    torch.set_num_threads(1)
    # Both quant convolutions, two layers, non-square, a batch; tiles of 16 x 16 pixels in one row,
    # of which the last is cut off.
    make_tiny("vae_quant", picture(2, 3, 16, 28), random(1, (2, 4, 8, 14)), tile=(16, 8),
              block_out_channels=(8, 16), layers_per_block=2, norm_num_groups=4, latent_channels=4,
              sample_size=32)
    # As FLUX: no quant convolutions, a shift, three levels.
    make_tiny("vae_plain", picture(1, 3, 24, 16), random(2, (1, 6, 6, 4)),
              block_out_channels=(4, 8, 8), layers_per_block=1, norm_num_groups=2,
              latent_channels=6, sample_size=32, use_quant_conv=False, use_post_quant_conv=False,
              scaling_factor=0.3611, shift_factor=0.1159)
    # No attention, another activation, other channel counts, one of the two quant convolutions.
    make_tiny("vae_no_attention", picture(1, 1, 8, 12), random(3, (1, 2, 4, 6)),
              block_out_channels=(6, 9), layers_per_block=1, norm_num_groups=3, latent_channels=2,
              in_channels=1, out_channels=2, sample_size=16, act_fn="gelu", use_quant_conv=True,
              use_post_quant_conv=False, mid_block_add_attention=False)
    # One level (pixels and latents of one size), ReLU, odd sides.
    make_tiny("vae_one_level", picture(3, 3, 3, 5), random(4, (3, 4, 3, 5)),
              block_out_channels=(8,), layers_per_block=1, norm_num_groups=4, latent_channels=4,
              sample_size=8, act_fn="relu", use_quant_conv=False, use_post_quant_conv=True)
    make_demo()
    make_samples()


if __name__ == "__main__":
    main()
