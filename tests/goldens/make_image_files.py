"""Writes image_files/: small pictures of every kind that readers meet, and expected.json with their RGB samples.

Needs numpy and Pillow, whose convert("RGB") gives the expected samples (for 16-bit samples, which
Pillow clips when they are grey: the high byte).
"""

import json
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image

FOLDER = pathlib.Path(__file__).parent / "image_files"
WIDTH, HEIGHT = 13, 9
PNG_GREY, PNG_RGB = 0, 2
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def rgb() -> np.ndarray:
    y, x, c = np.mgrid[0:HEIGHT, 0:WIDTH, 0:3]
    return ((x * 17 + y * 23 + c * 70) % 256).astype(np.uint8)


def smooth() -> np.ndarray:
    y, x, c = np.mgrid[0:HEIGHT, 0:WIDTH, 0:3]
    return (x * 8 + y * 7 + c * 40).astype(np.uint8)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write_png(name: str, samples: np.ndarray, color: int, interlaced: bool = False) -> None:
    """For the kinds that Pillow cannot write; every row has filter 0."""
    height, width = samples.shape[:2]
    depth = samples.dtype.itemsize * 8
    passes = [samples[y0::dy, x0::dx] for x0, y0, dx, dy in ADAM7] if interlaced else [samples]
    rows = [b"\0" + row.astype(row.dtype.newbyteorder(">")).tobytes() for part in passes if part.size for row in part]
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    png += chunk(b"IDAT", zlib.compress(b"".join(rows))) + chunk(b"IEND", b"")
    (FOLDER / name).write_bytes(png)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    picture = Image.fromarray(rgb())
    alpha = Image.fromarray((rgb()[:, :, 0] // 2 + 60).astype(np.uint8))
    rgba = picture.copy()
    rgba.putalpha(alpha)

    picture.save(FOLDER / "rgb.png")
    rgba.save(FOLDER / "rgba.png")
    picture.convert("L").save(FOLDER / "grey.png")
    rgba.convert("LA").save(FOLDER / "grey_alpha.png")
    picture.convert("1").save(FOLDER / "one_bit.png")
    palette = picture.quantize(11)
    palette.save(FOLDER / "palette.png")
    palette.save(FOLDER / "palette_transparent.png", transparency=bytes([0, 128, 255]))
    picture.save(FOLDER / "rgb_transparent.png", transparency=tuple(int(v) for v in rgb()[0, 0]))
    write_png("interlaced.png", rgb(), PNG_RGB, interlaced=True)
    deep = rgb().astype(np.uint16) * 256 + 200
    write_png("rgb16.png", deep, PNG_RGB)
    write_png("grey16.png", deep[:, :, 0], PNG_GREY)

    gentle = Image.fromarray(smooth())
    gentle.save(FOLDER / "rgb.jpg", quality=90)
    gentle.save(FOLDER / "progressive.jpg", quality=90, progressive=True)
    gentle.convert("L").save(FOLDER / "grey.jpg", quality=90)
    gentle.convert("CMYK").save(FOLDER / "cmyk.jpg", quality=90)
    exif = Image.Exif()
    exif[0x0112] = 6  # "rotate by a quarter": not applied
    gentle.save(FOLDER / "rotated.jpg", quality=90, exif=exif)

    picture.save(FOLDER / "lossless.webp", lossless=True)
    rgba.save(FOLDER / "lossless_alpha.webp", lossless=True, exact=True)
    gentle.save(FOLDER / "lossy.webp", quality=90)

    expected = {}
    for path in sorted(FOLDER.glob("*.*")):
        if path.suffix == ".json" or path.name == "animated.webp":
            continue
        samples = np.asarray(Image.open(path).convert("RGB"))
        if path.name == "grey16.png":
            samples = np.repeat(rgb()[:, :, :1], 3, axis=2)
        expected[path.name] = samples.tobytes().hex()
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    gentle.save(FOLDER / "animated.webp", save_all=True, append_images=[picture], duration=100)


if __name__ == "__main__":
    main()
