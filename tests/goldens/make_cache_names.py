"""Makes cache_names/names.json: the compact names that cache-dit's strify() gives configurations.

    python tests/goldens/make_cache_names.py

Options are written as in make_cache_runs.py.
"""

import json
import pathlib

from cache_dit import (DBCacheConfig, DBPruneConfig, DMDCalibratorConfig, FoCaCalibratorConfig,
                       TaylorSeerCalibratorConfig)

CALIBRATORS = {"taylorseer": TaylorSeerCalibratorConfig, "foca": FoCaCalibratorConfig, "dmd": DMDCalibratorConfig}
CACHES = [
    {}, {"enable_separate_cfg": True}, {"enable_separate_cfg": False},
    {"Fn_compute_blocks": 1, "max_warmup_steps": 4, "residual_diff_threshold": 0.24},
    {"Fn_compute_blocks": 12, "Bn_compute_blocks": 3, "warmup_interval": 2, "max_cached_steps": 20,
     "max_continuous_cached_steps": 4},
    {"num_inference_steps": 28, "force_refresh_step_hint": 14, "enable_separate_cfg": True},
    {"force_refresh_step_hint": 7, "force_refresh_step_policy": "repeat"},
    {"steps_computation_mask": [1, 1, 0, 1], "steps_computation_policy": "static"},
    {"steps_computation_mask": [1, 0, 1], "num_inference_steps": 3},
    *({"residual_diff_threshold": value}
      for value in (0.0, 1.0, 0.1, 1e-4, 1.5e-5, 10.0, 123.456, 1 / 3, 1e16, 2.5e17)),
]
CALIBRATOR_OPTIONS = [
    *(dict(calibrator_type="taylorseer", taylorseer_order=order) for order in range(5)),
    dict(calibrator_type="foca"), dict(calibrator_type="dmd"), dict(calibrator_type="dmd", dmd_history=4),
    dict(calibrator_type="dmd", dmd_svd_precision="low"), dict(calibrator_type="dmd", dmd_svd_precision="high"),
]


def main():
    names = [{"type": kind, "cache": options, "name": make(**options).strify()}
             for kind, make in (("dbcache", DBCacheConfig), ("dbprune", DBPruneConfig)) for options in CACHES]
    names += [{"calibrator": options, "name": CALIBRATORS[options["calibrator_type"]](**options).strify()}
              for options in CALIBRATOR_OPTIONS]
    folder = pathlib.Path(__file__).resolve().parent / "cache_names"
    folder.mkdir(exist_ok=True)
    (folder / "names.json").write_text("[\n" + ",\n".join(f" {json.dumps(name)}" for name in names) + "\n]\n")


if __name__ == "__main__":
    main()
