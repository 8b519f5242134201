"""Block caching against cache-dit, live: both read the same YAML file and draw the same picture.

Steps are reused alike, differences agree to 1e-3 and latents to 1e-4, relative.
"""

import json
import pathlib
import shutil
import sys

import pytest
import torch

pytest.importorskip("cache_dit", reason="the peer is not installed")
import cache_dit  # noqa: E402
from cache_dit.caching.cache_adapters.cache_adapter import CachedAdapter  # noqa: E402
from cache_dit.caching.cache_types import CacheType  # noqa: E402
from diffusers import FluxPipeline  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "goldens"))
import make_flux  # noqa: E402

QUICK = {"Fn_compute_blocks": 1, "max_warmup_steps": 3, "residual_diff_threshold": 0.3, "enable_separate_cfg": False}
PICTURE = {"prompt": "red apple", "height": 64, "width": 64, "steps": 16, "seed": 11}
GUIDED = {**PICTURE, "prompt": "an emoji of a crab", "true_cfg_scale": 2.5, "negative_prompt": "blurry", "steps": 12}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def demo(demo_model):
    pipe = FluxPipeline.from_pretrained(demo_model, dtype=torch.float32, local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def theirs(pipe, config, monkeypatch, *, prompt, height, width, steps, seed, **guidance):
    """Latents, and the statistics of every context."""
    contexts = []
    monkeypatch.setattr(CachedAdapter, "apply_stats_hooks", classmethod(
        lambda _, adapter: contexts.extend(adapter.pipe._context_manager._cached_context_manager.values())))
    options = cache_dit.load_configs(str(config))
    # cache-dit 1.5.3 leaves the type of a file as text, which its enable_cache() refuses.
    options["cache_config"].cache_type = CacheType(str(options["cache_config"].cache_type))
    cache_dit.enable_cache(pipe, **options)
    try:
        with torch.no_grad():
            latents = pipe(prompt, height=height, width=width, num_inference_steps=steps, output_type="latent",
                           max_sequence_length=24, generator=torch.Generator("cpu").manual_seed(seed),
                           **guidance).images
    finally:
        cache_dit.disable_cache(pipe)
    return latents, contexts


def ours(generate, config, *arguments, **settings):
    flags = [part for key, value in settings.items() for part in (f"--{key.replace('_', '-')}", value)]
    report = generate.report(*flags, *arguments, "--config-path", config, "--dtype", "fp32", "--device", "cpu",
                             "--output-type", "latent", "--max-sequence-length", 24, "--save-path", "x.safetensors")
    return load_file(generate.folder / "x.safetensors")["latents"], report["cache"]


def check_diffs(got, want):
    assert list(got) == list(want)
    for step, diffs in want.items():
        assert got[step] == pytest.approx(diffs, rel=1e-3), step


def check(generate, pipe, tmp_path, monkeypatch, cache_config, settings, *arguments):
    config = tmp_path / "cache.yaml"  # JSON is YAML, too
    config.write_text(json.dumps({"cache_config": cache_config}, indent=1))
    want, contexts = theirs(pipe, config, monkeypatch, **settings)
    got, records = ours(generate, config, *arguments, **settings)
    assert len(records) == len(contexts)
    for record, context in zip(records, contexts):
        assert record["cached_steps"] == context.cached_steps
        assert record["cfg_cached_steps"] == context.cfg_cached_steps
        assert record["pruned_blocks"] == getattr(context, "pruned_blocks", [])
        assert record["cfg_pruned_blocks"] == getattr(context, "cfg_pruned_blocks", [])
        check_diffs(record["residual_diffs"], context.residual_diffs)
        check_diffs(record["cfg_residual_diffs"], context.cfg_residual_diffs)
    assert (got - want).norm() <= 1e-4 * want.norm()
    return [record["cached_steps"] for record in records]


CONFIGURATIONS = {
    "defaults": ({"enable_separate_cfg": False}, {**PICTURE, "steps": 28}),
    "front and back": ({**QUICK, "Fn_compute_blocks": 2, "Bn_compute_blocks": 3}, PICTURE),
    "limits": ({**QUICK, "max_cached_steps": 7, "max_continuous_cached_steps": 2, "warmup_interval": 2}, PICTURE),
    "accumulated": ({**QUICK, "max_accumulated_residual_diff_threshold": 1.0}, PICTURE),
    "named mask": ({**QUICK, "steps_computation_mask": "fast", "num_inference_steps": 16}, PICTURE),
    "static mask": ({**QUICK, "steps_computation_mask": [1, 1, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1],
                     "steps_computation_policy": "static"}, PICTURE),
    "refresh": ({**QUICK, "force_refresh_step_hint": 7}, PICTURE),
    "guidance": ({**QUICK, "enable_separate_cfg": True}, GUIDED),
    "guidance, one difference": ({**QUICK, "enable_separate_cfg": True, "cfg_diff_compute_separate": False}, GUIDED),
    "taylorseer": ({**QUICK, "enable_taylorseer": True, "enable_encoder_taylorseer": True, "taylorseer_order": 2},
                   PICTURE),
    "taylorseer of states": ({**QUICK, "enable_taylorseer": True, "taylorseer_cache_type": "hidden_states"}, PICTURE),
    "foca": ({**QUICK, "enable_foca": True, "enable_encoder_foca": True}, PICTURE),
    "dmd": ({**QUICK, "enable_dmd": True, "dmd_history": 5, "max_continuous_cached_steps": 1}, PICTURE),
    "prune": ({**QUICK, "cache_type": "DBPrune", "residual_diff_threshold": 0.11, "non_prune_block_ids": [2, 7]},
              PICTURE),
    "prune, moving threshold": ({**QUICK, "cache_type": "DBPrune", "residual_diff_threshold": 0.1,
                                 "enable_separate_cfg": True, "enable_dynamic_prune_threshold": True,
                                 "enable_taylorseer": True}, GUIDED),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_shipped_model(generate, demo, tmp_path, monkeypatch, name):
    cache_config, settings = CONFIGURATIONS[name]
    [cached] = check(generate, demo, tmp_path, monkeypatch, cache_config, settings)
    assert cached, "a run without reused steps shows nothing"


@pytest.mark.parametrize(("cache_config", "seed"), [
    ({**QUICK, "residual_diff_threshold": 0.6}, 1),
    ({**QUICK, "residual_diff_threshold": 0.9, "Bn_compute_blocks": 1, "enable_foca": True}, 2),
    ({**QUICK, "residual_diff_threshold": 0.4, "cache_type": "DBPrune", "max_continuous_cached_steps": 2}, 3),
])
def test_random_checkpoints(generate, demo_model, tmp_path, monkeypatch, cache_config, seed):
    torch.manual_seed(seed)
    pipe = make_flux.build(dict(
        transformer=dict(num_layers=seed, num_single_layers=4, num_attention_heads=3, attention_head_dim=16,
                         axes_dims_rope=[4, 6, 6], guidance_embeds=seed == 2),
        scheduler=dict(shift=float(seed), use_dynamic_shifting=False)))
    folder = tmp_path / "model"
    pipe.save_pretrained(folder)
    # transformers 5 writes tokenizer.json alone; released checkpoints have the original files.
    for file in ("tokenizer/vocab.json", "tokenizer/merges.txt", "tokenizer_2/spiece.model"):
        shutil.copy(demo_model / file, folder / file)
    settings = {"prompt": "pizza", "height": 32, "width": 48, "steps": 14, "seed": seed, "guidance_scale": 2.0}
    check(generate, pipe, tmp_path, monkeypatch, cache_config, settings, "--model-path", folder)
