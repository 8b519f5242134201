"""Block caching through the command line: each option, what a run reports, and what is refused."""

import json

import pytest
from PIL import Image

SMALL = ("--prompt", "red apple", "--steps", 6, "--width", 32, "--height", 32, "--seed", 7, "--threads", 1)
CACHED = (*SMALL, "--cache", "F1B0_W2_R0.9")


# The options.

FIELDS = [
    ("--Fn-compute-blocks", 2, {"Fn_compute_blocks": 2}),
    ("--Fn", 3, {"Fn_compute_blocks": 3}),
    ("--Bn-compute-blocks", 1, {"Bn_compute_blocks": 1}),
    ("--Bn", 2, {"Bn_compute_blocks": 2}),
    ("--residual-diff-threshold", 0.25, {"residual_diff_threshold": 0.25}),
    ("--rdt", 0.5, {"residual_diff_threshold": 0.5}),
    ("--max-accumulated-residual-diff-threshold", 2.5, {"max_accumulated_residual_diff_threshold": 2.5}),
    ("--max-warmup-steps", 4, {"max_warmup_steps": 4}),
    ("--ws", 5, {"max_warmup_steps": 5}),
    ("--warmup-interval", 2, {"warmup_interval": 2}),
    ("--wi", 3, {"warmup_interval": 3}),
    ("--max-cached-steps", 4, {"max_cached_steps": 4}),
    ("--mc", 5, {"max_cached_steps": 5}),
    ("--max-continuous-cached-steps", 2, {"max_continuous_cached_steps": 2}),
    ("--mcc", 3, {"max_continuous_cached_steps": 3}),
    ("--steps-mask", "110001", {"steps_computation_mask": [1, 1, 0, 0, 0, 1]}),
    ("--scm", "110101", {"steps_computation_mask": [1, 1, 0, 1, 0, 1]}),
    ("--steps-mask", "fast", {"steps_mask_policy": "fast"}),
    ("--separate-block-lists", None, {"separate_block_lists": True}),
    ("--taylorseer", None, {"calibrator_type": "taylorseer", "taylorseer_order": 1}),
    ("--dmd", None, {"calibrator_type": "dmd", "dmd_history": 6, "dmd_rank": 0, "dmd_ridge": 1e-8,
                     "dmd_svd_precision": "medium"}),
    ("--foca", None, {"calibrator_type": "foca"}),
    ("--calibrator", "foca", {"calibrator_type": "foca"}),
]


def flat(settings):
    """The options of caching as one level."""
    cache = settings["cache"]
    top = {key: value for key, value in cache.items() if key not in ("cache_config", "calibrator_config")}
    return {**top, **cache["cache_config"], **(cache["calibrator_config"] or {})}


def changes(generate, before, after):
    old, new = flat(generate.report(*before)["settings"]), flat(generate.report(*after)["settings"])
    assert set(old) <= set(new)
    return {key: new[key] for key in new if key not in old or new[key] != old[key]}


@pytest.mark.parametrize(("option", "value", "changed"), FIELDS)
def test_each_option_alone_changes_its_field_and_no_other(generate, option, value, changed):
    base = (*SMALL, "--cache", *(["F1"] if option == "--separate-block-lists" else []))
    found = changes(generate, base, (*base, option, *([] if value is None else [value])))
    if "calibrator_type" in changed:
        changed = {"enable_calibrator": True, "enable_encoder_calibrator": True,
                   "calibrator_cache_type": "residual", **changed}
    assert found == changed


@pytest.mark.parametrize(("option", "value", "changed", "beside"), [
    ("--taylorseer-order", 3, {"taylorseer_order": 3}, ("--taylorseer",)),
    ("--dmd-history", 4, {"dmd_history": 4}, ("--dmd",)),
    ("--dmd-svd-precision", "low", {"dmd_svd_precision": "low"}, ("--calibrator", "dmd")),
    ("--dmd-svd", "high", {"dmd_svd_precision": "high"}, ("--dmd",)),
    ("--mask-policy", "static", {"steps_computation_policy": "static"}, ("--steps-mask", "fast")),
    ("--static-skips-Fn-blocks", None, {"static_skips_Fn_blocks": True},
     ("--steps-mask", "fast", "--mask-policy", "static")),
    ("--enable-dynamic-prune-threshold", None, {"enable_dynamic_prune_threshold": True},
     ("--cache-type", "DBPrune")),
    ("--max-dynamic-prune-threshold", 0.5, {"max_dynamic_prune_threshold": 0.5}, ("--cache-type", "DBPrune")),
    ("--dynamic-prune-threshold-relax-ratio", 1.5, {"dynamic_prune_threshold_relax_ratio": 1.5},
     ("--cache-type", "DBPrune")),
    ("--non-prune-block-ids", "1,3", {"non_prune_block_ids": [1, 3]}, ("--cache-type", "DBPrune")),
    ("--force-reduce-calibrator-vram", None, {"force_reduce_calibrator_vram": True},
     ("--cache-type", "DBPrune")),
])
def test_options_that_need_another_one(generate, refused, option, value, changed, beside):
    base = (*SMALL, "--cache", "F1B0_W2_R0.3")
    given = (option, *([] if value is None else [value]))
    assert changes(generate, (*base, *beside), (*base, *beside, *given)) == changed
    for path in generate.folder.iterdir():
        path.unlink()
    says = "static_skips_Fn_blocks" if option == "--static-skips-Fn-blocks" else (option, "without")
    refused("generate", *base, *given, code=2, says=says)


