"""Makes cache_steps_masks/masks.json: cache-dit's named masks of computed steps, for every number of steps that a
user may ask for, and some of custom intervals.

    python tests/goldens/make_steps_masks.py

Masks are strings of bits, "" where cache-dit refuses.
"""

import json
import pathlib

from cache_dit import steps_mask

STEPS = [*range(1, 101), 128, 150, 200, 250, 333, 500, 1000]
POLICIES = ["slow", "medium", "fast", "ultra"]
BINS = [([4, 2], [1, 3], None), ([4, 2], [1, 3], 8), ([1], [9], None), ([3, 3, 3], [2], None), ([2], [1, 1, 1], None),
        ([0, 4], [2, 2], 7), ([5], [], 4)]


def bits(mask):
    return "".join(map(str, mask))


def named(policy, steps):
    try:
        return bits(steps_mask(mask_policy=policy, total_steps=steps))
    except AssertionError:
        return ""


def main():
    custom = [{"compute": compute, "cache": cache, "steps": steps,
               "mask": bits(steps_mask(compute_bins=compute, cache_bins=cache, total_steps=steps))}
              for compute, cache, steps in BINS]
    named_masks = {policy: {str(steps): named(policy, steps) for steps in STEPS} for policy in POLICIES}
    lines = [f' "{policy}": {{\n' + ",\n".join(f'  "{steps}": "{mask}"' for steps, mask in masks.items()) + "\n }"
             for policy, masks in named_masks.items()]
    lines.append(' "custom": ' + json.dumps(custom))
    folder = pathlib.Path(__file__).resolve().parent / "cache_steps_masks"
    folder.mkdir(exist_ok=True)
    (folder / "masks.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
