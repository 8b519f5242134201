"""Makes the golden of torch's CPU noise, and that of PIL's Lanczos resampling.

    python tests/goldens/make_noise.py
"""

import pathlib

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent


def noise():
    """Keys are "<dtype>.<seed>.<shape>"; below 16 values torch draws by another algorithm."""
    tensors = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for seed in (0, 42, 2**40 + 5):
            for shape in ([2, 4, 6, 10], [1, 2, 3, 1], [1, 1, 5, 7]):
                generator = torch.Generator("cpu").manual_seed(seed)
                name = f"{str(dtype).removeprefix('torch.')}.{seed}.{'x'.join(map(str, shape))}"
                tensors[name] = torch.randn(shape, generator=generator, dtype=dtype)
    return tensors


def lanczos():
    """A formula's picture, 23 x 17, at "<width>x<height>" (uint8 [H, W, 3])."""
    y, x = np.mgrid[0:17, 0:23]
    channels = [(x * 37 + y * 11) % 256, (x * y * 5) % 256, (255 - x * 9 - y * 3) % 256]
    image = Image.fromarray(np.stack(channels, -1).astype(np.uint8))
    sizes = [(23, 17), (46, 34), (16, 16), (5, 3), (23, 40), (64, 17), (1, 1), (40, 5), (22, 9), (23, 4)]
    return {f"{w}x{h}": torch.from_numpy(np.asarray(image.resize((w, h), Image.LANCZOS)).copy()) for w, h in sizes}


if __name__ == "__main__":
    (HERE / "noise").mkdir(exist_ok=True)
    save_file(noise(), HERE / "noise" / "noise.safetensors")
    save_file(lanczos(), HERE / "noise" / "lanczos.safetensors")
