#!/usr/bin/env python3
"""Trains models/emoji-flux, the demo model: a whole checkpoint of the FLUX.1 architecture that draws
128 x 128 emoji from their names.

    tools/setup.sh train
    .venv/bin/python tools/train_emoji_flux.py vae         --output build/emoji-flux --minutes 27
    .venv/bin/python tools/train_emoji_flux.py transformer --output build/emoji-flux --minutes 68

The first call trains the autoencoder into OUTPUT/vae (and goes on from what is there). The second makes
the tokenizers, trains the transformer together with both text encoders, and writes the pipeline in
bfloat16 to OUTPUT/pipeline with a picture of samples. The budget is time, not steps: the learning rate
follows a cosine over the minutes given, so a faster machine does more steps.

The pictures are renderings of Noto Color Emoji (Debian package fonts-noto-color-emoji, image resources
under Apache-2.0); the prompt of a picture is its character's Unicode name in lower case.
"""

import argparse
import copy
import math
import pathlib
import random
import shutil
import time

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from emoji_flux_data import (PHRASINGS, SIZE, TOKENS, all_prompts, load_pictures, make_clip_tokenizer,
                             make_t5_tokenizer)

LATENT_CHANNELS = 16
BATCH = 64
EMPTY_PROMPT_SHARE = 0.06  # these draws teach the unconditional branch of classifier-free guidance


# --- Models -------------------------------------------------------------------------------------------


def make_vae():
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=LATENT_CHANNELS, sample_size=SIZE,
        down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=[16, 32, 64, 64], layers_per_block=1, norm_num_groups=8,
        scaling_factor=1.0, shift_factor=0.0, use_quant_conv=False, use_post_quant_conv=False,
    )


def make_text_encoders(clip_tokenizer, t5_tokenizer):
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    clip = CLIPTextModel(CLIPTextConfig(
        vocab_size=len(clip_tokenizer), hidden_size=128, intermediate_size=256, projection_dim=128,
        num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=TOKENS,
        hidden_act="quick_gelu", bos_token_id=clip_tokenizer.bos_token_id,
        eos_token_id=clip_tokenizer.eos_token_id, pad_token_id=clip_tokenizer.pad_token_id))
    t5 = T5EncoderModel(T5Config(
        vocab_size=len(t5_tokenizer), d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4,
        feed_forward_proj="gated-gelu", relative_attention_num_buckets=16,
        relative_attention_max_distance=32, dropout_rate=0.0, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0))
    return clip, t5


def make_transformer():
    from diffusers import FluxTransformer2DModel

    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=4 * LATENT_CHANNELS, num_layers=4, num_single_layers=8,
        attention_head_dim=32, num_attention_heads=4, joint_attention_dim=128,
        pooled_projection_dim=128, guidance_embeds=False, axes_dims_rope=[8, 12, 12])
    # Zero modulation and output: every block starts as the identity.
    for name, parameter in transformer.named_parameters():
        if ("norm" in name and "linear" in name) or name.startswith("proj_out"):
            torch.nn.init.zeros_(parameter)
    return transformer


def make_pipeline(output, names):
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline

    prompts = all_prompts(names)
    clip_tokenizer = make_clip_tokenizer(output / "tokenizer", prompts)
    t5_tokenizer = make_t5_tokenizer(output / "tokenizer_2", prompts)
    torch.manual_seed(0)
    clip, t5 = make_text_encoders(clip_tokenizer, t5_tokenizer)
    transformer = make_transformer()
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0, use_dynamic_shifting=False),
        vae=AutoencoderKL.from_pretrained(output / "vae").eval(),
        text_encoder=clip, tokenizer=clip_tokenizer,
        text_encoder_2=t5, tokenizer_2=t5_tokenizer, transformer=transformer)


# --- Training -----------------------------------------------------------------------------------------


class Clock:
    """How much of the time budget is spent, and the learning rate that follows from it."""

    def __init__(self, minutes, peak_rate, warmup_steps):
        self.start, self.budget = time.monotonic(), 60 * minutes
        self.peak_rate, self.warmup_steps = peak_rate, warmup_steps

    def spent(self):
        return (time.monotonic() - self.start) / self.budget

    def set_rate(self, optimizer, step):
        warmup = min(1, (step + 1) / self.warmup_steps)
        cosine = 0.5 + 0.5 * math.cos(math.pi * min(1, self.spent()))
        for group in optimizer.param_groups:
            group["lr"] = self.peak_rate * warmup * cosine + 1e-6


