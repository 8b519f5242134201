"""`cachedit plan`: its table, its JSON, and what it refuses. Predictions are checked in C++."""

import json
import shutil

import pytest

MACHINE = ("--device-flops", "200T", "--attention-flops", "150T", "--memory-bandwidth", "3T", "--bandwidth", "100G",
           "--latency", "1e-5", "--overlap")
KEYS = ["layout", "cfg", "ring", "ulysses", "tp", "fits", "reason", "best", "seconds", "compute_seconds",
        "communication_seconds", "exposed_seconds", "bytes_sent", "messages", "bytes_once", "messages_once",
        "weight_bytes", "activation_bytes", "options"]


@pytest.fixture
def plan(run_cli):
    """The table's lines and the JSON of a plan that has to succeed."""

    def run(*arguments):
        done = run_cli("plan", *arguments, "--json", "plan.json")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout.splitlines(), json.loads((run_cli.folder / "plan.json").read_text(encoding="utf-8"))

    return run


def rows(lines):
    """The table's rows: mark, and the words behind it."""
    start = next(i for i, line in enumerate(lines) if line.split()[:2] == ["layout", "s/step"])
    return [(line[0], line[2:]) for line in lines[start + 1:lines.index("", start)]]


def test_table_and_json_say_the_same(plan):
    lines, found = plan("--world", 4, "--true-cfg", *MACHINE)
    table = rows(lines)
    assert len(table) == len(found["layouts"]) == 9
    for (mark, text), layout in zip(table, found["layouts"], strict=True):
        assert list(layout) == KEYS
        assert text.startswith(layout["layout"] + " ")
        assert (mark == "*") == layout["best"]
        assert text.endswith("yes") == layout["fits"]
        assert layout["cfg"] * layout["ring"] * layout["ulysses"] * layout["tp"] == 4
    times = [layout["seconds"] for layout in found["layouts"] if layout["fits"]]
    assert times == sorted(times)
    assert [layout["best"] for layout in found["layouts"]] == [True] + [False] * 8
    assert (found["image_tokens"], found["text_tokens"], found["branches"], found["dtype"]) == (64, 24, 2, "bf16")
    assert found["assumptions"] == []
    assert (found["device_flops"], found["bandwidth"], found["latency"]) == (200e12, 100e9, 1e-5)


def test_the_command_starts_the_best(plan):
    lines, found = plan("--world", 2, "--dtype", "fp32", "--height", 96, "--ulysses-anything", *MACHINE)
    best = found["layouts"][0]
    assert best["best"]
    assert lines[-1] == ("The best: mpirun -n 2 cachedit generate --height 96 --width 128 --dtype fp32 "
                         + best["options"])
    lines, _ = plan("--world", 1, *MACHINE)
    assert lines[-1] == "The best: cachedit generate --height 128 --width 128"


def test_reasons_stand_in_the_table(plan):
    lines, found = plan("--world", 3, *MACHINE)
    by_name = {layout["layout"]: layout for layout in found["layouts"]}
    assert by_name["ring 3"]["best"]
    for name in ("tp 3", "ulysses 3"):
        assert "4 heads" in by_name[name]["reason"]
        line = next(text for _, text in rows(lines) if text.startswith(name + " "))
        assert line.endswith("no: " + by_name[name]["reason"])
        assert line.split()[2] == "-"


def test_memory_limits(plan):
    lines, found = plan("--world", 2, "--memory", "1M", *MACHINE)
    assert all(not layout["fits"] and not layout["best"] for layout in found["layouts"])
    assert lines[-1] == "No layout of 2 ranks fits."
    _, found = plan("--world", 2, "--memory", "64Gi", *MACHINE)
    assert found["layouts"][0]["best"]


def test_what_is_not_given_is_measured_or_assumed(plan):
    lines, found = plan("--world", 2, "--threads", 1)
    assert min(found[key] for key in ("device_flops", "attention_flops", "memory_bandwidth")) > 0
    assert [line for line in lines if line.startswith("Assumed: ")] == [
        f"Assumed: {text}" for text in found["assumptions"]]
    assert len(found["assumptions"]) == 4
    assert not found["overlap"]
    assert all(layout["exposed_seconds"] == layout["communication_seconds"] for layout in found["layouts"])
    assert plan("--world", 2, "--device-flops", "1T")[1]["overlap"]
    assert not plan("--world", 2, "--device-flops", "1T", "--no-overlap")[1]["overlap"]


