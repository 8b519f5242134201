"""Peak resident memory of a model of FLUX.1-dev's size with quantized layers: one step at 256 x 256. The weights may
take 13 GiB while they load; the program and LibTorch come on top, and are measured with the demo model.

    bench/quantize_memory.py [--type int8_per_row] [--keep]

The exit status is 1 where the limit is passed.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import common
import make_flux_size_checkpoint

LIMIT_GIB = 13.0


def run(options, model, kind, folder):
    """One step: (the report, peak bytes of the process while it loads and draws, seconds in all)."""
    report = folder / "report.json"
    command = [options.build_dir / "apps" / "cli" / "cachedit", "generate", "--quiet", "--model-path", model,
               "--prompt", "red apple", "--steps", "1", "--seed", "1", "--width", "256", "--height", "256",
               "--threads", options.threads, "--dtype", "bf16", "--quantize-type", kind,
               "--save-path", folder / "picture.png", "--json", report]
    start = time.perf_counter()
    child = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{model}: exited with {child.returncode}")
    return json.loads(report.read_text()), usage.ru_maxrss * 1024, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=pathlib.Path, default=common.ROOT / "build" / "release")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--type", default="int8_per_row", help="as --quantize-type")
    parser.add_argument("--keep", action="store_true", help="leave the 22 GiB on the disk")
    options = parser.parse_args()
    model = make_flux_size_checkpoint.ensure()
    with tempfile.TemporaryDirectory() as folder:
        _, program, _ = run(options, common.DEMO_MODEL, options.type, pathlib.Path(folder))
        report, peak, seconds = run(options, model, options.type, pathlib.Path(folder))
    part = next(one for one in report["quantization"] if one["component"] == "transformer")
    held = part["bytes"] / common.GIB
    weights = (peak - program) / common.GIB
    met = weights <= LIMIT_GIB
    print(f"transformer: {part['quantized_layers']} of {part['linear_layers']} linear layers {options.type}, "
          f"{part['stored_bytes'] / common.GIB:.2f} -> {held:.2f} GiB")
    print(f"peak resident memory {peak / common.GIB:.2f} GiB, of which the program with the demo model takes "
          f"{program / common.GIB:.2f} GiB; the weights {weights:.2f} GiB (limit {LIMIT_GIB:.1f}): "
          f"{'met' if met else 'MISSED'}")
    print(f"load {report['seconds']['load']:.1f} s, one step {report['seconds']['denoise']:.1f} s, {seconds:.1f} s in all")
    common.save("quantize_memory", [{"type": options.type, "peak_gib": peak / common.GIB,
                                     "program_gib": program / common.GIB, "weights_gib": weights,
                                     "met": met}], options)
    if not options.keep:
        make_flux_size_checkpoint.shutil.rmtree(model)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
