"""Goldens of BlockAdapter: what cache-dit does with toy transformers of every ForwardPattern.

Run with the peers' Python: python tests/goldens/make_block_adapter.py
Writes tests/goldens/block_adapter: cases.json (pattern, options, cached steps, differences, pruned blocks per
case) and expected.safetensors (the inputs, and the last state of every case's run). The toy blocks and the loop
are repeated in tests/cache/block_adapter_toy.h.
"""

import json
import logging
import pathlib

import torch
from cache_dit import (BlockAdapter, DBCacheConfig, DBPruneConfig, ForwardPattern, TaylorSeerCalibratorConfig,
                       enable_cache)
from cache_dit.caching.cache_blocks.pattern_3_4_5 import PrunedBlocks_Pattern_3_4_5
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parent / "block_adapter"
PATTERNS = list(ForwardPattern)
BLOCKS = 5
STEPS = 14


def both_streams(i, hidden, encoder):
    new_hidden = hidden + 0.2 * torch.tanh((1 + 0.3 * i) * hidden + encoder.mean(1, keepdim=True))
    new_encoder = encoder + 0.1 * torch.tanh(encoder - hidden.mean(1, keepdim=True))
    return new_hidden, new_encoder


def one_stream(i, hidden):
    new_hidden = hidden + 0.2 * torch.tanh((1 + 0.3 * i) * hidden + 0.1)
    return new_hidden, 0.5 * new_hidden[:, :2] - 0.1 * i


class TwoInputs(torch.nn.Module):
    def __init__(self, i, pattern):
        super().__init__()
        self.i, self.pattern = i, pattern

    def forward(self, hidden_states, encoder_hidden_states):
        hidden, encoder = both_streams(self.i, hidden_states, encoder_hidden_states)
        return ((hidden, encoder), (encoder, hidden), hidden)[self.pattern]


class OneInput(TwoInputs):
    def forward(self, hidden_states):
        hidden, encoder = one_stream(self.i, hidden_states)
        return (hidden, (hidden, encoder), (encoder, hidden))[self.pattern - 3]


class Toy(torch.nn.Module):
    def __init__(self, pattern):
        super().__init__()
        self.pattern = pattern
        kind = TwoInputs if pattern < 3 else OneInput
        self.blocks = torch.nn.ModuleList(kind(i, pattern) for i in range(BLOCKS))

    def forward(self, hidden, encoder):
        for block in self.blocks:
            result = block(hidden, encoder) if self.pattern < 3 else block(hidden)
            if self.pattern in (0, 4):
                hidden, encoder = result
            elif self.pattern in (1, 5):
                encoder, hidden = result
            else:
                hidden = result
        return hidden, encoder


def denoise(toy, x, encoder, separate_cfg):
    """Moves that shrink and grow, so that steps fall on both sides of a threshold."""
    for t in range(STEPS):
        out, state = toy(x, encoder)
        if separate_cfg:
            negative, _ = toy(x, -encoder)
            out = negative + 1.5 * (out - negative)
        x = x + (0.02 + 0.06 * (t % 5 == 4)) * (0.5 * torch.sin(3 * x + t) - out)
    return x, state


# The call has one argument more than the method takes.
take_one = PrunedBlocks_Pattern_3_4_5._process_block_outputs
PrunedBlocks_Pattern_3_4_5._process_block_outputs = lambda self, outputs, *_: take_one(self, outputs)

COMMON = {"max_warmup_steps": 3, "residual_diff_threshold": 0.08}
OPTIONS = {
    "cache": {"Fn_compute_blocks": 1, "Bn_compute_blocks": 0, "max_continuous_cached_steps": 2, **COMMON},
    "taylor": {"Fn_compute_blocks": 2, "Bn_compute_blocks": 1, "taylorseer_order": 1, **COMMON},
    "prune": {"Fn_compute_blocks": 1, "Bn_compute_blocks": 1, "prune": True, **COMMON},
}


def make_case(pattern, name, options, x, encoder):
    options = dict(options)
    order, prune = options.pop("taylorseer_order", None), options.pop("prune", False)
    separate_cfg = options.get("enable_separate_cfg", False)
    toy = Toy(pattern)
    adapter = BlockAdapter(transformer=toy, blocks=toy.blocks, forward_pattern=PATTERNS[pattern],
                           check_forward_pattern=True, check_num_outputs=True)
    calibrator = None if order is None else TaylorSeerCalibratorConfig(taylorseer_order=order)
    enable_cache(adapter, cache_config=(DBPruneConfig if prune else DBCacheConfig)(**options),
                 calibrator_config=calibrator)
    with torch.inference_mode():
        hidden, state = denoise(toy, x, encoder, separate_cfg)

    def diffs(recorded):
        values = {step: value if isinstance(value, list) else [value] for step, value in recorded.items()}
        return {step: [float(f"{v:.6g}") for v in of_step] for step, of_step in values.items()}

    for value in [v for d in (toy._residual_diffs, toy._cfg_residual_diffs) for s in diffs(d).values() for v in s]:
        threshold = options["residual_diff_threshold"]
        assert abs(value / threshold - 1) > 1e-3, f"{name}: {value} is too close to the threshold"
    case = {"name": f"pattern{pattern}_{name}", "pattern": pattern,
            "options": {**options, "prune": prune, "taylorseer_order": order},
            "cached_steps": toy._pruned_steps if prune else toy._cached_steps,
            "cfg_cached_steps": toy._cfg_pruned_steps if prune else toy._cfg_cached_steps,
            "residual_diffs": diffs(toy._residual_diffs), "cfg_residual_diffs": diffs(toy._cfg_residual_diffs),
            "pruned_blocks": toy._pruned_blocks if prune else []}
    return case, {"hidden": hidden, **({"encoder": state} if pattern not in (2, 3) else {})}


def main():
    logging.disable(logging.CRITICAL)
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(2, 6, 8, generator=generator)
    encoder = 0.3 * torch.randn(2, 3, 8, generator=generator)
    cases, tensors = [], {"x": x, "encoder": encoder}
    runs = [(p, name, options) for p in range(6) for name, options in OPTIONS.items()]
    runs.append((0, "separate_cfg", {**OPTIONS["taylor"], "enable_separate_cfg": True}))
    for pattern, name, options in runs:
        case, results = make_case(pattern, name, options, x, encoder)
        print(case["name"], case["cached_steps"], case["pruned_blocks"])
        cases.append(case)
        tensors.update({f"{case['name']}.{key}": value.contiguous() for key, value in results.items()})
    OUT.mkdir(exist_ok=True)
    (OUT / "cases.json").write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")
    save_file(tensors, OUT / "expected.safetensors")


if __name__ == "__main__":
    main()
