"""Draws docs/images/caching.svg: what a computed and a cached step do, and the residual differences of a run of
the demo model with the steps that they let pass. Needs no Python packages.

    python docs/images/make_caching.py [--build-dir build/release]
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "docs" / "images" / "caching.svg"
STEPS, THRESHOLD, WARMUP = 28, 0.35, 3
COMPACT = f"F1B0_W{WARMUP}_R{THRESHOLD}_T1O1"
COMPUTED, CACHED, SKIPPED, INK, LINE = "#3b6ea5", "#e0a030", "#e4e7eb", "#24292f", "#b03a2e"
WIDTH, HEIGHT = 760, 470


def run_of_the_demo_model(build_dir):
    """Differences by step, and the cached steps."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "report.json")
        subprocess.run([build_dir / "apps" / "cli" / "cachedit", "generate", "--prompt", "koala", "--steps", str(STEPS),
                        "--seed", "1", "--cache", COMPACT, "--quiet", "--json", report, "--save-path",
                        pathlib.Path(folder, "koala.png")], check=True, stdout=subprocess.DEVNULL)
        record = json.loads(report.read_text())["cache"][0]
    return {int(step): diff for step, diff in record["residual_diffs"].items()}, record["cached_steps"]


def box(x, y, w, h, fill, label="", ink="white", dashed=False):
    style = ' stroke="#8c959f" stroke-dasharray="4 3"' if dashed else ""
    text = f'<text x="{x + w / 2:.1f}" y="{y + h / 2 + 4.5:.1f}" fill="{ink}" text-anchor="middle">{label}</text>'
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="4" fill="{fill}"{style}/>' + text


def text(x, y, words, anchor="start", fill=INK, bold=False):
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}"{weight}>{words}</text>'


def arrow(x, y, to_x, to_y, fill=INK):
    return f'<path d="M{x:.1f} {y:.1f} L{to_x:.1f} {to_y:.1f}" stroke="{fill}" fill="none" marker-end="url(#head)"/>'


def schematic():
    """A row of blocks for each kind of step; the kept residual goes from one to the other."""
    parts = []
    for y, name, cached in ((40, "computed step", False), (130, "cached step", True)):
        parts.append(text(10, y + 24, name, bold=True))
        parts.append(box(130, y, 120, 38, COMPUTED, "first Fn blocks"))
        parts.append(arrow(250, y + 19, 293, y + 19))
        middle = (SKIPPED, "middle blocks, not run", INK) if cached else (COMPUTED, "middle blocks", "white")
        parts.append(box(295, y, 230, 38, *middle, dashed=cached))
        parts.append(arrow(525, y + 19, 568, y + 19))
        parts.append(box(570, y, 120, 38, COMPUTED, "last Bn blocks"))
        parts.append(arrow(690, y + 19, 735, y + 19))
    parts.append(arrow(190, 78, 190, 126, LINE))
    parts.append(text(198, 99, "residual: how much", fill=LINE))
    parts.append(text(198, 115, "did it change?", fill=LINE))
    parts.append(arrow(410, 78, 410, 126, CACHED))
    parts.append(text(418, 99, "residual, kept or forecast", fill="#9a6a10"))
    parts.append(text(418, 115, "by a calibrator, is added", fill="#9a6a10"))
    return parts


def plot(diffs, cached):
    """A bar per step, as high as its difference; the threshold as a line."""
    left, top, width, height = 60, 232, 680, 190
    highest = max(*diffs.values(), THRESHOLD) * 1.15
    slot = width / STEPS

    def y_of(value):
        return top + height * (1 - value / highest)

    parts = [text(left, top - 14, f"Relative difference at each step: demo model, {STEPS} steps, {COMPACT}", bold=True)]
    for tick in range(int(highest * 10) + 1):
        y = y_of(tick / 10)
        parts.append(f'<path d="M{left} {y:.1f} H{left + width}" stroke="#e4e7eb"/>')
        parts.append(text(left - 8, y + 4, f"{tick / 10:.1f}", "end"))
    for step in range(STEPS):
        fill = CACHED if step in cached else COMPUTED
        x = left + step * slot + 2
        if step in diffs:
            y = y_of(diffs[step])
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{slot - 4:.1f}" height="{top + height - y:.1f}" '
                         f'fill="{fill}"/>')
        parts.append(f'<rect x="{x:.1f}" y="{top + height + 3:.1f}" width="{slot - 4:.1f}" height="6" fill="{fill}"/>')
        if step % 5 == 0:
            parts.append(text(x + slot / 2 - 2, top + height + 24, str(step), "middle"))
    y = y_of(THRESHOLD)
    parts.append(f'<path d="M{left} {y:.1f} H{left + width}" stroke="{LINE}" stroke-dasharray="6 4"/>')
    parts.append(text(left + 4, y - 6, f"residual_diff_threshold {THRESHOLD}", fill=LINE))
    legend = top + height + 20
    computed = STEPS - len(cached)
    for x, fill, words in ((430, COMPUTED, f"computed ({computed})"), (580, CACHED, f"cached ({len(cached)})")):
        parts.append(box(x, legend, 12, 12, fill))
        parts.append(text(x + 18, legend + 11, words))
    return parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build" / "release")
    diffs, cached = run_of_the_demo_model(parser.parse_args().build_dir)
    head = ('<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="context-stroke"/></marker></defs>')
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
             'font-family="system-ui, sans-serif" font-size="13">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', head, *schematic(), *plot(diffs, cached), "</svg>"]
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