@pytest.mark.parametrize("text", [
    "DBCache_F1B0_W2I1M0MC0_R0.9_T0O0", "DBCache_F2B1_W3I2M3MC1_R0.25_T1O2", "DBCache_F1B0_W2I1M0MC0_R0.9_FoCa",
    "DBCache_F1B0_W8I1M0MC0_R0.9_SCM110101_static_N6_DMDH4", "DBPrune_F1B0_W2I1M0MC0_R0.9_T1O1"])
def test_the_compact_form_prints_back(generate, text):
    [context] = generate.report(*SMALL, "--cache", text)["cache"]
    assert context["config"] == text


def test_cache_alone_has_the_defaults(generate):
    [context] = generate.report(*SMALL, "--cache")["cache"]
    assert context["config"] == "DBCache_F8B0_W8I1M0MC0_R0.08_T0O0"


def test_single_options_override_the_compact_form_which_overrides_the_file(generate):
    (generate.folder / "cache.yaml").write_text(
        "cache_config:\n  Fn_compute_blocks: 2\n  max_warmup_steps: 3\n  residual_diff_threshold: 0.3\n"
        "  enable_taylorseer: true\n  taylorseer_order: 2\nattention_backend: flash\n")

    def config(*arguments):
        return generate.report(*SMALL, "--config-path", "cache.yaml", *arguments)["cache"][0]["config"]

    assert config() == "DBCache_F2B0_W3I1M0MC0_R0.3_T1O2"
    assert config("--cache") == "DBCache_F2B0_W3I1M0MC0_R0.3_T1O2"
    assert config("--Fn", 1, "--rdt", 0.5) == "DBCache_F1B0_W3I1M0MC0_R0.5_T1O2"
    assert config("--taylorseer") == "DBCache_F2B0_W3I1M0MC0_R0.3_T1O2"
    assert config("--foca") == "DBCache_F2B0_W3I1M0MC0_R0.3_FoCa"
    assert config("--cache", "F1_R0.1", "--ws", 4) == "DBCache_F1B0_W4I1M0MC0_R0.1_T0O0"
    report = generate.report(*SMALL, "--config", "cache.yaml")
    assert report["attention_backend"] == "flash"
    assert generate.report(*SMALL, "--config", "cache.yaml", "--attn", "native")["attention_backend"] == "native"


def test_a_file_with_a_backend_alone_does_not_cache(generate):
    (generate.folder / "attention.yaml").write_text("attention_backend: flash\n")
    report = generate.report(*SMALL, "--config-path", "attention.yaml")
    assert report["attention_backend"] == "flash"
    assert report["cache"] == []
    assert report["settings"]["cache"] is None


# What a run reports.


def test_one_record_per_context(generate):
    [context] = generate.report(*CACHED)["cache"]
    assert set(context) >= {"name", "config", "cached_steps", "cfg_cached_steps", "pruned_blocks",
                            "residual_diffs", "cfg_residual_diffs", "peak_buffer_bytes"}
    assert context["name"] == "transformer_blocks"
    assert context["cached_steps"] and set(context["cached_steps"]) <= {2, 3, 4, 5}
    assert context["cfg_cached_steps"] == context["pruned_blocks"] == []
    assert set(map(int, context["residual_diffs"])) == {2, 3, 4, 5}
    assert all(0 < diff for diff in context["residual_diffs"].values())
    assert context["cfg_residual_diffs"] == {}
    assert context["peak_buffer_bytes"] > 0
    both = generate.report(*CACHED, "--separate-block-lists")["cache"]
    assert [c["name"] for c in both] == ["transformer_blocks", "single_transformer_blocks"]


