"""Seconds of a transformer step at FLUX.1's width against diffusers in bf16 and, where given, stable-diffusion.cpp;
the GEMM kernels alone; the share of other operators; and what a cached step costs.

    bench/step.py --sd-binary PATH --sd-model bf16=FILE --sd-model q8_0=FILE --sd-options "--vae FILE --t5xxl FILE"

Every ratio is of medians of runs that took turns in one call. stable-diffusion.cpp needs a FLUX of the same widths
and depth (2 + 4 blocks), in the types to measure, and whatever text encoder and VAE it insists on. The exit status is
1 where a bar is missed, once everything is printed and saved.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

import common
import make_flux_width_checkpoint

PROMPT = "red apple"
OURS = {
    "bf16 + flash": ["--dtype", "bf16", "--attn", "flash"],
    "int8_per_row + sage": ["--dtype", "bf16", "--attn", "sage", "--quantize-type", "int8_per_row"],
}
# Side in pixels -> bars against diffusers in bf16.
BARS = {512: {"bf16 + flash": 1.10, "int8_per_row + sage": 1.8},
        1024: {"bf16 + flash": 1.30, "int8_per_row + sage": 2.0}}
SD_BARS = {"q8_0": 4.0, "fastest": 2.4}
SD_SIZE = 512  # pixels: where these bars are
OTHER_OPERATORS_BAR = 6.0  # percent of a step
CACHED_STEP_BAR = 1 / 6 + 0.02  # of a computed one
GEMM_BARS = {"int8": 75.0, "bf16": 85.0}  # percent of the roof


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=pathlib.Path, default=common.ROOT / "build" / "release")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each side")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--size", type=int, action="append", choices=sorted(BARS), help="default: all")
    parser.add_argument("--sd-binary", type=pathlib.Path, help="stable-diffusion.cpp's program")
    parser.add_argument("--sd-model", action="append", default=[], metavar="TYPE=FILE",
                        help="its diffusion model in that type; may be given several times")
    parser.add_argument("--sd-options", default="", help="its further options, for text encoder and VAE")
    options = parser.parse_args()
    for entry in options.sd_model:
        if "=" not in entry:
            parser.error(f"--sd-model: needs TYPE=FILE: got {entry!r}")
    if os.getloadavg()[0] > 0.5:
        print("note: other processes are running; figures will not be reliable", file=sys.stderr)
    return options


def ours(options, size, flags, steps=4):
    """The report of one run, its median step added."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "report.json")
        command = [options.build_dir / "apps" / "cli" / "cachedit", "generate", "--quiet", "--model-path",
                   make_flux_width_checkpoint.FOLDER, "--prompt", PROMPT, "--steps", steps, "--seed", 1, "--height",
                   size, "--width", size, "--max-sequence-length", 512, "--threads", options.threads,
                   "--output-type", "latent", "--save-path", pathlib.Path(folder, "x.safetensors"), "--json", report,
                   *flags]
        common._run(list(map(str, command)), options.threads)
        return json.loads(report.read_text())


def diffusers_step(options, size):
    report = common.generate("diffusers", options, model=make_flux_width_checkpoint.FOLDER, prompt=PROMPT,
                             dtype="bf16", steps=4, height=size, width=size, **{"max-sequence-length": 512})
    return common.median_step(report)


def sd_step(options, model, size):
    """Median of what stable-diffusion.cpp says of its steps, without the first, which loads the weights. Its prompt
    is long enough for 512 text tokens."""
    steps = 3
    with tempfile.TemporaryDirectory() as folder:
        command = [options.sd_binary, "--diffusion-model", model, *shlex.split(options.sd_options), "-p",
                   "red apple " * 30, "--steps", steps, "--seed", 1, "-H", size, "-W", size, "-t", options.threads,
                   "--cfg-scale", 1, "--sampling-method", "euler", "-o", pathlib.Path(folder, "x.png"), "-v"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, errors="replace", check=False)
    told = done.stdout + done.stderr
    found = {int(n): float(value) if unit == "s/it" else 1 / float(value)
             for n, value, unit in re.findall(r"(\d+)/%d - ([0-9.]+)(s/it|it/s)" % steps, told)}
    if len(found) < steps:
        sys.exit(f"{' '.join(map(str, command))} said nothing of its steps:\n{told[-2000:]}")
    return statistics.median(found[n] for n in range(2, steps + 1))


