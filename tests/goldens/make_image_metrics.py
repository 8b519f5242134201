"""Writes image_metrics/cases.json: the differences of pictures that follow from a formula, by scikit-image.

Needs numpy and scikit-image. PSNR, MSE and SSIM are those of the metrics command line of cache-dit 1.5.3
with --psnr-type skimage: scikit-image's functions on 8-bit RGB arrays, channel_axis 2, everything
else as the library has it. Its default PSNR type subtracts and squares in 8 bits, which wraps around for
differences above 15, so that is not followed.
"""

import json
import pathlib

import numpy as np
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity


def base(width: int, height: int) -> np.ndarray:
    y, x, c = np.mgrid[0:height, 0:width, 0:3]
    wave = (x * 9 + y * 5 + c * 60 + x * y // 4) % 510
    return np.where(wave < 256, wave, 510 - wave).astype(np.uint8)


def noisy(image: np.ndarray, amplitude: int) -> np.ndarray:
    out = image.astype(np.int64).ravel()
    state = 12345
    for i in range(out.size):
        state = (state * 1664525 + 1013904223) % 2**32
        out[i] += (state >> 16) % (2 * amplitude + 1) - amplitude
    return out.clip(0, 255).astype(np.uint8).reshape(image.shape)


def case(width: int, height: int, amplitude: int) -> dict:
    a = base(width, height)
    b = noisy(a, amplitude)
    return {
        "width": width,
        "height": height,
        "amplitude": amplitude,
        "mse": mean_squared_error(a, b),
        "psnr": peak_signal_noise_ratio(a, b),
        "ssim": structural_similarity(a, b, channel_axis=2),
        "max_difference": int(np.abs(a.astype(int) - b.astype(int)).max()),
    }


if __name__ == "__main__":
    sizes = [(7, 7), (8, 21), (33, 17), (96, 64)]
    cases = [case(w, h, amplitude) for w, h in sizes for amplitude in (1, 8, 60, 255)]
    folder = pathlib.Path(__file__).parent / "image_metrics"
    folder.mkdir(exist_ok=True)
    (folder / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")
