#!/bin/sh
# Fuzzes the file readers under AddressSanitizer and UndefinedBehaviorSanitizer.
# usage: tools/fuzz.sh [--runs N] [--seed S]     (default: 200000 inputs, seed 1)
# CACHEDIT_PYTHON names a Python that has torch; default: .venv/bin/python of the checkout.
set -eu
cd "$(dirname "$0")/.."
python=${CACHEDIT_PYTHON:-.venv/bin/python}
if ! torch=$("$python" -c 'import torch; print(torch.utils.cmake_prefix_path)'); then
  echo "tools/fuzz.sh: $python has no torch; run 'make build' first or set CACHEDIT_PYTHON" >&2
  exit 2
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { cmake --preset fuzz -DCMAKE_PREFIX_PATH="$torch" && cmake --build --preset fuzz; } \
    >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
# LibTorch is not built with the sanitizers and keeps objects until the process ends, which the leak
# check would report, and it frees some memory by another allocator's function than it came from.
export ASAN_OPTIONS="detect_leaks=0:alloc_dealloc_mismatch=0:abort_on_error=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export UBSAN_OPTIONS="print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
export OMP_NUM_THREADS=1
[ $# -gt 0 ] || set -- --runs 200000 --seed 1
build/fuzz/tests/fuzz_readers "$@"
