"""Runs every benchmark, one after the other; options are passed on to each."""

import pathlib
import subprocess
import sys

for name in ("startup_to_png", "step_time", "peak_memory", "demo"):
    script = pathlib.Path(__file__).with_name(f"{name}.py")
    subprocess.run([sys.executable, script, *sys.argv[1:]], check=True)
