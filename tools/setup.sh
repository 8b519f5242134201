#!/usr/bin/env bash
# Installs what a task needs and nothing else: tools/setup.sh [build|test|lint|tidy|train]...
#
# Debian packages come from tools/apt-packages.txt (only the missing ones are installed, through sudo
# when not root); Python packages from requirements-*.txt go into .venv of this checkout. Stamp files
# in .venv make later runs return at once.
#
#   CACHEDIT_PYTHON    the Python to make .venv with (default python3)
#   CACHEDIT_PIP_ARGS  extra arguments of pip install, e.g. an index that serves CPU wheels of torch
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

install_apt() {  # install_apt PURPOSE...
  local wanted=() missing=() package purpose
  for purpose in "$@"; do
    mapfile -t -O "${#wanted[@]}" wanted < <(awk -v p="$purpose" '$1 == p {print $2}' tools/apt-packages.txt)
  done
  for package in "${wanted[@]}"; do
    if [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
      missing+=("$package")
    fi
  done
  [ "${#missing[@]}" -gt 0 ] || return 0
  if ! command -v apt-get >/dev/null; then
    say "these Debian packages (or their like on this system) are needed: ${missing[*]}"
    exit 1
  fi
  local root=()
  [ "$(id -u)" = 0 ] || root=(sudo)
  say "installing ${missing[*]}"
  "${root[@]}" apt-get update -qq
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

install_python() {  # install_python REQUIREMENTS_FILE
  local python=.venv/bin/python
  if ! "$python" -c '' 2>/dev/null; then
    say "making .venv"
    "${CACHEDIT_PYTHON:-python3}" -m venv --clear .venv
  fi
  local stamp=".venv/.done-${1%.txt}"
  if cmp -s "$1" "$stamp"; then return 0; fi
  say "installing the Python packages of $1 into .venv"
  # shellcheck disable=SC2086  # the variable holds several arguments
  "$python" -m pip install --disable-pip-version-check --quiet ${CACHEDIT_PIP_ARGS:-} -r "$1" >&2
  cp "$1" "$stamp"
}

warn_about_cuda_build() {
  local cuda
  cuda=$(.venv/bin/python -c 'import torch; print(torch.version.cuda or "")' 2>/dev/null)
  if [ -n "$cuda" ] && ! command -v nvcc >/dev/null; then
    say "the torch in .venv is built for CUDA $cuda, whose toolkit CMake will not find here." \
      "For a CPU build: make distclean, then set CACHEDIT_PIP_ARGS='--index-url ADDRESS' to the CPU" \
      "index that PyTorch's installation page names, and run this again."
  fi
}

tasks=("$@")
[ "${#tasks[@]}" -gt 0 ] || tasks=(build)
for task in "${tasks[@]}"; do
  case $task in
    build)
      install_apt build
      if ! cmp -s requirements-build.txt .venv/.done-requirements-build; then
        install_python requirements-build.txt
        warn_about_cuda_build
      fi
      ;;
    test)
      "$0" build
      install_apt test
      install_python requirements-test.txt
      ;;
    lint) install_apt lint ;;
    tidy) "$0" build && install_apt tidy ;;
    train)
      install_apt train
      "$0" test
      ;;
    *)
      say "unknown task '$task': use build, test, lint, tidy or train"
      exit 2
      ;;
  esac
done
