"""What the benchmarks share: running cachedit and diffusers in child processes on one checkpoint with one
thread count, taking turns, and printing medians and ratios."""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEMO_MODEL = ROOT / "models" / "emoji-flux"
# Spelt out, since diffusers' own default is 1024 x 1024 whatever the model was trained on.
DEMO_SETTINGS = {"height": 128, "width": 128}
RESULTS = ROOT / "build" / "bench"
GIB = 1 << 30


def arguments(description, rounds):
    """The options that every benchmark takes, parsed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--rounds", type=int, default=rounds, help="runs of each side")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"note: other processes are running (load {load:.1f}); figures will not be reliable",
              file=sys.stderr)
    return options


def machine():
    """What a figure depends on: processor, instruction level, threads at hand, library versions."""
    import torch

    info = {"cpu": platform.processor() or "unknown", "cores": len(os.sched_getaffinity(0))}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            info["cpu"] = value.strip()
        elif key.strip() == "flags":
            wanted = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
            info["instructions"] = [flag for flag in wanted if flag in value.split()]
            break
    info["torch"] = torch.__version__
    info["torch_capability"] = torch.backends.cpu.get_cpu_capability()
    return info


def _run(command, threads):
    """Runs a child to its end: (seconds from start to exit, its peak resident memory in bytes)."""
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    env.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        child = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            errors.seek(0)
            sys.exit(f"{' '.join(map(str, command))}\nexited with {child.returncode}:\n"
                     + errors.read().decode(errors="replace")[-4000:])
    return seconds, usage.ru_maxrss * 1024


def generate(side, options, *, model, prompt, dtype, steps, **settings):
    """One picture by "cachedit" or "diffusers" in a process of its own: its --json report, with the
    wall-clock seconds and peak memory of the process as seen from outside added."""
    with tempfile.TemporaryDirectory() as folder:
        report, picture = pathlib.Path(folder, "report.json"), pathlib.Path(folder, "picture.png")
        settings = {"model-path": model, "prompt": prompt, "dtype": dtype, "steps": steps, "seed": 1,
                    "threads": options.threads, "save-path": picture, "json": report, **settings}
        if side == "cachedit":
            command = [options.build_dir / "apps" / "cli" / "cachedit", "generate", "--quiet"]
        else:
            command = [sys.executable, ROOT / "bench" / "diffusers_generate.py"]
        for name, value in settings.items():
            command += [f"--{name}", str(value)]
        seconds, peak = _run(command, options.threads)
        if not picture.is_file():
            sys.exit(f"{side} wrote no picture")
        return {**json.loads(report.read_text()), "process_seconds": seconds, "process_peak_bytes": peak}


def alternate(options, **settings):
    """{"cachedit": [report...], "diffusers": [report...]} of `rounds` runs each, taking turns after one
    run of each that is not counted (it fills the page cache)."""
    runs = {"cachedit": [], "diffusers": []}
    for round_ in range(options.rounds + 1):
        for side, reports in runs.items():
            report = generate(side, options, **settings)
            if round_ > 0:
                reports.append(report)
    return runs


def median_step(report):
    """Seconds per step without the first, which warms caches up on both sides."""
    return statistics.median(report["step_seconds"][1:])


def compare(name, runs, figure, bar):
    """One row of a table: medians of `figure` over the runs, how often faster we are, and the bar."""
    ours = statistics.median(figure(report) for report in runs["cachedit"])
    theirs = statistics.median(figure(report) for report in runs["diffusers"])
    ratio = theirs / ours
    return {"name": name, "cachedit": ours, "diffusers": theirs, "ratio": ratio, "bar": bar,
            "met": ratio >= bar, "rounds": len(runs["cachedit"])}


def print_table(title, rows, unit="s"):
    print(f"\n{title}")
    print(f"  {'':44} {'cachedit':>11} {'diffusers':>11} {'ratio':>7} {'bar':>6}")
    for row in rows:
        verdict = "met" if row["met"] else "MISSED"
        print(f"  {row['name']:44} {row['cachedit']:9.4g} {unit} {row['diffusers']:9.4g} {unit} "
              f"{row['ratio']:6.2f}x {row['bar']:5.2f}x {verdict}")


def save(name, rows, options):
    """Writes build/bench/<name>.json and prints what the figures were measured on."""
    about = {**machine(), "threads": options.threads}
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": about, "rows": rows}, indent=2) + "\n")
    print(f"  {about['cpu']}, {about['threads']} threads, {' '.join(about['instructions'])}, "
          f"torch {about['torch']} ({about['torch_capability']}); {path.relative_to(ROOT)}")
