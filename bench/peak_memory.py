"""Peak resident memory of one picture at FLUX.1's width: cachedit's may pass the weights by 1 GiB."""

import statistics

import common
import make_flux_width_checkpoint

SPARE_GIB = 1.0


def main():
    options = common.arguments(__doc__, rounds=1)
    model = make_flux_width_checkpoint.ensure()
    weights = sum(file.stat().st_size for file in model.rglob("*.safetensors")) / common.GIB
    runs = common.alternate(options, model=model, prompt="red apple", dtype="bf16", steps=2,
                            **make_flux_width_checkpoint.SETTINGS)
    peaks = {side: statistics.median(report["process_peak_bytes"] for report in reports) / common.GIB
             for side, reports in runs.items()}
    row = {"weights_gib": weights, "limit_gib": weights + SPARE_GIB, **peaks,
           "met": peaks["cachedit"] <= weights + SPARE_GIB}

    print("\nPeak resident memory of one picture, FLUX.1 width, bf16 (GiB)")
    print(f"  weights {weights:.2f}, limit {row['limit_gib']:.2f}: cachedit {peaks['cachedit']:.2f} "
          f"{'met' if row['met'] else 'MISSED'}, diffusers {peaks['diffusers']:.2f}")
    common.save("peak_memory", [row], options)


if __name__ == "__main__":
    main()
