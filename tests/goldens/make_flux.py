"""Makes the goldens of FLUX: tiny checkpoints of several configs, one forward pass of each
transformer, and whole runs of the pipelines, all in fp32 through diffusers.

    python tests/goldens/make_flux.py

Checkpoints hold configs and tensor names only (tiny_weights.py gives the values); tokenizers are
the demo model's. Every expected.safetensors holds, per run NAME of runs.json, NAME.image (uint8
[B, H, W, 3]) and NAME.latents (packed), and for the forward pass transformer.*.
"""

import copy
import json
import pathlib
import shutil
import tempfile

import numpy as np
import torch
from diffusers import (AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxImg2ImgPipeline, FluxPipeline,
                       FluxTransformer2DModel)
from PIL import Image
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5Tokenizer

import tiny_weights

HERE = pathlib.Path(__file__).resolve().parent
DEMO = HERE.parent.parent / "models" / "emoji-flux"

CASES = {
    # FLUX.1-dev's shape: guidance embedding, dynamic shifting; odd head count, one block of each.
    "flux_guidance": dict(
        transformer=dict(num_layers=1, num_single_layers=1, num_attention_heads=3, attention_head_dim=16,
                         axes_dims_rope=[4, 6, 6], guidance_embeds=True),
        scheduler=dict(shift=3.0, use_dynamic_shifting=True),
        runs={
            "wide": dict(prompt=["a red apple"], height=24, width=40, steps=4, seed=3, guidance_scale=3.5),
            "batch": dict(prompt=["a crab", "sailboat icon"], height=16, width=16, steps=3, seed=4,
                          guidance_scale=1.5, num_images_per_prompt=2),
            "cfg": dict(prompt=["a red apple"], height=16, width=24, steps=3, seed=5, guidance_scale=2.0,
                        true_cfg_scale=4.0, negative_prompt=[""]),
            "img2img": dict(prompt=["a red apple"], height=16, width=24, steps=5, seed=6, guidance_scale=3.5,
                            image=[24, 16], strength=0.3),
        }),
    # FLUX.1-schnell's shape: neither; five heads of 24, more single blocks than double ones.
    "flux_plain": dict(
        transformer=dict(num_layers=2, num_single_layers=3, num_attention_heads=5, attention_head_dim=24,
                         axes_dims_rope=[8, 12, 4], guidance_embeds=False),
        scheduler=dict(shift=1.0, use_dynamic_shifting=False),
        runs={
            "square": dict(prompt=["an emoji of a crab"], height=32, width=32, steps=4, seed=0),
            "one_step": dict(prompt=["pizza"], height=16, width=48, steps=1, seed=1),
            "sigmas": dict(prompt=["pizza"], height=16, width=16, sigmas=[1.0, 0.7, 0.2], seed=2),
            "img2img": dict(prompt=["pizza", "crab"], height=16, width=24, steps=4, seed=7, image=[30, 20],
                            strength=1.0),
        }),
    # Only double blocks, and a shift that is applied twice.
    "flux_double_only": dict(
        transformer=dict(num_layers=1, num_single_layers=0, num_attention_heads=2, attention_head_dim=8,
                         axes_dims_rope=[2, 2, 4], guidance_embeds=False),
        scheduler=dict(shift=2.0, use_dynamic_shifting=False),
        runs={"square": dict(prompt=[""], height=16, width=16, steps=3, seed=8)}),
}


def build(spec):
    transformer = FluxTransformer2DModel(in_channels=16, joint_attention_dim=32, pooled_projection_dim=24,
                                         **spec["transformer"])
    vae = AutoencoderKL(down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2,
                        block_out_channels=[8, 16], layers_per_block=1, latent_channels=4, norm_num_groups=4,
                        sample_size=32, scaling_factor=0.7, shift_factor=0.1, use_quant_conv=False,
                        use_post_quant_conv=False)
    clip_tokenizer = CLIPTokenizer.from_pretrained(DEMO / "tokenizer")
    t5_tokenizer = T5Tokenizer.from_pretrained(DEMO / "tokenizer_2")
    clip = CLIPTextModel(CLIPTextConfig(
        vocab_size=len(clip_tokenizer), hidden_size=24, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=24, projection_dim=24, hidden_act="quick_gelu",
        bos_token_id=clip_tokenizer.bos_token_id, eos_token_id=clip_tokenizer.eos_token_id,
        pad_token_id=clip_tokenizer.pad_token_id))
    t5 = T5EncoderModel(T5Config(
        vocab_size=len(t5_tokenizer), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        feed_forward_proj="gated-gelu", relative_attention_num_buckets=8, relative_attention_max_distance=20,
        dropout_rate=0.0))
    pipe = FluxPipeline(scheduler=FlowMatchEulerDiscreteScheduler(**spec["scheduler"]), vae=vae,
                        text_encoder=clip, tokenizer=clip_tokenizer, text_encoder_2=t5,
                        tokenizer_2=t5_tokenizer, transformer=transformer)
    pipe.set_progress_bar_config(disable=True)
    for module in (transformer, vae, clip, t5):
        module.eval()
    return pipe


