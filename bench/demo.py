"""Seconds a picture of the demo model, from the prompt to the pixels, with what makes it faster: block caching, quantized
linear layers and `sage` attention, alone and together, against diffusers in bf16 and diffusers with cache-dit. Both
sides draw the prompts of examples/demo_prompts.txt in one process, so that loading is left out.

    bench/demo.py [--rounds N]
"""

import json
import pathlib
import shlex
import statistics
import subprocess
import tempfile

import cache
import common

PROMPTS = common.ROOT / "examples" / "demo_prompts.txt"
# The same configuration in both programs' spellings.
CACHE_FLAGS = ("--cache", "F1B0_W3_R0.35_T1O1")
CACHE_CONFIG = cache.CONFIGS["F1B0, W3, R0.35, TaylorSeer 1"]
QUANTIZED = ("--quantize-type", "int8_per_row", "--attn", "sage")
ROWS = {"fp32": ("--dtype", "fp32"), "bf16": ("--dtype", "bf16"),
        "bf16, int8_per_row, sage": ("--dtype", "bf16", *QUANTIZED),
        "bf16, DBCache": ("--dtype", "bf16", *CACHE_FLAGS),
        "bf16, int8_per_row, sage, DBCache": ("--dtype", "bf16", *QUANTIZED, *CACHE_FLAGS)}
BEST = "bf16, int8_per_row, sage, DBCache"


def command(options, flags):
    return ["generate", "--prompt-file", PROMPTS.relative_to(common.ROOT), "--steps", cache.STEPS, "--seed", cache.SEED,
            "--threads", options.threads, *flags]


def ours(options, flags, folder):
    """Seconds a picture."""
    report = folder.with_suffix(".json")
    common._run([str(part) for part in (options.build_dir.resolve() / "apps" / "cli" / "cachedit",
                                        *command(options, flags), "--quiet", "--save-path", f"{folder}/", "--json",
                                        report)], options.threads)
    result = json.loads(report.read_text())
    return sum(result["seconds"][part] for part in ("text", "denoise", "decode")) / len(list(folder.glob("*.png")))


def psnr(options, reference, other):
    done = subprocess.run([options.build_dir / "apps" / "cli" / "cachedit", "compare", reference, other, "--json"],
                          capture_output=True, check=True)
    return statistics.mean(99.0 if pair["psnr"] is None else pair["psnr"] for pair in json.loads(done.stdout)["pairs"])


def measure(options, folder):
    yaml = cache.write_yaml(folder, "cache", CACHE_CONFIG)
    diffusers = cache.Diffusers(options, PROMPTS, "bf16")
    peers = {"diffusers bf16": None, "diffusers bf16, DBCache": yaml}
    seconds = {name: [] for name in [*ROWS, *peers]}
    place = {name: folder / name.replace(" ", "").replace(",", "-") for name in seconds}
    for round_ in range(options.rounds + 1):  # the first one warms up
        for name in seconds:
            if name in ROWS:
                taken = ours(options, ROWS[name], place[name])
            else:
                taken = statistics.mean(diffusers.answer(peers[name], place[name])["picture_seconds"])
            if round_ > 0:
                seconds[name].append(taken)
    diffusers.close()
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return [{"name": name, "seconds": median[name], "versus": {peer: median[peer] / median[name] for peer in peers},
             "psnr": psnr(options, place["bf16" if name in ROWS else "diffusers bf16"], place[name])}
            for name in median]


def main():
    options = common.arguments(__doc__, rounds=5)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options, pathlib.Path(folder))
    print(f"\nSeconds a picture, emoji-flux, {cache.STEPS} steps; PSNR against the plain bf16 pictures of the program")
    print(f"  {'':36} {'s':>8} {'PSNR':>8} {'diffusers':>10} {'with DBCache':>13}")
    for row in rows:
        told = "" if row["psnr"] == 99.0 else f"{row['psnr']:.1f} dB"
        plain, cached = row["versus"].values()
        print(f"  {row['name']:36} {row['seconds']:8.4f} {told:>8} {plain:9.2f}x {cached:12.2f}x")
    fastest = min((row for row in rows if row["name"] in ROWS), key=lambda row: row["seconds"])["name"]
    print(f"  Both together are {'the fastest' if fastest == BEST else 'NOT the fastest: ' + fastest}:")
    print(f"    cachedit {shlex.join(map(str, command(options, ROWS[BEST])))} --save-path pictures/")
    common.save("demo", rows, options)


if __name__ == "__main__":
    main()
