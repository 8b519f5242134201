"""From process start to the PNG on the demo model, 20 steps: cachedit against diffusers, imports included."""

import common

BAR = 8.0


def main():
    options = common.arguments(__doc__, rounds=5)
    rows = []
    for dtype in ("fp32", "bf16"):
        runs = common.alternate(options, model=common.DEMO_MODEL, prompt="red apple", dtype=dtype,
                                steps=20, **common.DEMO_SETTINGS)
        rows.append(common.compare(f"emoji-flux, 128 x 128, 20 steps, {dtype}", runs,
                                   lambda report: report["process_seconds"], BAR))
    common.print_table("From process start to PNG", rows)
    common.save("startup_to_png", rows, options)


if __name__ == "__main__":
    main()