def test_branches_of_true_cfg_and_pruned_blocks(generate):
    [context] = generate.report(*CACHED, "--negative-prompt", "blue", "--true-cfg-scale", 3)["cache"]
    assert context["executed_steps"] == 6 and context["transformer_executed_steps"] == 12
    assert context["cfg_cached_steps"] and context["cfg_residual_diffs"]
    [pruned] = generate.report(*CACHED, "--cache-type", "DBPrune")["cache"]
    assert len(pruned["pruned_blocks"]) == len(pruned["actual_blocks"])
    assert sum(pruned["pruned_blocks"]) > 0
    assert all(isinstance(diffs, list) for diffs in pruned["residual_diffs"].values())


def test_every_picture_of_a_prompt_file_starts_afresh(generate):
    (generate.folder / "prompts.txt").write_text("red apple\nkoala\nred apple\n")
    contexts = generate.report("--prompt-file", "prompts.txt", *SMALL[2:], "--cache", "F1_W2_R0.9")["cache"]
    assert [c["call"] for c in contexts] == [0, 1, 2]
    assert {**contexts[0], "call": 2} == contexts[2]


def test_the_summary_is_shown_on_stderr(generate):
    [path] = generate(*CACHED, "--cache-summary", "--quiet")
    lines = generate.stderr.splitlines()
    assert any(line.startswith("| conditional ") for line in lines)
    assert any(line.strip().startswith("##") and len(line.strip()) == 6 for line in lines)
    assert any(line.startswith("time saved: ") for line in lines)
    assert lines[-1].startswith("DBCache_F1B0_W2I1M0MC0_R0.9_T0O0_S")
    assert all(len(line) <= 100 for line in lines)
    assert f"Cache: {lines[-1]}, Model: " in Image.open(path).text["parameters"]


def test_without_caching_pictures_and_reports_are_as_before(generate):
    report = generate.report(*SMALL)
    assert report["cache"] == report["cache_comparison"] == []
    plain = (generate.folder / report["outputs"][0]["path"]).read_bytes()
    assert b"Cache: " not in plain
    [path] = generate(*SMALL, "--cache", "F1_W0_R0", "--save-path", "never.png")
    assert Image.open(path).tobytes() == Image.open(generate.folder / report["outputs"][0]["path"]).tobytes()


def test_compare_draws_both(run_cli):
    (run_cli.folder / "prompts.txt").write_text("red apple\nkoala\n")
    done = run_cli("generate", "--prompt-file", "prompts.txt", *SMALL[2:], "--cache", "F1_W2_R0.9",
                   "--compare-cache", "--contact-sheet", "sheet.png", "--json", "report.json", "--quiet")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    for line in (lines[1], lines[3], lines[5]):
        assert "plain " in line and ", cached " in line and "x at " in line and line.endswith(" dB")
    assert lines[5].startswith("all: ")
    sheet = Image.open(run_cli.folder / "sheet.png")
    assert sheet.size == (4 * 32, 32)
    report = json.loads((run_cli.folder / "report.json").read_text())
    assert len(report["outputs"]) == 2
    assert len(report["cache_comparison"]) == 2
    for place, output in enumerate(report["outputs"]):
        plain = sheet.crop((64 * place, 0, 64 * place + 32, 32)).tobytes()
        cached = sheet.crop((64 * place + 32, 0, 64 * place + 64, 32)).tobytes()
        assert cached == Image.open(run_cli.folder / output["path"]).tobytes() != plain
    assert all(10 < pair["psnr"] < 100 for pair in report["cache_comparison"])


def test_equal_pictures_have_no_psnr(generate):
    arguments = (*SMALL, "--cache", "F1_W0_R0", "--compare-cache", "--json", "report.json")
    done = generate.run_cli("generate", *arguments)
    assert done.returncode == 0, done.stderr
    assert "at inf dB" in done.stdout
    report = json.loads((generate.folder / "report.json").read_text())
    assert report["cache_comparison"][0]["psnr"] is None


# What is refused.


