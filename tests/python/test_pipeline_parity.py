"""Whole pictures against diffusers, live: same checkpoint, prompt and seed, through both.

The 8-bit pictures may differ where a value lies next to a rounding boundary, since sums add up in
another order; everything else is equal.
"""

import shutil

import numpy as np
import pytest
import torch
from diffusers import (AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxImg2ImgPipeline, FluxPipeline,
                       FluxTransformer2DModel)
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoTokenizer, CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# The shipped model's own size and sequence length; diffusers' defaults are those of FLUX.1-dev.
DEFAULTS = {"height": 128, "width": 128, "max_sequence_length": 24}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(folder, dtype):
    pipe = FluxPipeline.from_pretrained(folder, dtype=DTYPES[dtype], local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def demo(demo_model):
    """diffusers' pipelines of the shipped model, by dtype."""
    loaded = {}

    def get(dtype="fp32"):
        if dtype not in loaded:
            loaded[dtype] = load(demo_model, dtype)
        return loaded[dtype]

    return get


def peer(pipe, *, prompt, seed, steps=None, image=None, **settings):
    """(pictures, packed latents) of diffusers; `settings` are named as in its call."""
    latents = []

    def keep(pipeline, step, timestep, tensors):
        latents.append(tensors["latents"])
        return {}

    if image is not None:
        pipe = FluxImg2ImgPipeline(**pipe.components)
        pipe.set_progress_bar_config(disable=True)
        settings["image"] = image
    if steps is not None:
        settings["num_inference_steps"] = steps
    result = pipe(prompt, generator=torch.Generator("cpu").manual_seed(seed), callback_on_step_end=keep,
                  **{**DEFAULTS, **settings})
    return [np.asarray(picture) for picture in result.images], latents[-1]


def options(settings):
    for name, value in settings.items():
        if isinstance(value, (list, tuple)):
            value = ",".join(map(repr, value))
        yield f"--{name.replace('_', '-')}={value}"


def ours(generate, *, image=None, dtype="fp32", **settings):
    """The same of cachedit."""
    if image is not None:
        image.save(generate.folder / "start.png")
        settings["image_path"] = "start.png"
    arguments = [*options(settings), "--threads=1", f"--dtype={dtype}"]
    pictures = [np.asarray(Image.open(path)) for path in generate(*arguments, "--save-path", "pictures")]
    [file] = generate(*arguments, "--output-type", "latent", "--save-path", "latents")
    return pictures, load_file(file)["latents"]


def relative_error(got, want):
    assert got.shape == want.shape
    got, want = got.double(), want.double()
    return ((got - want).norm() / want.norm()).item()


def psnr(a, b):
    return 10 * np.log10(255**2 / max(np.mean((a.astype(np.float64) - b) ** 2), 1e-12))


def check_equal(got, want):
    for one, other in zip(got[0], want[0], strict=True):
        assert one.shape == other.shape
        difference = np.abs(one.astype(np.int16) - other)
        assert difference.max() <= 2
        assert (difference == 0).mean() >= 0.999
    assert got[1].dtype == torch.float32
    assert relative_error(got[1], want[1]) <= 1e-4


TEXT_TO_IMAGE = {
    "as in the demo": {"prompt": "red apple", "seed": 0, "steps": 20},
    "wide": {"prompt": "koala", "seed": 42, "steps": 20, "height": 96, "width": 160},
    "high": {"prompt": "Blue FISH, café  🐟", "seed": 2**40 + 3, "steps": 8, "height": 160, "width": 64},
    "one token": {"prompt": "cat", "seed": 5, "steps": 4, "height": 16, "width": 16},
    "large": {"prompt": "sun", "seed": 6, "steps": 3, "height": 256, "width": 272},
    "one step": {"prompt": "house", "seed": 7, "steps": 1},
    "default steps": {"prompt": "tree", "seed": 8, "height": 64, "width": 64},
    "empty prompt": {"prompt": "", "seed": 9, "steps": 6},
    "long prompt": {"prompt": "a very large green tree under the yellow sun " * 12, "seed": 10, "steps": 6},
    "fewer tokens": {"prompt": "a red car", "seed": 11, "steps": 6, "max_sequence_length": 7},
    "true guidance": {"prompt": "red apple", "negative_prompt": "green", "true_cfg_scale": 3.0, "seed": 12,
                      "steps": 20},
    "empty negative": {"prompt": "rocket", "negative_prompt": "", "true_cfg_scale": 1.7, "seed": 13, "steps": 8,
                       "height": 96, "width": 128},
    "guidance that is off": {"prompt": "rocket", "negative_prompt": "red", "true_cfg_scale": 1.0, "seed": 13,
                             "steps": 4},
    "two images": {"prompt": "panda", "num_images_per_prompt": 2, "seed": 14, "steps": 10},
    "two images, true guidance": {"prompt": "panda", "num_images_per_prompt": 2, "negative_prompt": "blue",
                                  "true_cfg_scale": 2.0, "seed": 15, "steps": 5, "height": 48, "width": 80},
    "sigmas": {"prompt": "star", "sigmas": [1.0, 0.8, 0.55, 0.2, 0.05], "seed": 16},
}


@pytest.mark.parametrize("name", TEXT_TO_IMAGE)
def test_text_to_image(generate, demo, name):
    settings = TEXT_TO_IMAGE[name]
    check_equal(ours(generate, **settings), peer(demo(), **settings))


def picture(width, height):
    """Colours and edges that resampling has to get right."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    red = 255 * (((x - width / 2) ** 2 + (y - height / 2) ** 2) < (min(width, height) / 3) ** 2)
    return Image.fromarray(np.stack([red, 255 * x / width, 127 + 127 * np.sin(y / 3)], -1).astype(np.uint8))


IMAGE_TO_IMAGE = {
    "a little": {"prompt": "red apple", "seed": 1, "steps": 20, "strength": 0.3},
    "altogether": {"prompt": "red apple", "seed": 2, "steps": 20, "strength": 1.0},
    "wide": {"prompt": "koala", "seed": 3, "steps": 7, "strength": 0.6, "height": 96, "width": 160},
    "two images": {"prompt": "sun", "seed": 4, "steps": 6, "strength": 0.5, "num_images_per_prompt": 2},
    "true guidance": {"prompt": "sun", "negative_prompt": "moon", "true_cfg_scale": 2.5, "seed": 5, "steps": 6,
                      "strength": 0.75, "height": 64, "width": 64},
    "sigmas": {"prompt": "star", "seed": 6, "sigmas": [1.0, 0.7, 0.4, 0.1], "strength": 0.8},
}


# The order of Pillow's two passes depends on both sizes: grown, shrunk, and each way at once.
@pytest.mark.parametrize(("name", "width", "height"), [
    *((name, 100, 76) for name in IMAGE_TO_IMAGE),
    ("a little", 333, 250), ("a little", 128, 128), ("a little", 90, 300), ("a little", 300, 90),
    ("wide", 333, 250), ("wide", 128, 128), ("wide", 96, 160),
])
def test_image_to_image(generate, demo, name, width, height):
    settings = {**DEFAULTS, **IMAGE_TO_IMAGE[name], "image": picture(width, height)}
    check_equal(ours(generate, **settings), peer(demo(), **settings))


@pytest.mark.parametrize(("dtype", "prompt", "steps"), [
    ("bf16", "red apple", 20), ("bf16", "koala", 20), ("fp16", "red apple", 8)])
def test_half_precision_stays_near_full_precision_and_diffusers(generate, demo, dtype, prompt, steps):
    settings = {"prompt": prompt, "seed": 21, "steps": steps}
    [full], _ = peer(demo(), **settings)
    [theirs], their_latents = peer(demo(dtype), **settings)
    [got], latents = ours(generate, dtype=dtype, **settings)
    assert latents.dtype == their_latents.dtype == DTYPES[dtype]
    assert psnr(got, theirs) >= 30
    assert psnr(got, full) >= 30


# Checkpoints of other configurations, as diffusers saves them.


def random_pipeline(seed, tokenizers, *, heads=3, axes=(4, 6, 6), double=1, single=2, guidance=True,
                    scheduler=None, latent_channels=4, text=True):
    torch.manual_seed(seed)
    width = 32
    transformer = FluxTransformer2DModel(
        in_channels=4 * latent_channels, num_layers=double, num_single_layers=single,
        attention_head_dim=sum(axes), num_attention_heads=heads, joint_attention_dim=width,
        pooled_projection_dim=width, guidance_embeds=guidance, axes_dims_rope=axes)
    levels = 3
    vae = AutoencoderKL(block_out_channels=(16, 24, 32), down_block_types=("DownEncoderBlock2D",) * levels,
                        up_block_types=("UpDecoderBlock2D",) * levels, latent_channels=latent_channels,
                        norm_num_groups=8, sample_size=32, scaling_factor=0.7, shift_factor=0.1)
    clip = CLIPTextModel(CLIPTextConfig(
        vocab_size=1214, hidden_size=width, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=24, hidden_act="quick_gelu", bos_token_id=1212, eos_token_id=1213,
        pad_token_id=1213, projection_dim=width))
    t5 = T5EncoderModel(T5Config(vocab_size=521, d_model=width, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
                                 feed_forward_proj="gated-gelu"))
    return FluxPipeline(FlowMatchEulerDiscreteScheduler(**(scheduler or {})), vae.eval(), clip.eval(),
                        tokenizers[0], t5.eval(), tokenizers[1], transformer.eval())


@pytest.fixture(scope="module")
def tokenizers(demo_model):
    return [AutoTokenizer.from_pretrained(demo_model / name) for name in ("tokenizer", "tokenizer_2")]


CHECKPOINTS = {
    "guidance": {},
    "dynamic shift": {"scheduler": {"shift": 3.0, "use_dynamic_shifting": True}, "double": 2, "single": 1},
    "static shift": {"scheduler": {"shift": 3.0}, "guidance": False, "heads": 1, "axes": (2, 10, 4)},
    "double blocks only": {"single": 0, "double": 2, "heads": 5},
    "single blocks only": {"single": 3, "double": 0, "latent_channels": 16},
}


def save(pipe, folder, dtype, demo_model, shard="100MB"):
    pipe.to(DTYPES[dtype]).save_pretrained(folder, safe_serialization=True, max_shard_size=shard)
    # transformers 5 writes tokenizer.json alone; released checkpoints have the original files.
    for file in ("tokenizer/vocab.json", "tokenizer/merges.txt", "tokenizer_2/spiece.model"):
        shutil.copy(demo_model / file, folder / file)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_other_configurations(generate, demo_model, tokenizers, tmp_path, name):
    save(random_pipeline(3, tokenizers, **CHECKPOINTS[name]), tmp_path / "model", "fp32", demo_model)
    pipe = load(tmp_path / "model", "fp32")
    settings = {"prompt": "red apple", "negative_prompt": "blue", "true_cfg_scale": 2.0, "guidance_scale": 2.5,
                "seed": 3, "steps": 4, "height": 40, "width": 64, "num_images_per_prompt": 2}
    check_equal(ours(generate, model_path=tmp_path / "model", **settings), peer(pipe, **settings))
    settings = {"prompt": "koala", "guidance_scale": 4.5, "seed": 4, "steps": 5, "strength": 0.6, "height": 32,
                "width": 48, "image": picture(50, 30)}
    check_equal(ours(generate, model_path=tmp_path / "model", **settings), peer(pipe, **settings))


@pytest.mark.parametrize("stored", DTYPES)
def test_sharded_checkpoints_in_every_stored_dtype(generate, demo_model, tokenizers, tmp_path, stored):
    model = tmp_path / "model"
    save(random_pipeline(4, tokenizers), model, stored, demo_model, shard="60KB")
    for component in ("transformer", "vae", "text_encoder", "text_encoder_2"):
        assert len(list((model / component).glob("*-of-*.safetensors"))) >= 2
        assert list((model / component).glob("*.index.json"))
    settings = {"prompt": "red apple", "seed": 5, "steps": 4, "height": 32, "width": 32}
    check_equal(ours(generate, model_path=model, **settings), peer(load(model, "fp32"), **settings))
    listed = generate.report(*options({"model_path": model, **settings}))
    # float16 is slow on a CPU: the default computes in bfloat16 then.
    assert listed["settings"]["dtype"] == {"fp32": "fp32", "bf16": "bf16", "fp16": "bf16"}[stored]
