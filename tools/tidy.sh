#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy) over the sources: tools/tidy.sh [FILE...], all of them by default.
#
# The compile commands come from a configuration of their own that is never built: clang takes the text of
# the precompiled header, but stumbles over GCC's binary form of it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
build=build/tidy

prefix=$("$python" -W ignore -c 'import torch; print(torch.utils.cmake_prefix_path)')
cmake --preset release -B "$build" -Wno-dev -DCMAKE_PREFIX_PATH="$prefix" >/dev/null 2>&1 || {
  printf 'tidy: cmake failed; run: cmake --preset release -B %s\n' "$build" >&2
  exit 1
}

files=("$@")
if [ "${#files[@]}" -eq 0 ]; then
  mapfile -t files < <(find src apps examples -name '*.cc' | sort)
fi
printf '%s\n' "${files[@]}" |
  xargs -P "$(nproc)" -n 1 clang-tidy -p "$build" --quiet --extra-arg=-Wno-unused-command-line-argument \
    --extra-arg=-Wno-unknown-warning-option 2> >(grep -v 'warnings\? generated' >&2)
printf 'tidy: %d files are clean\n' "${#files[@]}"