@pytest.mark.parametrize(("arguments", "says"), [
    (("--Fn", 1), ("--Fn-compute-blocks", "--cache")),
    (("--taylorseer",), ("--taylorseer", "--cache")),
    (("--cache-summary",), ("--cache-summary", "--cache")),
    (("--compare-cache",), ("--compare-cache", "--cache")),
    (("--cache", "F1Q7"), "'F1Q7'"),
    (("--cache", ""), "--cache"),
    (("--cache", "F0"), "Fn_compute_blocks"),
    (("--cache", "F99"), ("Fn_compute_blocks", "99")),
    (("--cache", "--Fn", "1.5"), "1.5"),
    (("--cache", "--rdt", "nan"), "residual_diff_threshold"),
    (("--cache", "--rdt", "-1"), "residual_diff_threshold"),
    (("--cache", "--rdt", "low"), "low"),
    (("--cache", "--wi", 0), "warmup_interval"),
    (("--cache", "--steps-mask", "turbo"), ("turbo", "medium")),
    (("--cache", "--steps-mask", "1012"), "1012"),
    (("--cache", "--steps-mask", ""), "--steps-mask"),
    (("--cache", "--mask-policy", "static"), ("--mask-policy", "--steps-mask")),
    (("--cache", "--taylorseer-order", 1), ("--taylorseer-order", "--taylorseer")),
    (("--cache", "F1", "--taylorseer", "--taylorseer-order", 5), "taylorseer_order"),
    (("--cache", "F1", "--taylorseer", "--taylorseer-order", -1), "taylorseer_order"),
    (("--cache", "--taylorseer", "--dmd"), ("--taylorseer", "--dmd")),
    (("--cache", "--calibrator", "magic"), ("magic", "linear")),
    (("--cache", "F1", "--calibrator", "linear"), "linear_coefficients_path"),
    (("--cache", "--cache-type", "DBCash"), "DBCash"),
    (("--cache", "--config-path", ""), "--config-path"),
    (("--cache", "--output-type", "latent", "--compare-cache"), "--compare-cache"),
])
def test_usage(refused, arguments, says):
    refused("generate", *SMALL, *arguments, code=2, says=says)


def test_a_mask_of_another_length_is_refused_before_the_first_step(refused):
    refused("generate", *SMALL, "--cache", "F1", "--steps-mask", "1101", code=1, says=("4", "6 steps"))


@pytest.mark.parametrize(("text", "says"), [
    ("cache_config:\n  Fn_compute_block: 1\n", ("'Fn_compute_block'", "did you mean 'Fn_compute_blocks'")),
    ("cache_config:\n  Fn_compute_blocks: 99\n", "Fn_compute_blocks"),
    ("cache_config: [\n", "line"),
    ("", "cache_config"),
])
def test_faults_of_the_file(refused, run_cli, text, says):
    (run_cli.folder / "bad.yaml").write_text(text)
    refused("generate", *SMALL, "--config-path", "bad.yaml", code=1, says=says, leaves=["bad.yaml"])


def test_a_file_that_is_not_there(refused):
    refused("generate", *SMALL, "--config-path", "none.yaml", code=1, says="none.yaml")


# The format of files, live against cache-dit.

UPSTREAM_FILES = {
    "nested": """
cache_config:
  max_warmup_steps: 2
  warmup_interval: 1
  max_cached_steps: -1
  max_continuous_cached_steps: 2
  Fn_compute_blocks: 1
  Bn_compute_blocks: 0
  residual_diff_threshold: 0.12
  enable_taylorseer: true
  taylorseer_order: 2
""",
    "flat": "Fn_compute_blocks: 1\nresidual_diff_threshold: 0.3\nmax_warmup_steps: 2\nenable_foca: true\n",
    "mask": """
cache_config:
  Fn_compute_blocks: 1
  steps_computation_mask: fast
  num_inference_steps: 6
  steps_computation_policy: static
  enable_dmd: true
  dmd_history: 5
  dmd_svd_precision: high
""",
    "prune": "cache_config:\n  cache_type: DBPrune\n  Fn_compute_blocks: 1\n  max_warmup_steps: 2\n",
    "own keys": """
cache_config:
  Fn_compute_blocks: 1
  separate_block_lists: false
  static_skips_Fn_blocks: false
  downsample_factor: 1
  enable_linear: false
  linear_coefficients_path: fitted.json
""",
    "defaults by null": "cache_config:\n  Fn_compute_blocks: 1\n  max_warmup_steps: null\n",
}


@pytest.mark.parametrize("name", UPSTREAM_FILES)
def test_cache_dit_reads_the_same_from_a_file(generate, name):
    cache_dit = pytest.importorskip("cache_dit")
    path = generate.folder / "cache.yaml"
    path.write_text(UPSTREAM_FILES[name])
    theirs = cache_dit.load_configs(str(path))
    settings = generate.report(*SMALL, "--config-path", "cache.yaml")["settings"]["cache"]
    ours = settings["cache_config"]
    for key, value in theirs["cache_config"].as_dict().items():
        if key == "cache_type":
            assert ours[key] == str(value)
        else:
            assert ours[key] == ([] if value is None and key == "steps_computation_mask" else value), key
    if theirs["calibrator_config"] is None:
        assert settings["calibrator_config"] is None
        return
    for key, value in theirs["calibrator_config"].as_dict().items():
        if key != "calibrator_kwargs":
            assert settings["calibrator_config"][key] == value, key