def sd_models(options):
    """{type: file} of --sd-model."""
    return dict(entry.split("=", 1) for entry in options.sd_model)


def left_out(options):
    """What of stable-diffusion.cpp is not measured, a line each."""
    if not options.sd_binary or not options.sd_model:
        return ["stable-diffusion.cpp is skipped: give --sd-binary and --sd-model TYPE=FILE to measure it"]
    if SD_SIZE not in (options.size or BARS):
        return [f"stable-diffusion.cpp is skipped: it is measured at {SD_SIZE} x {SD_SIZE} only; give --size {SD_SIZE}"]
    lines = [f"stable-diffusion.cpp is measured at {SD_SIZE} x {SD_SIZE} only: not at {size} x {size}"
             for size in options.size or sorted(BARS) if size != SD_SIZE]
    if "q8_0" not in sd_models(options):
        lines.append("stable-diffusion.cpp q8_0 is skipped: give --sd-model q8_0=FILE to measure it")
    return lines


def compare_steps(options, size):
    """Rows of ours against diffusers, and against stable-diffusion.cpp's types where they are given."""
    models = sd_models(options)
    times = {name: [] for name in [*OURS, "diffusers", *models]}
    for _ in range(options.rounds):
        for name, flags in OURS.items():
            times[name].append(common.median_step(ours(options, size, flags)))
        times["diffusers"].append(diffusers_step(options, size))
        if options.sd_binary and size == SD_SIZE:
            for name, model in models.items():
                times[name].append(sd_step(options, model, size))
    seconds = {name: statistics.median(values) for name, values in times.items() if values}
    tokens = (size // 16) ** 2
    rows = []
    for name in OURS:
        ratio = seconds["diffusers"] / seconds[name]
        rows.append({"name": f"{name}, {tokens} + 512 tokens", "cachedit": seconds[name],
                     "peer": seconds["diffusers"], "peer_name": "diffusers bf16", "ratio": ratio,
                     "bar": BARS[size][name], "met": ratio >= BARS[size][name]})
    theirs = {name: seconds[name] for name in models if name in seconds}
    if theirs:
        fastest = min(theirs, key=theirs.get)
        for kind, name in (("q8_0", "q8_0"), ("fastest", fastest)):
            if name not in theirs:
                continue
            ratio = theirs[name] / seconds["int8_per_row + sage"]
            rows.append({"name": f"int8_per_row + sage, {tokens} + 512 tokens",
                         "cachedit": seconds["int8_per_row + sage"], "peer": theirs[name],
                         "peer_name": f"stable-diffusion.cpp {name}", "ratio": ratio, "bar": SD_BARS[kind],
                         "met": ratio >= SD_BARS[kind]})
    return rows


def breakdowns(options):
    """`cachedit bench step --breakdown` of both forms."""
    result = {}
    for name, flags in OURS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "step.json")
            command = [options.build_dir / "apps" / "cli" / "cachedit", "bench", "step", "--breakdown",
                       "--model-path", make_flux_width_checkpoint.FOLDER, "--height", 512, "--width", 512,
                       "--max-sequence-length", 512, "--threads", options.threads, "--json", path, *flags]
            common._run(list(map(str, command)), options.threads)
            result[name] = json.loads(path.read_text())
    return result


def gemms(options):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "gemm.json")
        command = [options.build_dir / "apps" / "cli" / "cachedit", "bench", "gemm", "--threads", options.threads,
                   "--json", path]
        common._run(list(map(str, command)), options.threads)
        return json.loads(path.read_text())


