"""How far the demo model's pictures move when another attention backend draws them: PSNR against `native`
of the same dtype, over the prompts of examples/demo_prompts.txt, as a markdown table.

    bench/attention_psnr.py [--write docs/attention.md]

--write replaces what stands between the two marker comments of that file. Needs no Python packages.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROMPTS = ROOT / "examples" / "demo_prompts.txt"
BEGIN, END = "<!-- psnr: begin -->", "<!-- psnr: end -->"
BACKENDS = ("flash", "ffpa", "sage", "ffpa_fp8", "ffpa_fp8_per_block", "ffpa_fp4")
DTYPES = ("fp32", "bf16")
# The model's own size has 64 + 24 tokens, which ffpa_fp8 computes in full precision; the second size has
# 576 + 24.
SIZES = (128, 384)
STEPS, SEED = 20, 1


def run(options, *arguments):
    """Standard output of the command line, which has to succeed."""
    # Settings of the caller's shell (a backend, an instruction level) would change what is measured.
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("CACHEDIT_", "CACHE_DIT_"))}
    command = [options.build_dir / "apps" / "cli" / "cachedit", *map(str, arguments)]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nexited with {done.returncode}:\n{done.stderr}")
    return done.stdout


def draw(options, folder, backend, dtype, size):
    """Draws every prompt with one seed into a folder of its own and returns that."""
    place = folder / f"{backend}-{dtype}-{size}"
    print(f"{backend}, {dtype}, {size} x {size}", file=sys.stderr)
    run(options, "generate", "--quiet", "--prompt-file", PROMPTS, "--attn", backend, "--dtype", dtype, "--steps", STEPS,
        "--seed", SEED, "--width", size, "--height", size, "--threads", options.threads, "--save-path", f"{place}/")
    return place


def compare(options, reference, other):
    """A table's cell: mean and lowest PSNR over the pictures, in dB."""
    pairs = json.loads(run(options, "compare", reference, other, "--json"))["pairs"]
    finite = [pair["psnr"] for pair in pairs if pair["psnr"] is not None]
    if not finite:
        return "equal"
    same = len(pairs) - len(finite)
    note = f"; {same} of {len(pairs)} equal" if same else ""
    return f"{sum(finite) / len(finite):.1f} ({min(finite):.1f}{note})"


def measure(options, folder):
    """The table's lines."""
    columns = [(dtype, size) for size in SIZES for dtype in DTYPES]
    native = {column: draw(options, folder, "native", *column) for column in columns}
    lines = ["| backend | " + " | ".join(f"{dtype}, {size} x {size}" for dtype, size in columns) + " |",
             "|---|" + "---|" * len(columns)]
    for backend in options.backends:
        cells = [compare(options, native[column], draw(options, folder, backend, *column)) for column in columns]
        lines.append(f"| {backend} | " + " | ".join(cells) + " |")
    cells = ["" if dtype == "fp32" else compare(options, native["fp32", size], native[dtype, size])
             for dtype, size in columns]
    lines.append("| for comparison: `native` in bf16 against fp32 | " + " | ".join(cells) + " |")
    return lines


def replace(path, lines):
    """Puts `lines` between the markers of the file, which appears whole or not at all."""
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        sys.exit(f"{path}: needs {BEGIN} and, after it, {END}, each once")
    head, rest = text.split(BEGIN)
    new = path.with_name(path.name + ".new")
    new.write_text(head + "\n".join([BEGIN, *lines, END]) + rest.split(END)[1], encoding="utf-8")
    new.replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--backends", type=lambda text: text.split(","), default=BACKENDS, help="comma separated")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--write", type=pathlib.Path, metavar="FILE", help="markdown file to put the table into")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = measure(options, pathlib.Path(folder))
    print("\n".join(lines))
    if options.write:
        replace(options.write, lines)


if __name__ == "__main__":
    main()
