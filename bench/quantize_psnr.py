"""How far the demo model's pictures move when its linear layers are quantized: PSNR against bf16 without quantization,
over the prompts of examples/demo_prompts.txt, as a markdown table; alone, with `sage` attention, with block caching,
and with both. The references of the last columns keep their attention and caching, too.

    bench/quantize_psnr.py [--write docs/quantization.md]

--write replaces what stands between the two marker comments of that file. Needs no Python packages.
"""

import argparse
import os
import pathlib
import sys
import tempfile

import attention_psnr

PROMPTS = attention_psnr.PROMPTS
TYPES = ("int8_per_row", "int8_per_tensor", "int8_weight_only", "int4_weight_only", "float8_per_row",
         "float8_per_tensor", "float8_per_block", "float8_weight_only")
STEPS, SEED = 20, 1
CACHE = "F1B0_W4MC2_R0.12"
MODES = (("alone", ()), ("with sage", ("--attn", "sage")), ("with DBCache", ("--cache", CACHE)),
         ("with both", ("--attn", "sage", "--cache", CACHE)))
LOWEST = {"int8_per_row": 30.0}  # dB, mean, alone


def draw(options, folder, name, arguments):
    """Draws every prompt with one seed into a folder of its own and returns that."""
    place = folder / name.replace(" ", "")
    print(name, file=sys.stderr)
    attention_psnr.run(options, "generate", "--quiet", "--prompt-file", PROMPTS, "--dtype", "bf16", "--steps", STEPS,
                       "--seed", SEED, "--threads", options.threads, "--save-path", f"{place}/", *arguments)
    return place


def measure(options, folder):
    """The table's lines, and whether the bars are met."""
    plain = draw(options, folder, "plain", ())
    lines = ["| type | " + " | ".join(name for name, _ in MODES) + " | DBCache, against DBCache alone |",
             "|---|" + "---|" * (len(MODES) + 1)]
    cached = draw(options, folder, "cached", MODES[2][1])
    met = True
    for kind in options.types:
        places = [draw(options, folder, f"{kind} {name}", ("--quantize-type", kind, *arguments))
                  for name, arguments in MODES]
        cells = [attention_psnr.compare(options, plain, place) for place in places]
        cells.append(attention_psnr.compare(options, cached, places[2]))
        if kind in LOWEST and cells[0] != "equal":
            met &= float(cells[0].split()[0]) >= LOWEST[kind]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    others = [attention_psnr.compare(options, plain, draw(options, folder, f"none {name}", arguments))
              for name, arguments in MODES[1:]]
    lines.append("| for comparison: not quantized | | " + " | ".join(others) + " | |")
    return lines, met


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=pathlib.Path, default=attention_psnr.ROOT / "build" / "release")
    parser.add_argument("--types", type=lambda text: text.split(","), default=TYPES, help="comma separated")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--write", type=pathlib.Path, metavar="FILE", help="markdown file to put the table into")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines, met = measure(options, pathlib.Path(folder))
    print("\n".join(lines))
    if options.write:
        attention_psnr.replace(options.write, lines)
    if not met:
        sys.exit(f"below its bar: {LOWEST}")


if __name__ == "__main__":
    main()