def test_picture(width, height):
    """A smooth picture by formula, the same as the C++ test draws."""
    y, x = np.mgrid[0:height, 0:width]
    channels = [(x * 7 + y * 3) % 256, (x * y) % 256, (255 - x * 5 - y) % 256]
    return Image.fromarray(np.stack(channels, -1).astype(np.uint8))


def run(pipe, request):
    kwargs = {k: request[k] for k in ("prompt", "height", "width", "guidance_scale", "true_cfg_scale",
                                      "negative_prompt", "num_images_per_prompt", "sigmas") if k in request}
    if "steps" in request:
        kwargs["num_inference_steps"] = request["steps"]
    if kwargs.get("negative_prompt") and len(kwargs["negative_prompt"]) == 1:
        kwargs["negative_prompt"] *= len(request["prompt"])
    if "image" in request:
        pipe = FluxImg2ImgPipeline(**pipe.components)
        pipe.set_progress_bar_config(disable=True)
        kwargs["image"] = test_picture(*request["image"])
        kwargs["strength"] = request["strength"]

    def call(output_type):
        generator = torch.Generator("cpu").manual_seed(request["seed"])
        return pipe(**kwargs, generator=generator, output_type=output_type,
                    max_sequence_length=request.get("max_sequence_length", 24))

    images = np.stack([np.asarray(image) for image in call("pil").images])
    return torch.from_numpy(images), call("latent").images.contiguous()


def forward_pass(transformer, dtype, suffix):
    transformer = copy.deepcopy(transformer).to(dtype)
    c = transformer.config
    batch, text, rows, columns = 2, 5, 3, 4
    inputs = {
        "latents": tiny_weights.tiny_weight("latents", [batch, rows * columns, c.in_channels]) * 4,
        "encoder": tiny_weights.tiny_weight("encoder", [batch, text, c.joint_attention_dim]) * 4,
        "pooled": tiny_weights.tiny_weight("pooled", [batch, c.pooled_projection_dim]),
        "timestep": torch.tensor([0.75, 0.25]),
    }
    if c.guidance_embeds:
        inputs["guidance"] = torch.tensor([3.5, 1.0])
    ids = torch.zeros(rows, columns, 3)
    ids[..., 1] += torch.arange(rows)[:, None]
    ids[..., 2] += torch.arange(columns)[None]
    cast = {name: tensor.to(dtype) for name, tensor in inputs.items()}
    out = transformer(hidden_states=cast["latents"], encoder_hidden_states=cast["encoder"],
                      pooled_projections=cast["pooled"], timestep=cast["timestep"],
                      guidance=cast.get("guidance"), img_ids=ids.reshape(-1, 3), txt_ids=torch.zeros(text, 3),
                      return_dict=False)[0]
    tensors = {f"transformer.{name}": tensor for name, tensor in inputs.items()}
    tensors[f"transformer.out_{suffix}"] = out.float()
    return tensors


def store_checkpoint(pipe, folder):
    """Gives the pipe the weights of tiny_weights and stores it without them, and without its tokenizers."""
    shutil.rmtree(folder, ignore_errors=True)
    shapes = {part: tiny_weights.fill(getattr(pipe, part))
              for part in ("transformer", "vae", "text_encoder", "text_encoder_2")}
    with tempfile.TemporaryDirectory() as saved:
        pipe.save_pretrained(saved)
        tiny_weights.store_without_weights(saved, folder / "checkpoint")
    for tokenizer in ("tokenizer", "tokenizer_2"):
        shutil.rmtree(folder / "checkpoint" / tokenizer)
    for part, names in shapes.items():
        tiny_weights.write_shapes(folder / "checkpoint" / part / "tensors.json", names)


@torch.no_grad()
def make_case(name, spec):
    pipe = build(spec)
    folder = HERE / name
    store_checkpoint(pipe, folder)
    tensors = forward_pass(pipe.transformer, torch.float32, "fp32")
    tensors |= forward_pass(pipe.transformer, torch.bfloat16, "bf16")
    for run_name, request in spec["runs"].items():
        tensors[f"{run_name}.image"], tensors[f"{run_name}.latents"] = run(pipe, request)
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "expected.safetensors")
    (folder / "runs.json").write_text(json.dumps(spec["runs"], indent=1) + "\n")


@torch.no_grad()
def make_demo():
    """The shipped model in fp32 at its usual settings."""
    folder = HERE / "flux_demo"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    pipe = FluxPipeline.from_pretrained(DEMO, torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    runs = {
        "apple": dict(prompt=["red apple"], height=128, width=128, steps=20, seed=0),
        "crab": dict(prompt=["an emoji of a crab"], height=128, width=128, steps=20, seed=1,
                     true_cfg_scale=2.0, negative_prompt=[""]),
    }
    tensors = {}
    for name, request in runs.items():
        tensors[f"{name}.image"], tensors[f"{name}.latents"] = run(pipe, request)
    save_file(tensors, folder / "expected.safetensors")
    (folder / "runs.json").write_text(json.dumps(runs, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case_name, case in CASES.items():
        make_case(case_name, case)
    make_demo()
