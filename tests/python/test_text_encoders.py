"""The text encoders against transformers, live: the demo model and full-size settings.

Needs the probe (CACHEDIT_PROBE, or build/release/tests/cachedit_probe) and the peers' Python.
"""

import json
import os
import pathlib
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, T5Config,
                          T5EncoderModel, T5ForConditionalGeneration)

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROBE = pathlib.Path(os.environ.get("CACHEDIT_PROBE", ROOT / "build/release/tests/cachedit_probe"))
DEMO = ROOT / "models" / "emoji-flux"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# fp32: the order of summation. Half precisions: how far the peer itself is from its fp32.
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 3e-3}


def random_ids(seed, vocab_size, shape):
    return torch.randint(0, vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def probe(kind, folder, dtype, batches, out):
    requests = json.dumps({name: ids.tolist() for name, ids in batches.items()})
    done = subprocess.run([PROBE, "text-encoder", kind, folder, dtype, out], input=requests,
                          text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return load_file(out)


def relative_error(got, want):
    assert got.shape == want.shape
    got, want = got.double(), want.double()
    return ((got - want).norm() / want.norm()).item()


def check(kind, folder, model_class, dtype, batches, tmp_path):
    """Both sides load `folder` and have to agree on every batch."""
    model = model_class.from_pretrained(folder, dtype=DTYPES[dtype]).eval()
    got = probe(kind, folder, dtype, batches, tmp_path / "out.safetensors")
    for name, ids in batches.items():
        with torch.inference_mode():
            want = model(ids)
        states = ["last_hidden_state"] + (["pooler_output"] if kind == "clip" else [])
        for state in states:
            ours = got[f"{name}.{state}"]
            assert ours.dtype == want[state].dtype
            assert relative_error(ours, want[state]) <= TOLERANCE[dtype], (name, state)


@pytest.mark.parametrize("dtype", DTYPES)
def test_clip_demo(dtype, tmp_path):
    batches = {f"n{n}": random_ids(n, 1214, (3, n)) for n in (1, 2, 7, 24)}
    batches["n24"][0, 9] = batches["n24"][0, 17] = batches["n24"][1, 23] = 1213  # the end token
    check("clip", DEMO / "text_encoder", CLIPTextModel, dtype, batches, tmp_path)


@pytest.mark.parametrize("dtype", DTYPES)
def test_t5_demo(dtype, tmp_path):
    batches = {f"n{n}": random_ids(n, 521, (2, n)) for n in (1, 2, 7, 33, 64, 512)}
    check("t5", DEMO / "text_encoder_2", T5EncoderModel, dtype, batches, tmp_path)


@pytest.mark.parametrize("eos_token_id", [2, 7, 99])
@pytest.mark.parametrize("hidden_act", ["quick_gelu", "gelu"])
@pytest.mark.parametrize("model_class", [CLIPTextModel, CLIPTextModelWithProjection])
def test_clip_settings(model_class, hidden_act, eos_token_id, tmp_path):
    torch.manual_seed(eos_token_id)
    config = CLIPTextConfig(vocab_size=100, hidden_size=48, intermediate_size=80,
                            num_hidden_layers=2, num_attention_heads=4, projection_dim=20,
                            max_position_embeddings=77, hidden_act=hidden_act,
                            eos_token_id=eos_token_id, bos_token_id=0, pad_token_id=1)
    model_class(config).save_pretrained(tmp_path)
    batches = {"a": random_ids(1, 100, (8, 77)), "b": random_ids(2, 100, (8, 20))}
    # CLIPTextModel reads both: the projection belongs to another output than the pooled one.
    check("clip", tmp_path, CLIPTextModel, "fp32", batches, tmp_path)


@pytest.mark.parametrize("heads,d_kv", [(1, 16), (5, 4), (8, 8)])
@pytest.mark.parametrize("buckets,distance", [(32, 128), (10, 17), (64, 33)])
@pytest.mark.parametrize("feed_forward", ["relu", "gated-gelu", "gelu", "gated-silu"])
def test_t5_settings(feed_forward, buckets, distance, heads, d_kv, tmp_path):
    torch.manual_seed(heads)
    config = T5Config(vocab_size=100, d_model=32, d_kv=d_kv, d_ff=40, num_layers=2, num_heads=heads,
                      relative_attention_num_buckets=buckets,
                      relative_attention_max_distance=distance, feed_forward_proj=feed_forward)
    T5EncoderModel(config).save_pretrained(tmp_path)
    batches = {f"n{n}": random_ids(n, 100, (2, n)) for n in (1, 7, 300)}
    check("t5", tmp_path, T5EncoderModel, "fp32", batches, tmp_path)


def test_t5_of_a_full_checkpoint(tmp_path):
    torch.manual_seed(0)
    config = T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    check("t5", tmp_path, T5EncoderModel, "fp32", {"a": random_ids(1, 100, (2, 9))}, tmp_path)


def test_t5_whose_two_embeddings_differ(tmp_path):
    torch.manual_seed(0)
    config = T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4)
    T5EncoderModel(config).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"].flip(0).contiguous()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    check("t5", tmp_path, T5EncoderModel, "fp32", {"a": random_ids(1, 100, (2, 9))}, tmp_path)


@pytest.mark.parametrize("name,factor", [("SelfAttention.o.weight", 8e4), ("wo.weight", 1e6)])
def test_t5_beyond_half_precision(name, factor, tmp_path):
    torch.manual_seed(0)
    # One layer: transformers gives NaN where the attention of a later one overflows.
    config = T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=40, num_layers=1, num_heads=4,
                      feed_forward_proj="gated-gelu")
    model = T5EncoderModel(config)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith(name):
                parameter.mul_(factor)
    model.save_pretrained(tmp_path)
    check("t5", tmp_path, T5EncoderModel, "fp16", {"a": random_ids(1, 100, (2, 9))}, tmp_path)
