"""Writes schedules/*.json: noise schedules, single steps and beta quantiles of the peers.

Run with diffusers 0.42.1, torch, numpy and scipy installed:  python make_schedules.py
Every float32 is written with 9 significant digits, which name it exactly.
"""

import itertools
import json
import pathlib
import warnings

import numpy as np
import scipy.stats
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

OUT = pathlib.Path(__file__).parent / "schedules"

FULL = {
    "base_image_seq_len": 256, "base_shift": 0.5, "invert_sigmas": False,
    "max_image_seq_len": 4096, "max_shift": 1.15, "num_train_timesteps": 1000, "shift": 1.0,
    "shift_terminal": None, "stochastic_sampling": False, "time_shift_type": "exponential",
    "use_beta_sigmas": False, "use_dynamic_shifting": False, "use_exponential_sigmas": False,
    "use_karras_sigmas": False,
}
DEV = {**FULL, "shift": 3.0, "use_dynamic_shifting": True}
CONFIGS = {
    "schnell": FULL,
    "dev": DEV,
    "qwen_image": {**FULL, "max_image_seq_len": 8192, "max_shift": 0.9, "shift_terminal": 0.02,
                   "use_dynamic_shifting": True},
    "ltx": {**FULL, "base_image_seq_len": 1024, "base_shift": 0.95, "max_shift": 2.05,
            "shift_terminal": 0.1, "use_dynamic_shifting": True},
    "z_image": {"num_train_timesteps": 1000, "use_dynamic_shifting": False, "shift": 3.0},
    "short_training": {"num_train_timesteps": 37, "shift": 1.73},
    "linear": {**DEV, "base_shift": 0.25, "max_shift": 0.75, "time_shift_type": "linear"},
    "static_terminal": {**FULL, "shift": 2.5, "shift_terminal": 0.05},
    "inverted": {**FULL, "invert_sigmas": True},
    "inverted_dev": {**DEV, "invert_sigmas": True},
}
for spacing, base in itertools.product(("karras", "exponential", "beta"), ("z_image", "dev")):
    CONFIGS[f"{spacing}_{base}"] = {**CONFIGS[base], f"use_{spacing}_sigmas": True}
CONFIGS["beta_qwen_image"] = {**CONFIGS["qwen_image"], "use_beta_sigmas": True}
CONFIGS["karras_inverted"] = {**FULL, "use_karras_sigmas": True, "invert_sigmas": True}


def exact(values):
    return [float(f"{v:.9g}") for v in np.asarray(values, dtype=np.float64).ravel().tolist()]


def run(config, request):
    scheduler = FlowMatchEulerDiscreteScheduler.from_config(config)
    scheduler.set_timesteps(**request)
    return {"timesteps": exact(scheduler.timesteps), "sigmas": exact(scheduler.sigmas)}


def pipeline_sigmas(steps):
    return np.linspace(1.0, 1 / steps, steps).tolist()


def requests(config):
    mu = {"mu": 0.8765} if config.get("use_dynamic_shifting") else {}
    terminal = bool(config.get("shift_terminal"))
    for steps in (1, 2, 4, 20):
        if steps == 1 and terminal:
            continue  # NaN or 1 - terminal by rounding: the test states what is right
        yield f"default_{steps}", {"num_inference_steps": steps, **mu}
        yield f"pipeline_{steps}", {"sigmas": pipeline_sigmas(steps), **mu}
    yield "custom_sigmas", {"sigmas": [0.97, 0.61, 0.33, 0.125], "num_inference_steps": 4, **mu}
    yield "custom_timesteps", {"timesteps": [990.5, 500.0, 20.25], **mu}
    yield "both", {"sigmas": [1.0, 0.7, 0.2], "timesteps": [1000, 650.5, 150], **mu}


def schedules():
    cases = []
    for name, config in CONFIGS.items():
        for kind, request in requests(config):
            cases.append({"config": name, "kind": kind, "request": request} | run(config, request))
    for name in ("schnell", "dev", "qwen_image"):
        for steps, mu in itertools.product((28, 50), (0.5, 1.15)):
            for kind, sigmas in (("default", None), ("pipeline", pipeline_sigmas(steps))):
                request = {"num_inference_steps": steps, "mu": mu}
                if sigmas:
                    request["sigmas"] = sigmas
                cases.append({"config": name, "kind": f"{kind}_{steps}_mu{mu}", "request": request}
                             | run(CONFIGS[name], request))
    return {"configs": CONFIGS, "cases": cases}


def steps():
    """Euler steps and noised samples: values and inputs in float32 and bfloat16."""
    generator = torch.Generator("cpu").manual_seed(11)
    cases = []
    for dtype, stochastic in itertools.product((torch.float32, torch.bfloat16), (False, True)):
        config = {"shift": 3.0, "stochastic_sampling": stochastic}
        scheduler = FlowMatchEulerDiscreteScheduler.from_config(config)
        scheduler.set_timesteps(4)
        output, sample, noise = (
            torch.randn(2, 3, 4, generator=generator).to(dtype) for _ in range(3))
        for index in (0, 1, 3):
            scheduler.set_begin_index(index)
            scheduler._step_index = None
            timestep = scheduler.timesteps[index]
            noised = scheduler.scale_noise(sample, timestep[None].repeat(2), noise)
            result = scheduler.step(
                output, timestep, sample, generator=torch.Generator("cpu").manual_seed(7),
                return_dict=False)[0]
            assert result.dtype == dtype and noised.dtype == dtype
            cases.append({
                "dtype": str(dtype).removeprefix("torch."), "config": config, "steps": 4,
                "index": index, "noise_seed": 7, "shape": list(sample.shape),
                "model_output": exact(output.float()), "sample": exact(sample.float()),
                "noise": exact(noise.float()), "stepped": exact(result.float()),
                "noised": exact(noised.float()),
            })
    return {"cases": cases}


def beta_quantiles():
    probabilities = [*np.linspace(0, 1, 41), 1e-12, 1e-6, 0.003, 1 - 1e-6, 1 - 1e-12]
    return {"cases": [
        {"alpha": a, "beta": b, "probability": float(p),
         "quantile": float(scipy.stats.beta.ppf(p, a, b))}
        for (a, b), p in itertools.product(((0.6, 0.6), (2.0, 3.0), (0.3, 7.0)), probabilities)]}


def write(name, data):
    """One line a case, so that a changed case shows as one changed line."""
    head = {k: v for k, v in data.items() if k != "cases"}
    lines = ["{"]
    lines += [f"{json.dumps(k)}: {json.dumps(v)}," for k, v in head.items()]
    lines += ['"cases": [', ",\n".join(json.dumps(c) for c in data["cases"]), "]}"]
    (OUT / name).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    write("schedules.json", schedules())
    write("steps.json", steps())
    write("beta_quantiles.json", beta_quantiles())
