"""Makes the goldens of the calibrators: what cache-dit's forecasts give for sequences of updates.

    python tests/goldens/make_calibrators.py

cache_calibrators/cases.json holds per case the options and the sequence, a letter a step: U for a
computed value, A for a forecast, S for a value of another shape that is then kept.
cache_calibrators/expected.safetensors holds NAME.U<step> and NAME.A<step>.
"""

import json
import pathlib

import torch
from cache_dit import DMDCalibratorConfig, FoCaCalibratorConfig, TaylorSeerCalibratorConfig
from cache_dit.caching.cache_contexts.calibrators import Calibrator
from safetensors.torch import save_file

CONFIGS = {"taylorseer": TaylorSeerCalibratorConfig, "foca": FoCaCalibratorConfig, "dmd": DMDCalibratorConfig}
SEQUENCES = {
    "alternate": "UUUAUAUAUAUAUA",
    "growing": "UAUUAAUAAAUAAAAUAAAAAA",
    "reshaped": "UUUUAASUUUAAUUA",
    "regular": "UUUUUAAUAAUAAUAAUAAUAAAAA",
}
RANDOM_SEQUENCES = 4


def cases():
    all_cases = []
    for order in range(5):
        all_cases.append((f"taylor_{order}", dict(calibrator_type="taylorseer", taylorseer_order=order)))
    all_cases.append(("foca", dict(calibrator_type="foca")))
    for name, options in {"6": {}, "4": dict(dmd_history=4), "3": dict(dmd_history=3), "8": dict(dmd_history=8),
                          "low": dict(dmd_svd_precision="low"), "high": dict(dmd_svd_precision="high"),
                          "rank_1": dict(dmd_rank=1), "rank_3": dict(dmd_rank=3), "rank_9": dict(dmd_rank=9),
                          "ridge": dict(dmd_ridge=0.05)}.items():
        all_cases.append((f"dmd_{name}", dict(calibrator_type="dmd", **options)))
    return all_cases


def trajectory(generator, shape):
    """A smooth path of two oscillations and a drift, with noise, as a function of the step."""
    a, b, c, d = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(4))

    def value(t):
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        oscillations = a * torch.cos(torch.tensor(0.3 * t)) * 0.97**t + b * torch.sin(torch.tensor(0.2 * t))
        smooth = oscillations + c + d * 0.02 * t
        return (smooth + 0.01 * noise).float()

    return value


def main():
    generator = torch.Generator().manual_seed(20)
    sequences = dict(SEQUENCES)
    for i in range(RANDOM_SEQUENCES):
        draws = torch.rand(24, generator=generator)
        sequences[f"random_{i}"] = "UU" + "".join("U" if draw < 0.5 else "A" for draw in draws)
    tensors, records = {}, {}
    for case, options in cases():
        for sequence_name, sequence in sequences.items():
            name = f"{case}_{sequence_name}"
            calibrator = Calibrator(CONFIGS[options["calibrator_type"]](**options))
            value = trajectory(generator, (2, 3, 5))
            for step, letter in enumerate(sequence):
                calibrator.mark_step_begin()
                if letter == "A":
                    tensors[f"{name}.A{step}"] = calibrator.approximate("slot").clone()
                    continue
                if letter == "S":
                    value = trajectory(generator, (2, 4, 5))
                tensors[f"{name}.U{step}"] = value(step)
                calibrator.update(tensors[f"{name}.U{step}"], "slot")
            records[name] = {"options": options, "sequence": sequence}
    folder = pathlib.Path(__file__).resolve().parent / "cache_calibrators"
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "expected.safetensors")
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(record)}" for name, record in records.items())
    (folder / "cases.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