@pytest.mark.parametrize(("text", "value"), [("1e12", 1e12), ("2.5T", 2.5e12), ("200G", 200e9), ("3M", 3e6),
                                             ("1Ki", 1024), ("0.5Gi", 0.5 * 2**30), ("1P", 1e15)])
def test_units(plan, text, value):
    _, found = plan("--world", 1, "--device-flops", text)
    assert found["device_flops"] == value


def test_options_change_what_is_sent(plan):
    def sent(*options):
        _, found = plan("--world", 2, *options, *MACHINE)
        return {layout["layout"]: layout["bytes_sent"] for layout in found["layouts"]}

    plain = sent()
    assert sent("--ulysses-float8")["ulysses 2"] < plain["ulysses 2"]
    assert sent("--batch", 2)["ring 2"] > 1.9 * plain["ring 2"]
    assert sent("--text-tokens", 12, "--width", 64)["ring 2"] < plain["ring 2"]
    assert sent("--dtype", "fp32")["ring 2"] > 1.9 * plain["ring 2"]
    assert sent("--ring-rotate-method", "allgather")["ring 2"] == plain["ring 2"]


def test_vectors_of_the_modulation_are_sent_once_a_run(plan):
    def once(*options):
        _, found = plan("--world", 2, *options, *MACHINE)
        tp = next(layout for layout in found["layouts"] if layout["layout"] == "tp 2")
        return found["steps"], tp["bytes_once"], tp["messages_once"]

    (default, _, _), (one, sent_by_one, messages) = once(), once("--steps", 1)
    assert (default, one) == (28, 1)
    assert once("--steps", 16) == (16, 16 * sent_by_one, messages)
    assert once("--steps", 17) == (17, 17 * sent_by_one, 2 * messages)


def test_weights_are_not_read(run_cli, model_copy):
    """Files of the right length without the data."""
    weights = model_copy / "transformer" / "diffusion_pytorch_model.safetensors"
    whole = weights.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    weights.unlink()
    with weights.open("wb") as file:
        file.write(whole[:header])
        file.truncate(len(whole))
    done = run_cli("plan", "--world", 2, "--model-path", model_copy, *MACHINE)
    assert done.returncode == 0, done.stderr
    weights.write_bytes(whole[:-1])
    done = run_cli("plan", "--world", 2, "--model-path", model_copy, *MACHINE)
    assert done.returncode == 1
    assert "diffusion_pytorch_model.safetensors" in done.stderr


@pytest.mark.parametrize(("arguments", "says"), [
    ((), "--world"),
    (("--world", 0), ("world", "0")),
    (("--world", 5000), ("world", "5000")),
    (("--world", "two"), "two"),
    (("--world", 2, "--batch", 0), ("batch", "0")),
    (("--world", 2, "--height", 8), ("height", "8")),
    (("--world", 2, "--text-tokens", 513), ("max_sequence_length", "513")),
    (("--world", 2, "--dtype", "fp9"), ("fp9", "bf16")),
    (("--world", 2, "--device-flops", "fast"), ("--device-flops", "fast")),
    (("--world", 2, "--device-flops", "1X"), ("--device-flops", "1X")),
    (("--world", 2, "--device-flops", "0"), ("device_flops", "0")),
    (("--world", 2, "--device-flops", "inf"), ("device_flops", "inf")),
    (("--world", 2, "--bandwidth=-1G"), "bandwidth"),
    (("--world", 2, "--latency", "nan"), ("latency", "nan")),
    (("--world", 2, "--memory", ""), "--memory"),
    (("--world", 2, "--ring-rotate-method", "push"), ("push", "allgather")),
    (("--world", 2, "--threads", 0), ("threads", "0")),
    (("--world", 2, "--model-path", ""), "--model-path"),
    (("--world", 2, "--json", ""), "--json"),
    (("--world", 2, "--overlap", "--no-overlap"), ("--overlap", "--no-overlap")),
    (("--world", 2, "--bogus"), "--bogus"),
])
def test_what_is_refused(refused, arguments, says):
    refused("plan", *arguments, code=2, says=says)


def test_places_and_checkpoints(refused, run_cli, model_copy):
    refused("plan", "--world", 2, "--json", "absent/p.json", code=1, says="absent/p.json")
    refused("plan", "--world", 2, "--model-path", "absent-model", code=1, says="absent-model")
    shutil.rmtree(model_copy / "transformer")
    refused("plan", "--world", 2, "--model-path", model_copy, code=1, says="transformer")