def descend(loss, optimizer, parameters):
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()


def encode_all(vae, pixels):
    return torch.cat([vae.encode(batch).latent_dist.mean for batch in pixels.split(32)])


def vae_batch(pixels, spent):
    """Crops of half the side for the first 80 % of the time, four times the steps for the same work;
    whole pictures after that."""
    if spent >= 0.8:
        return pixels[torch.randint(len(pixels), (8,))]
    half = SIZE // 2
    which = torch.randint(len(pixels), (16,)).tolist()
    corners = torch.randint(0, half + 1, (16, 2)).tolist()
    return torch.stack([pixels[i, :, r : r + half, c : c + half] for i, (r, c) in zip(which, corners)])


def vae_loss(vae, batch):
    """Pixel differences, differences of image gradients, and a light pull of the latents to zero."""
    with torch.autocast("cpu", torch.bfloat16):
        mean = vae.encode(batch).latent_dist.mean
        decoded = vae.decode(mean + 0.05 * torch.randn_like(mean)).sample
    decoded, mean = decoded.float(), mean.float()
    edges = sum(F.l1_loss(decoded.diff(dim=dim), batch.diff(dim=dim)) for dim in (-1, -2))
    return (F.l1_loss(decoded, batch) + 0.5 * F.mse_loss(decoded, batch) + 0.5 * edges
            + 2e-3 * mean.square().mean())


def train_vae(output, minutes):
    torch.manual_seed(0)
    pixels, _ = load_pictures()
    vae = make_vae()
    if (output / "vae").is_dir():
        vae = type(vae).from_pretrained(output / "vae")
    vae = vae.to(memory_format=torch.channels_last).train()
    parameters = list(vae.parameters())
    optimizer = torch.optim.AdamW(parameters, 2e-3, betas=(0.9, 0.98), weight_decay=1e-4)
    clock, step = Clock(minutes, peak_rate=2e-3, warmup_steps=50), 0
    while (spent := clock.spent()) < 1:
        clock.set_rate(optimizer, step)
        loss = vae_loss(vae, vae_batch(pixels, spent))
        descend(loss, optimizer, parameters)
        step += 1
        if step % 100 == 0:
            print(f"vae step {step}, {100 * spent:.0f} %, loss {loss.item():.4f}", flush=True)
        if step % 400 == 0:
            vae.save_pretrained(output / "vae")
    vae.eval()
    with torch.no_grad():
        latents = encode_all(vae, pixels)
        decoded = vae.decode(latents[:64]).sample
    # What makes the latents zero-mean with unit variance for the transformer.
    vae.register_to_config(shift_factor=round(latents.mean().item(), 4),
                           scaling_factor=round(1 / latents.std().item(), 4))
    psnr = 10 * torch.log10(4 / F.mse_loss(decoded, pixels[:64])).item()
    print(f"vae: {step} steps, PSNR {psnr:.1f} dB")
    vae.save_pretrained(output / "vae")


