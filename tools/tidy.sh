#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy) over the sources: tools/tidy.sh [FILE...], all of them by default.
#
# clang cannot read GCC's precompiled header, so the compile commands come from a configuration of their
# own without it, which is never built. This also shows files that lean on the precompiled header.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
build=build/tidy

if [ ! -f "$build/build.ninja" ]; then
  prefix=$("$python" -W ignore -c 'import torch; print(torch.utils.cmake_prefix_path)')
  cmake --preset release -B "$build" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
    -DCMAKE_PREFIX_PATH="$prefix" -Wno-dev >/dev/null
fi

files=("$@")
if [ "${#files[@]}" -eq 0 ]; then
  mapfile -t files < <(find src apps examples -name '*.cc' | sort)
fi
printf '%s\n' "${files[@]}" |
  xargs -P "$(nproc)" -n 1 clang-tidy -p "$build" --quiet --extra-arg=-Wno-unused-command-line-argument \
    --extra-arg=-Wno-unknown-warning-option 2> >(grep -v 'warnings\? generated' >&2)
printf 'tidy: %d files are clean\n' "${#files[@]}"
