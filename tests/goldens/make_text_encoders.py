"""Goldens of the text encoders: what transformers computes for the demo model and tiny configs.

Run with the peers' Python: python tests/goldens/make_text_encoders.py
Writes tests/goldens/{clip_*,t5_*}: configs, tensor lists and expected.safetensors. Expected outputs
are float32 whatever the model's dtype; every case stores its ids beside them.
"""

import pathlib
import sys
import tempfile

import torch
from safetensors.torch import save_file
from transformers import (AutoTokenizer, CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel)

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import tiny_weights  # noqa: E402

DEMO = HERE.parent.parent / "models" / "emoji-flux"
PROMPTS = ["a red apple", "two cats playing the piano under a full moon, watercolour"]
# The first block's attention outputs this much larger overflow float16; the weights do not.
OVERFLOW = 150000.0


def run(model, ids, name, expected):
    with torch.inference_mode():
        out = model(ids)
    expected[f"{name}.last_hidden_state"] = out.last_hidden_state.float().contiguous()
    if isinstance(model, CLIPTextModel):
        expected[f"{name}.pooler_output"] = out.pooler_output.float().contiguous()


def make_demo(name, model_class, component, tokenizer, length, dtypes):
    tokens = AutoTokenizer.from_pretrained(DEMO / tokenizer)
    ids = tokens(PROMPTS, padding="max_length", max_length=length, truncation=True,
                 return_tensors="pt").input_ids
    expected = {"ids": ids}
    for label, dtype in dtypes.items():
        model = model_class.from_pretrained(DEMO / component, dtype=dtype).eval()
        run(model, ids, label, expected)
    (HERE / name).mkdir(exist_ok=True)
    save_file(expected, HERE / name / "expected.safetensors")


def make_tiny(name, model, component, cases, extra=None):
    shapes = tiny_weights.fill(model.eval())
    folder = HERE / name
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        tiny_weights.store_without_weights(saved, folder / "checkpoint" / component)
    tiny_weights.write_shapes(folder / "checkpoint" / component / "tensors.json", shapes)
    expected = {}
    for case, ids in cases.items():
        expected[f"{case}.ids"] = ids
        run(model, ids, case, expected)
    if extra:
        extra(model, expected)
    save_file(expected, folder / "expected.safetensors")


def random_ids(seed, vocab_size, shape):
    return torch.randint(0, vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def make_clip():
    # The largest id decides: in the middle, twice (the first counts), at the start, at the end.
    legacy = CLIPTextConfig(vocab_size=48, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                            num_attention_heads=2, max_position_embeddings=9, projection_dim=16,
                            hidden_act="quick_gelu", eos_token_id=2, bos_token_id=0)
    full = torch.tensor([[5, 3, 2, 40, 1, 2, 7, 8, 9], [1, 44, 2, 3, 44, 2, 6, 7, 8],
                         [47, 2, 3, 4, 5, 2, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 46]])
    make_tiny("clip_eos2", CLIPTextModel(legacy), "text_encoder",
              {"full": full, "one": torch.tensor([[7]])})

    # The first 5 decides: in the middle, twice, at the start, and nowhere.
    current = CLIPTextConfig(vocab_size=48, hidden_size=24, intermediate_size=40,
                             num_hidden_layers=3, num_attention_heads=6, max_position_embeddings=12,
                             projection_dim=24, hidden_act="gelu", layer_norm_eps=1e-3,
                             eos_token_id=5, bos_token_id=0)
    rows = torch.tensor([[9, 8, 5, 40, 1, 2, 7, 8], [1, 44, 2, 5, 44, 5, 6, 5],
                         [5, 2, 3, 4, 5, 2, 7, 8], [1, 2, 3, 4, 47, 6, 7, 8]])
    make_tiny("clip_gelu", CLIPTextModel(current), "text_encoder",
              {"rows": rows, "full": random_ids(1, 48, (1, 12)), "one": torch.tensor([[5]])})


def overflowing(model, expected):
    """The same weights with large outputs of the first attention, loaded as float16 as from_pretrained does."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("block.0.layer.0.SelfAttention.o.weight"):
                parameter.mul_(OVERFLOW)
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        half = T5EncoderModel.from_pretrained(saved, dtype=torch.float16).eval()
    overflowed = []
    half.encoder.block[0].layer[0].SelfAttention.register_forward_hook(
        lambda module, args, output: overflowed.append(torch.isinf(output[0]).any().item()))
    run(half, expected["t7.ids"], "overflow", expected)
    assert overflowed == [True]
    assert torch.isfinite(expected["overflow.last_hidden_state"]).all()


def make_t5():
    common = dict(vocab_size=48, num_layers=2, dropout_rate=0.0)

    def cases(seed):
        return {"t1": random_ids(seed, 48, (1, 1)), "t7": random_ids(seed + 1, 48, (2, 7)),
                "t300": random_ids(seed + 2, 48, (1, 300))}

    relu = T5Config(**common, d_model=16, d_kv=8, d_ff=24, num_heads=2, feed_forward_proj="relu")
    make_tiny("t5_relu", T5EncoderModel(relu), "text_encoder_2", cases(10), overflowing)

    # Heads that do not fill d_model, few buckets, a short distance.
    gated = T5Config(**common, d_model=16, d_kv=4, d_ff=24, num_heads=3,
                     feed_forward_proj="gated-gelu", relative_attention_num_buckets=8,
                     relative_attention_max_distance=20, layer_norm_epsilon=1e-3)
    make_tiny("t5_gated_gelu", T5EncoderModel(gated), "text_encoder_2", cases(20))

    # A number of buckets that does not halve evenly.
    silu = T5Config(**common, d_model=12, d_kv=12, d_ff=16, num_heads=1,
                    feed_forward_proj="gated-silu", relative_attention_num_buckets=23,
                    relative_attention_max_distance=64)
    make_tiny("t5_gated_silu", T5EncoderModel(silu), "text_encoder_2", cases(30))


def main():
    torch.set_num_threads(1)
    fp32_bf16 = {"fp32": torch.float32, "bf16": torch.bfloat16}
    make_demo("clip_demo", CLIPTextModel, "text_encoder", "tokenizer", 24, fp32_bf16)
    make_demo("t5_demo", T5EncoderModel, "text_encoder_2", "tokenizer_2", 20,
              {**fp32_bf16, "fp16": torch.float16})
    make_clip()
    make_t5()


if __name__ == "__main__":
    main()