def pack(latents):
    """[N, C, h, w] -> [N, h/2 * w/2, 4 C], FLUX's 2 x 2 patches."""
    n, c, h, w = latents.shape
    patches = latents.view(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return patches.reshape(n, h * w // 4, 4 * c)


def image_positions(side):
    """Row and column of every patch as FLUX's ids [side * side, 3]."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.stack([torch.zeros_like(rows), rows, columns], -1).reshape(-1, 3).float()


def draw_times(count):
    """Noise levels: logit-normal, with 30 % uniform draws for the ends."""
    levels = torch.sigmoid(torch.randn(count))
    return torch.where(torch.rand(count) < 0.3, torch.rand(count), levels)


def tokenize(tokenizer, texts):
    return tokenizer(texts, padding="max_length", max_length=TOKENS, truncation=True,
                     return_tensors="pt").input_ids


class FlowBatches:
    """Draws (noised latents, times, target velocity, token ids) for flow matching."""

    def __init__(self, pipe, pixels, names):
        with torch.no_grad():
            latents = encode_all(pipe.vae, pixels)
        latents = (latents - pipe.vae.config.shift_factor) * pipe.vae.config.scaling_factor
        self.clean = pack(latents)
        texts = all_prompts(names)
        self.clip_ids = tokenize(pipe.tokenizer, texts)
        self.t5_ids = tokenize(pipe.tokenizer_2, texts)
        self.weights = torch.tensor(list(PHRASINGS.values()), dtype=torch.float)

    def draw(self):
        which = torch.randint(len(self.clean), (BATCH,))
        text = which * len(PHRASINGS) + torch.multinomial(self.weights, BATCH, replacement=True)
        text[torch.rand(BATCH) < EMPTY_PROMPT_SHARE] = len(self.clip_ids) - 1
        times, clean = draw_times(BATCH), self.clean[which]
        noise = torch.randn_like(clean)
        mix = times[:, None, None]
        return (1 - mix) * clean + mix * noise, times, noise - clean, self.clip_ids[text], self.t5_ids[text]


def flow_loss(pipe, batch, positions):
    noised, times, velocity, clip_ids, t5_ids = batch
    with torch.autocast("cpu", torch.bfloat16):
        predicted = pipe.transformer(
            hidden_states=noised, timestep=times,
            encoder_hidden_states=pipe.text_encoder_2(t5_ids).last_hidden_state,
            pooled_projections=pipe.text_encoder(clip_ids).pooler_output,
            img_ids=positions, txt_ids=torch.zeros(TOKENS, 3), return_dict=False)[0]
    return F.mse_loss(predicted.float(), velocity)


def train_transformer(output, minutes):
    random.seed(0)
    pixels, names = load_pictures()
    pipe = make_pipeline(output, names)
    batches = FlowBatches(pipe, pixels, names)
    positions = image_positions(SIZE // 16)
    trained = [pipe.transformer, pipe.text_encoder, pipe.text_encoder_2]
    parameters = [parameter for model in trained for parameter in model.train().parameters()]
    averages = [parameter.detach().clone() for parameter in parameters]
    optimizer = torch.optim.AdamW(parameters, 1e-3, betas=(0.9, 0.98), weight_decay=0.01)
    clock, step, running = Clock(minutes, peak_rate=1.5e-3, warmup_steps=100), 0, 0.0
    while clock.spent() < 1:
        clock.set_rate(optimizer, step)
        loss = flow_loss(pipe, batches.draw(), positions)
        descend(loss, optimizer, parameters)
        step += 1
        running = loss.item() if step == 1 else 0.99 * running + 0.01 * loss.item()
        decay = min(0.999, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(averages, [parameter.detach() for parameter in parameters], 1 - decay)
        if step % 50 == 0:
            print(f"transformer step {step}, {100 * clock.spent():.0f} %, loss {running:.4f}", flush=True)
        if step % 1000 == 0:
            save(pipe, trained, averages, output, names)
    save(pipe, trained, averages, output, names)
    print(f"transformer: {step} steps, loss {running:.4f}")


# --- Results ------------------------------------------------------------------------------------------


def save(pipe, trained, averages, output, names):
    """Writes the averaged weights in bfloat16, and a picture of what they draw."""
    average = iter(averages)
    finals = [copy.deepcopy(model).eval() for model in trained]
    with torch.no_grad():
        for model in finals:
            for parameter in model.parameters():
                parameter.copy_(next(average))
    components = dict(zip(("transformer", "text_encoder", "text_encoder_2"), finals))
    final = type(pipe)(**{**pipe.components, **components, "vae": copy.deepcopy(pipe.vae)})
    draw_samples(final, names).save(output / "samples.png")
    final.to(torch.bfloat16).save_pretrained(output / "pipeline")
    # transformers saves tokenizer.json alone; readers of the original formats need these.
    for file in ("tokenizer/vocab.json", "tokenizer/merges.txt", "tokenizer_2/spiece.model"):
        shutil.copy(output / file, output / "pipeline" / file)


def draw_samples(pipe, names, count=32, columns=8):
    """A sheet of `count` pictures, their names spread over the list."""
    pipe.set_progress_bar_config(disable=True)
    prompts = names[:: max(1, len(names) // count)][:count]
    with torch.no_grad():
        pictures = pipe(prompt=prompts, height=SIZE, width=SIZE, num_inference_steps=20,
                        max_sequence_length=TOKENS, generator=torch.Generator().manual_seed(1),
                        output_type="np").images
    rows = [np.concatenate(list(pictures[i : i + columns]), 1) for i in range(0, count, columns)]
    return Image.fromarray((np.concatenate(rows) * 255).astype("uint8"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["vae", "transformer"])
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    options = parser.parse_args()
    train = {"vae": train_vae, "transformer": train_transformer}[options.stage]
    train(options.output, options.minutes)


if __name__ == "__main__":
    main()
