#!/usr/bin/env python3
"""Checks the house rules that a compiler does not: the arrows between the rooms of src/, what public
headers, programs and kernels may include, file lengths, and a few header rules.

    tools/check_layers.py [ROOT]     prints "file:line: fault" for each fault, exits 1 if there is one

The table below is the one of docs/architecture.md. Needs nothing but Python 3.9.
"""

import pathlib
import re
import sys

# Room -> the rooms that it may include, besides itself and the public headers.
ROOMS = {
    "kernels": set(),
    "base": {"kernels"},
    "io": {"base"},
    "text": {"base", "io"},
    "comm": {"base"},
    "attention": {"base", "kernels"},
    "nn": {"base", "kernels", "io", "attention", "comm"},
    "cache": {"base", "kernels", "nn", "comm"},
    "parallel": {"base", "comm", "attention"},
    "models": {"base", "io", "comm", "attention", "nn"},
    "pipelines": {"base", "io", "text", "comm", "attention", "nn", "cache", "parallel", "models"},
}

# System headers that a part of the tree may not include, as regular expressions.
FORBIDDEN_HEADERS = {
    "src/base/": r"(ATen|torch)/",
    "src/kernels/": r"(ATen|torch|c10)/",
    "include/cachedit/": r"nlohmann/|mpi\.h|torch/|c10d/|CLI/|spdlog/",
}
# These pull in all of LibTorch and cost about 25 seconds a file.
HEAVY_HEADERS = {"torch/torch.h", "torch/all.h", "torch/extension.h", "ATen/ATen.h"}

MAX_LINES = 500
CODE_FOLDERS = ("src", "include", "apps", "examples", "tests", "bench", "tools")
CODE_SUFFIXES = {".h", ".cc", ".py", ".sh", ".cmake"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
USING_NAMESPACE = re.compile(r"^\s*using\s+namespace\b")
ROOM_TARGET = re.compile(r"cachedit_room\(\s*(\w+)([^)]*)\)")
CMAKE_KEYWORDS = {"USES", "LINK", "TORCH"}


def room_of(path):
    """The room of a path like src/nn/layers.h, or None outside src/."""
    parts = path.split("/")
    return parts[1] if parts[0] == "src" and len(parts) > 2 else None


def quoted_include_fault(path, target, root):
    """Why the file `path` may not #include "target", or None."""
    first = target.split("/")[0] if "/" in target else ""
    room = room_of(path)
    if first == "cachedit":
        return "kernels take raw pointers and include no other room" if room == "kernels" else None
    if room is not None:
        if first not in ROOMS:
            return f'write includes from src/ ("room/file.h"): got "{target}"'
        if first == room or first in ROOMS.get(room, set()):
            return None
        allowed = ", ".join(sorted(ROOMS.get(room, set()))) or "no other room"
        return f'{room} may not include "{target}": it may use {allowed}'
    if path.startswith("include/"):
        return f'public headers include only "cachedit/..." headers: got "{target}"'
    if path.startswith(("apps/", "examples/")):
        beside = (root / path).parent / target
        if first in ROOMS or not beside.is_file():
            return f'programs include only "cachedit/..." and files beside them: got "{target}"'
    return None


def system_include_fault(path, target):
    """Why the file `path` may not #include <target>, or None."""
    if target in HEAVY_HEADERS:
        return f"<{target}> costs 25 seconds a file: include the narrow headers (ATen/ops/..., ...)"
    for folder, pattern in FORBIDDEN_HEADERS.items():
        if path.startswith(folder) and re.match(pattern, target):
            return f"{folder} may not include <{target}>"
    return None


def check_cpp(path, lines, root):
    """Yields (line number, fault) for one C++ file."""
    is_header = path.endswith(".h")
    if is_header and not any(line.strip() == "#pragma once" for line in lines):
        yield 1, "a header needs #pragma once"
    for number, line in enumerate(lines, 1):
        if is_header and USING_NAMESPACE.match(line):
            yield number, "no using namespace in a header"
        include = INCLUDE.match(line)
        if include is None:
            continue
        quote, target = include.groups()
        fault = (
            quoted_include_fault(path, target, root) if quote == '"' else system_include_fault(path, target)
        )
        if fault:
            yield number, fault


def check_room_target(path, text):
    """Yields (line number, fault): the USES list of a room's CMake target against the table."""
    for match in ROOM_TARGET.finditer(text):
        name, arguments = match.group(1), match.group(2).split()
        if "USES" not in arguments:
            continue
        for used in arguments[arguments.index("USES") + 1 :]:
            if used in CMAKE_KEYWORDS:
                break
            if used not in ROOMS.get(name, set()):
                line = text.count("\n", 0, match.start()) + 1
                yield line, f"{name} may not use {used}"


def check_tree(root):
    """Every fault below `root`, as "file:line: fault", in order of path and line."""
    faults = []
    for folder in CODE_FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            path = file.relative_to(root).as_posix()
            if not file.is_file() or "/goldens/" in path and file.suffix not in CODE_SUFFIXES:
                continue
            if path.startswith("src/") and path.count("/") > 1 and room_of(path) not in ROOMS:
                faults.append(f"{path}:1: unknown room {room_of(path)}: add it to {pathlib.Path(__file__).name}")
                continue
            if file.name == "CMakeLists.txt":
                found = check_room_target(path, file.read_text(encoding="utf-8"))
                faults += [f"{path}:{number}: {fault}" for number, fault in found]
            if file.suffix not in CODE_SUFFIXES:
                continue
            lines = file.read_text(encoding="utf-8").splitlines()
            if len(lines) > MAX_LINES:
                faults.append(f"{path}:{MAX_LINES}: {len(lines)} lines: split it, {MAX_LINES} is the limit")
            if file.suffix in {".h", ".cc"}:
                faults += [f"{path}:{number}: {fault}" for number, fault in check_cpp(path, lines, root)]
    return faults


def main(arguments):
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parents[1]).resolve()
    if not (root / "src").is_dir():
        print(f"{root} holds no src/ folder", file=sys.stderr)
        return 2
    faults = check_tree(root)
    for fault in faults:
        print(fault)
    print(f"layers: {len(faults)} fault{'' if len(faults) == 1 else 's'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
