"""Block caching on the demo model, cachedit against diffusers with cache-dit: speed-up (each program against
itself without caching), PSNR against the uncached pictures, cached steps; and what a cache that never hits costs
a step at FLUX.1's width.

    bench/cache.py [--parts demo,overhead] [--tuned FILE]

--tuned adds a configuration of `cachedit tune` for cachedit alone.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import common
import make_flux_width_checkpoint

STEPS, SEED, SIZE = 28, 1, 128
PSNR_TOLERANCE = 0.1  # dB
OVERHEAD_BAR = 1.015
# Beside those of `make demo`.
MORE_PROMPTS = ("sunflower", "an emoji of a rocket")

F1 = {"Fn_compute_blocks": 1, "Bn_compute_blocks": 0}
TAYLOR = {"enable_taylorseer": True, "enable_encoder_taylorseer": True, "taylorseer_order": 1}
CONFIGS = {
    "defaults (F8B0, W8, R0.08)": {},
    "F1B0, W4, R0.08": {**F1, "max_warmup_steps": 4},
    "F1B0, W4, R0.08, TaylorSeer 1": {**F1, "max_warmup_steps": 4, **TAYLOR},
    "F1B0, W3, R0.35": {**F1, "max_warmup_steps": 3, "residual_diff_threshold": 0.35},
    "F1B0, W3, R0.35, TaylorSeer 1": {**F1, "max_warmup_steps": 3, "residual_diff_threshold": 0.35, **TAYLOR},
    "F4B2, W4, R0.2": {"Fn_compute_blocks": 4, "Bn_compute_blocks": 2, "max_warmup_steps": 4,
                       "residual_diff_threshold": 0.2},
    "F1B0, W3, R0.35, FoCa": {**F1, "max_warmup_steps": 3, "residual_diff_threshold": 0.35, "enable_foca": True,
                              "enable_encoder_foca": True},
    "F1B0, mask fast, static, TaylorSeer 1": {**F1, "num_inference_steps": STEPS, "steps_computation_mask": "fast",
                                              "steps_computation_policy": "static", **TAYLOR},
    "DBPrune F1B0, W4, R0.08": {"cache_type": "DBPrune", **F1, "max_warmup_steps": 4},
}
# Every decision is computed, none is a hit.
NEVER_HITS = {**F1, "max_warmup_steps": 0, "residual_diff_threshold": 1e-9}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=pathlib.Path, default=common.ROOT / "build" / "release")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each configuration and program")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--parts", type=lambda text: text.split(","), default=["demo", "overhead"])
    parser.add_argument("--tuned", type=pathlib.Path, metavar="FILE", help="a configuration for cachedit alone")
    options = parser.parse_args()
    if os.getloadavg()[0] > 0.5:
        print("note: other processes are running; figures will not be reliable", file=sys.stderr)
    return options


def write_yaml(folder, name, config):
    """A file that both load_configs() read; JSON is YAML. cache-dit takes no nulls and no empty mapping."""
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps({"cache_config": {"Fn_compute_blocks": 8, **config}}) + "\n")
    return path


class Cachedit:
    """Draws all prompts in a process per configuration."""

    def __init__(self, options, prompts):
        self.options, self.prompts = options, prompts

    def draw(self, yaml, folder):
        report = folder.with_suffix(".json")
        command = [self.options.build_dir / "apps" / "cli" / "cachedit", "generate", "--quiet", "--prompt-file",
                   self.prompts, "--dtype", "fp32", "--steps", STEPS, "--seed", SEED, "--height", SIZE, "--width", SIZE,
                   "--threads", self.options.threads, "--save-path", f"{folder}/", "--json", report]
        if yaml:
            command += ["--config-path", yaml]
        common._run([str(part) for part in command], self.options.threads)
        result = json.loads(report.read_text())
        cached = [record["cached_steps"] for record in result.get("cache") or []]
        return result["seconds"]["denoise"], cached

    def compare(self, reference, other):
        """Mean PSNR in dB over the pictures, those that are equal counted as 99."""
        command = [self.options.build_dir / "apps" / "cli" / "cachedit", "compare", reference, other, "--json"]
        pairs = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["pairs"]
        return statistics.mean(99.0 if pair["psnr"] is None else pair["psnr"] for pair in pairs)


class Diffusers:
    """Draws all prompts in one process that stays, since loading takes seconds."""

    def __init__(self, options, prompts, dtype="fp32"):
        env = dict(os.environ, OMP_NUM_THREADS=str(options.threads), HF_HUB_OFFLINE="1")
        command = [sys.executable, common.ROOT / "bench" / "cache_diffusers.py", "--model-path", common.DEMO_MODEL,
                   "--prompt-file", prompts, "--steps", STEPS, "--seed", SEED, "--size", SIZE, "--threads",
                   options.threads, "--dtype", dtype]
        self.log = tempfile.TemporaryFile()
        self.child = subprocess.Popen([str(part) for part in command], env=env, text=True, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=self.log)

    def answer(self, yaml, folder):
        request = {"yaml": str(yaml) if yaml else None, "folder": str(folder)}
        try:
            self.child.stdin.write(json.dumps(request) + "\n")
            self.child.stdin.flush()
            line = self.child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.log.seek(0)
            sys.exit("diffusers stopped:\n" + self.log.read().decode(errors="replace")[-4000:])
        return json.loads(line)

    def draw(self, yaml, folder):
        answer = self.answer(yaml, folder)
        return sum(answer["denoise_seconds"]), answer["cached_steps"]

    def close(self):
        self.child.stdin.close()
        self.child.wait()


def mean_steps(cached):
    """Cached steps a picture."""
    return statistics.mean(len(steps) for steps in cached) if cached else 0.0


def demo_rows(options, folder):
    prompts = folder / "prompts.txt"
    listed = (common.ROOT / "examples" / "demo_prompts.txt").read_text(encoding="utf-8").splitlines()
    prompts.write_text("\n".join([*listed, *MORE_PROMPTS]) + "\n", encoding="utf-8")
    yamls = {None: None, **{name: write_yaml(folder, f"config{i}", c) for i, (name, c) in enumerate(CONFIGS.items())}}
    if options.tuned:
        yamls["tuned"] = options.tuned
    ours, theirs = Cachedit(options, prompts), Diffusers(options, prompts)
    sides = {"cachedit": ours, "diffusers": theirs}
    seconds, cached = {}, {}
    place = {(side, name): folder / f"{side}-{i}" for side in sides for i, name in enumerate(yamls)}
    for round_ in range(options.rounds + 1):  # the first one warms both up
        print(f"round {round_} of {options.rounds}", file=sys.stderr)
        for name, yaml in yamls.items():
            for side, program in sides.items():
                if side == "diffusers" and name == "tuned":
                    continue
                taken, cached[side, name] = program.draw(yaml, place[side, name])
                if round_ > 0:
                    seconds.setdefault((side, name), []).append(taken)
    theirs.close()

    def figures(side, name):
        # The fastest run of each: what disturbs a run of a second only ever makes it slower.
        return {"speedup": min(seconds[side, None]) / min(seconds[side, name]),
                "psnr": ours.compare(place[side, None], place[side, name]), "cached": mean_steps(cached[side, name])}

    rows = []
    for name in yamls:
        if name is None:
            continue
        row = {"name": name, "cachedit": figures("cachedit", name)}
        if name != "tuned":
            row["diffusers"] = figures("diffusers", name)
            row["same_steps"] = cached["cachedit", name] == cached["diffusers", name]
            row["met"] = (row["cachedit"]["speedup"] >= row["diffusers"]["speedup"]
                          and abs(row["cachedit"]["psnr"] - row["diffusers"]["psnr"]) <= PSNR_TOLERANCE)
        rows.append(row)
    return rows


def print_demo(rows, options):
    print(f"\nCaching on the demo model, {STEPS} steps, fp32, 10 prompts: speed-up, PSNR, cached steps")
    print(f"  {'':40} {'cachedit':>22}   {'diffusers + cache-dit':>22}")
    for row in rows:
        cells = [f"{side['speedup']:5.2f}x {side['psnr']:5.1f} dB {side['cached']:5.1f}" if side else f"{'':21}"
                 for side in (row["cachedit"], row.get("diffusers"))]
        verdict = "" if "met" not in row else "met" if row["met"] else "MISSED"
        verdict += "" if row.get("same_steps", True) else ", other steps"
        print(f"  {row['name']:40} {cells[0]:>22}   {cells[1]:>22}  {verdict}")
    common.save("cache", rows, options)


def overhead_row(options, folder):
    """Seconds a step without caching, and with a cache that computes every decision: the least of all steps but
    the first of each run, since other processes only ever add to it."""
    yaml = write_yaml(folder, "never", NEVER_HITS)
    model = make_flux_width_checkpoint.ensure()
    least = {}
    for _ in range(options.rounds):
        for extra in ({}, {"config-path": yaml}):
            report = common.generate("cachedit", options, model=model, prompt="red apple", dtype="bf16", steps=5,
                                     **make_flux_width_checkpoint.SETTINGS, **extra)
            if any(record["cached_steps"] for record in report["cache"]):
                sys.exit("the cache that should never hit did")
            seconds = min(report["step_seconds"][1:])
            least[bool(extra)] = min(seconds, least.get(bool(extra), seconds))
    ratio = least[True] / least[False]
    return {"name": "FLUX.1 width, 1024 + 512 tokens, bf16", "plain": least[False], "never_hits": least[True],
            "ratio": ratio, "bar": OVERHEAD_BAR, "met": ratio <= OVERHEAD_BAR}


def print_overhead(row, options):
    print("\nSeconds a step without caching, and with a cache that never hits")
    print(f"  {row['name']}: {row['plain']:.3f} s, {row['never_hits']:.3f} s, {100 * (row['ratio'] - 1):+.2f} %, "
          f"bar {100 * (row['bar'] - 1):+.1f} %: {'met' if row['met'] else 'MISSED'}")
    common.save("cache_overhead", [row], options)


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        if "demo" in options.parts:
            print_demo(demo_rows(options, folder), options)
        if "overhead" in options.parts:
            print_overhead(overhead_row(options, folder), options)


if __name__ == "__main__":
    main()
