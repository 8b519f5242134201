"""A checkpoint with FLUX.1's layer widths and few layers, for measuring: a random transformer (24 heads x
128, 2 double and 4 single blocks, 2.4 GiB in bf16) with the demo model's text encoders and VAE."""

import math
import shutil

import common

FOLDER = common.RESULTS / "flux-width"
# 32 x 32 image tokens and 512 text tokens.
SETTINGS = {"height": 512, "width": 512, "max-sequence-length": 512}


def _randomize(model):
    """Seeded values that keep activations finite: unit gain for matrices, 1 for norms, 0 for biases."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.5 / math.sqrt(parameter.shape[-1]), generator=generator)
            else:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)


def ensure():
    """Writes the checkpoint unless it is there, and returns its folder."""
    if (FOLDER / "model_index.json").is_file():
        return FOLDER
    import torch
    from diffusers import FluxTransformer2DModel

    print(f"making {FOLDER.relative_to(common.ROOT)}", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    with torch.device("meta"):
        model = FluxTransformer2DModel(
            in_channels=64, num_layers=2, num_single_layers=4, num_attention_heads=24,
            attention_head_dim=128, joint_attention_dim=128, pooled_projection_dim=128,
            guidance_embeds=True, axes_dims_rope=(16, 56, 56))
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    _randomize(model)
    model.save_pretrained(FOLDER / "transformer", max_shard_size="2GB")
    shutil.copytree(common.DEMO_MODEL, FOLDER, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("transformer", "model_index.json", "*.md", "*.png"))
    shutil.copy(common.DEMO_MODEL / "model_index.json", FOLDER)  # last: it marks the folder as whole
    return FOLDER


if __name__ == "__main__":
    print(ensure())
