"""Seconds per transformer step, cachedit against diffusers, on the demo model and at FLUX.1's width."""

import common
import make_flux_width_checkpoint

DEMO_BAR = 1.5
FLUX_WIDTH_BAR = 1.0


def main():
    options = common.arguments(__doc__, rounds=3)
    rows = []
    for dtype in ("fp32", "bf16"):
        runs = common.alternate(options, model=common.DEMO_MODEL, prompt="red apple", dtype=dtype,
                                steps=20, **common.DEMO_SETTINGS)
        rows.append(common.compare(f"emoji-flux, 64 + 24 tokens, {dtype}", runs, common.median_step, DEMO_BAR))
    runs = common.alternate(options, model=make_flux_width_checkpoint.ensure(), prompt="red apple",
                            dtype="bf16", steps=4, **make_flux_width_checkpoint.SETTINGS)
    rows.append(common.compare("FLUX.1 width, 1024 + 512 tokens, bf16", runs, common.median_step,
                               FLUX_WIDTH_BAR))
    common.print_table("Seconds per transformer step", rows)
    common.save("step_time", rows, options)


if __name__ == "__main__":
    main()