def cached_step(options):
    """Median seconds of computed and of cached steps (F1B0, by a mask)."""
    flags = [*OURS["bf16 + flash"], "--cache", "F1B0_W1", "--steps-mask", "11010101", "--mask-policy", "static"]
    report = ours(options, 512, flags, steps=8)
    cached = set(report["cache"][0]["cached_steps"])
    seconds = report["step_seconds"]
    computed = statistics.median(s for i, s in enumerate(seconds) if i not in cached and i > 0)
    reused = statistics.median(s for i, s in enumerate(seconds) if i in cached)
    return {"computed": computed, "cached": reused, "share": reused / computed, "bar": CACHED_STEP_BAR,
            "met": reused <= CACHED_STEP_BAR * computed}


def verdict(met):
    return "met" if met else "MISSED"


def print_gemm(row):
    bar = GEMM_BARS.get(row["form"]) if (row["m"], row["n"], row["k"]) == (1536, 3072, 3072) else None
    row["met"] = bar is None or row["percent_of_roof"] >= bar
    line = (f"  {row['form']:18} {row['m']:5} x {row['n']:5} x {row['k']:5} {row['gflops']:8.1f} GFLOP/s "
            f"{row['percent_of_roof']:6.1f} % of the roof")
    if bar:
        line += f", bar {bar:.0f} % {verdict(row['met'])}"
    if row["weight_gb_per_s"] is not None:
        line += (f"; weights read at {row['weight_gb_per_s']:.1f} GB/s, {row['percent_of_memory_roof']:.1f} % of "
                 f"memory's {row['memory_roof_gb_per_s']:.1f}")
    print(line)


def main():
    options = arguments()
    make_flux_width_checkpoint.ensure()
    for line in left_out(options):
        print(line)
    start = time.time()
    gemm_rows = gemms(options)
    print("\nGEMM kernels alone, with quantization and dequantization")
    for row in gemm_rows:
        print_gemm(row)
    rows = []
    for size in options.size or sorted(BARS):
        rows += compare_steps(options, size)
    print("\nSeconds per transformer step")
    for row in rows:
        print(f"  {row['name']:40} {row['cachedit']:7.3f} s  {row['peer_name']:26} {row['peer']:7.3f} s "
              f"{row['ratio']:5.2f}x  bar {row['bar']:.2f}x {verdict(row['met'])}")
    parts = breakdowns(options)
    print("\nWhat a step of 1024 + 512 tokens goes into")
    for name, b in parts.items():
        total = sum(b["step_seconds"])
        share = 100 * b["other_seconds"] / total
        b["met"] = share <= OTHER_OPERATORS_BAR
        print(f"  {name:22} linear {100 * b['linear_seconds'] / total:5.1f} % "
              f"({b['linear_operations'] / b['linear_seconds'] / 1e9:.0f} GFLOP/s), attention "
              f"{100 * b['attention_seconds'] / total:4.1f} % "
              f"({b['attention_operations'] / b['attention_seconds'] / 1e9:.0f} GFLOP/s), other {share:4.1f} %, "
              f"bar {OTHER_OPERATORS_BAR:.0f} % {verdict(b['met'])}")
    cached = cached_step(options)
    print(f"\nCached step (F1B0): {cached['cached']:.3f} s of {cached['computed']:.3f} s, "
          f"{100 * cached['share']:.1f} %, bar {100 * CACHED_STEP_BAR:.1f} % {verdict(cached['met'])}")
    common.save("step", {"steps": rows, "gemm": gemm_rows, "breakdown": parts, "cached_step": cached}, options)
    print(f"  {time.time() - start:.0f} s in all")
    return 0 if all(one["met"] for one in [*gemm_rows, *rows, *parts.values(), cached]) else 1


if __name__ == "__main__":
    sys.exit(main())
