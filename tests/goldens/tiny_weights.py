"""Checkpoints without stored weights: the rule of tests/support/tiny_weights.h, for the peers.

Every value follows from the tensor's name and its index, so a golden needs only configs, the list
of names and shapes, and the expected outputs.
"""

import json
import math
import pathlib
import shutil

import numpy as np
import torch


def tiny_weight(name, shape):
    """float32 tensor of `shape`, the same bits as the C++ rule gives."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    count = math.prod(shape)
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    u = (z >> np.uint64(40)).astype(np.float64) / 8388608.0 - 1.0
    offset, scale = 0.0, 0.1
    if len(shape) >= 2:
        scale = math.sqrt(3.0 / (count // shape[0]))
    elif name.endswith("weight"):
        offset, scale = 1.0, 0.2
    return torch.from_numpy((offset + scale * u).astype(np.float32)).reshape(tuple(shape))


def fill(module):
    """Replaces every parameter of a torch module in place and returns {name: shape}.

    Tied parameters appear once, under the name that save_pretrained keeps.
    """
    shapes = {}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            shapes[name] = list(parameter.shape)
            parameter.copy_(tiny_weight(name, shapes[name]))
    return shapes


def write_shapes(path, shapes):
    """tensors.json, one tensor a line."""
    lines = ",\n".join(f" {json.dumps(n)}: {json.dumps(s)}" for n, s in sorted(shapes.items()))
    pathlib.Path(path).write_text("{\n" + lines + "\n}\n")


def store_without_weights(saved, golden):
    """Copies a saved pipeline or model folder, leaving every weight file out."""
    shutil.copytree(saved, golden, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"),
                    dirs_exist_ok=True)
