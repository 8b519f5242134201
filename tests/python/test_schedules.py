"""Noise schedules against diffusers, live: a seeded sweep of configs and requests.

Needs the probe (CACHEDIT_PROBE, or build/release/tests/cachedit_probe) and the peers' Python.
"""

import json
import math
import os
import pathlib
import random
import subprocess
import warnings

import diffusers
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROBE = pathlib.Path(os.environ.get("CACHEDIT_PROBE", ROOT / "build/release/tests/cachedit_probe"))
CLASS = {"_class_name": "FlowMatchEulerDiscreteScheduler"}
SPACINGS = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas")


def ours(cases):
    """The probe's answer to every (config, request)."""
    lines = [json.dumps({"config": CLASS | config, "request": request}) for config, request in cases]
    done = subprocess.run([PROBE, "schedule"], input="\n".join(lines), text=True,
                          capture_output=True, check=True, timeout=300)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(cases), done.stderr
    return answers


def peers(config, request):
    """What diffusers makes of it: (timesteps, sigmas), or None where it raises."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            scheduler = diffusers.FlowMatchEulerDiscreteScheduler.from_config(config)
            scheduler.set_timesteps(**request)
    except (ValueError, TypeError, ArithmeticError):
        return None
    return scheduler.timesteps.numpy(), scheduler.sigmas.numpy()


def random_config(rng):
    config = {
        "num_train_timesteps": rng.choice([1000, 1000, 1000, 500, 37]),
        "shift": rng.choice([1.0, 3.0, 7, round(rng.uniform(0.3, 9), 3)]),
        "use_dynamic_shifting": rng.random() < 0.5,
        "time_shift_type": rng.choice(["exponential", "linear"]),
        "invert_sigmas": rng.random() < 0.2,
        "shift_terminal": rng.choice([None, None, 0.02, 0.1, round(rng.uniform(0.01, 0.5), 3)]),
    }
    if rng.random() < 0.5:
        config[rng.choice(SPACINGS)] = True
    return config


def random_request(rng, config):
    steps = rng.choice([1, 2, 3, 4, 8, 20, 28, 50])
    request = {}
    levels = sorted((round(rng.uniform(0.05, 1), 4) for _ in range(steps)), reverse=True)
    kind = rng.choice(["steps", "pipeline", "sigmas", "timesteps", "both"])
    if kind == "pipeline":
        request["sigmas"] = np.linspace(1.0, 1 / steps, steps).tolist()
    if kind in ("sigmas", "both"):
        request["sigmas"] = levels
    if kind in ("timesteps", "both"):
        request["timesteps"] = [level * config["num_train_timesteps"] for level in levels]
    if kind == "steps" or rng.random() < 0.3:
        request["num_inference_steps"] = steps
    if config["use_dynamic_shifting"] or rng.random() < 0.3:
        request["mu"] = rng.choice([0.5, 1.15, round(rng.uniform(0.1, 3), 4)])
    return request


def with_a_fault(rng, config, request):
    """The same, spoilt in one of the ways that diffusers refuses."""
    config, request = dict(config), dict(request)
    fault = rng.choice(["two spacings", "shift type", "no mu", "count", "lengths", "nothing"])
    if fault == "two spacings":
        config |= dict.fromkeys(rng.sample(SPACINGS, 2), True)
    elif fault == "shift type":
        config["time_shift_type"] = "quadratic"
    elif fault == "no mu":
        config["use_dynamic_shifting"] = True
        request.pop("mu", None)
    elif fault == "count":
        request |= {"sigmas": [1.0, 0.6, 0.3], "num_inference_steps": rng.choice([1, 2, 4])}
    elif fault == "lengths":
        request |= {"sigmas": [1.0, 0.6, 0.3], "timesteps": [900.0, 50.0]}
    else:
        request = {"mu": 0.7}
    return config, request


def ulps(got, want):
    want = np.asarray(want, dtype=np.float32)
    difference = np.abs(np.asarray(got, dtype=np.float64) - want.astype(np.float64))
    return difference / np.spacing(np.abs(want))


def single_noise_step_with_terminal(config, request, want):
    """Where diffusers divides 0, or what rounding left of it, by 0.98: a rule of ours (below)."""
    if not config.get("shift_terminal") or len(want[1]) != 2:
        return False
    plain = peers({**config, "shift_terminal": None, **dict.fromkeys(SPACINGS, False)}, request)
    start = 1 - plain[1][0] if config.get("invert_sigmas") else plain[1][0]
    return abs(1 - start) <= 1e-6


def test_schedules_equal_diffusers():
    rng = random.Random(20260)
    cases = []
    while len(cases) < 240:
        config = random_config(rng)
        cases.append((config, random_request(rng, config)))
    compared = 0
    for (config, request), got in zip(cases, ours(cases), strict=True):
        want = peers(config, request)
        assert want is not None, (config, request)
        if single_noise_step_with_terminal(config, request, want):
            continue
        assert "error" not in got, (config, request, got)
        # Plain schedules are bit-equal. The spacings use pow, exp and beta quantiles, where the
        # last bit of a float64 may differ and with it the float32 next to a rounding boundary;
        # inverting and scaling can carry that over a power of two.
        spaced = any(config.get(key) for key in SPACINGS)
        for values, wanted in zip((got["timesteps"], got["sigmas"]), want, strict=True):
            assert len(values) == len(wanted)
            if not spaced:
                assert np.array_equal(np.asarray(values, np.float32), wanted), (config, request)
            elif config["invert_sigmas"]:
                scale = max(1.0, float(np.abs(wanted).max()))
                assert np.abs(np.asarray(values) - wanted).max() <= 1.2e-7 * scale
            else:
                assert ulps(values, wanted).max() <= 2, (config, request)
        compared += 1
    assert compared >= 200


def test_both_refuse_the_same():
    rng = random.Random(31)
    cases = []
    for _ in range(60):
        config = random_config(rng)
        cases.append(with_a_fault(rng, config, random_request(rng, config)))
    for (config, request), got in zip(cases, ours(cases), strict=True):
        assert peers(config, request) is None, (config, request)
        assert got.get("error", "").startswith("["), (config, request, got)


def test_no_schedule_holds_what_is_not_finite():
    """diffusers returns NaN for these; they are refused, or have the one meaningful answer."""
    dynamic = {"use_dynamic_shifting": True, "shift_terminal": 0.02}
    linear = {"use_dynamic_shifting": True, "time_shift_type": "linear"}
    cases = [
        (dynamic, {"num_inference_steps": 1, "mu": 0.6}),
        (linear, {"num_inference_steps": 4, "mu": 0.0}),
        ({"shift_terminal": 0.1}, {"sigmas": [0.5, 1.0]}),
        ({"shift": 3.0}, {"sigmas": [-0.5, 1e39]}),
    ]
    answers = ours(cases)
    for (config, request), got in zip(cases, answers, strict=True):
        want = peers(config, request)
        assert not all(np.isfinite(part).all() for part in want), (config, request)
        assert "error" in got or all(map(math.isfinite, got["sigmas"]))
    assert answers[0] == {"timesteps": [1000], "sigmas": [1, 0]}
    assert all("error" in answer for answer in answers[1:])


@pytest.mark.parametrize("steps", [0, -1])
def test_steps_below_one_are_refused(steps):
    assert "num_inference_steps" in ours([({}, {"num_inference_steps": steps})])[0]["error"]
