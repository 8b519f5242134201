"""Where `cachedit quantize` reads and writes: signals, full disks, permissions, folders, ranks; what is told of it."""

import ctypes
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest
from safetensors.torch import load_file

TYPE = ("--quantize-type", "int8_per_row", "--threads", "1")


# Stopping.


@pytest.fixture
def stalled(cli_path, cli_environment, tmp_path):
    """Starts a command that is stuck at its first progress line until `go` is called."""

    class Stalled:
        def __init__(self, *arguments, hangup=signal.SIG_DFL):
            self.ours, theirs = os.pipe()
            size = fcntl.fcntl(theirs, fcntl.F_GETPIPE_SZ)
            os.write(theirs, b"\n" * size)
            self.process = subprocess.Popen([cli_path, *arguments], cwd=tmp_path, env=cli_environment,
                                            stdout=subprocess.DEVNULL, stderr=theirs, stdin=subprocess.DEVNULL,
                                            preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup))
            os.close(theirs)

        def status(self, field):
            with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
                return re.search(rf"^{field}:\s+(\w+)", status.read(), re.MULTILINE)[1]

        def wait_until(self, condition):
            for _ in range(1200):
                if condition():
                    return
                assert self.process.poll() is None
                time.sleep(0.05)
            raise AssertionError("waited in vain")

        def wait_for_handler(self, number, there=True):
            """Until the signal is handled, or is not any more."""
            self.wait_until(lambda: bool(int(self.status("SigCgt"), 16) & 1 << number - 1) == there)

        def wait_for_folder(self, place=tmp_path):
            """Until there is a temporary folder, and the line blocks."""
            self.wait_until(lambda: list(place.glob(".cachedit-*")) and self.status("State") == "S")

        def go(self):
            with os.fdopen(self.ours, "rb") as pipe:
                text = pipe.read().decode().strip()
            return self.process.wait(timeout=60), text

    return Stalled


@pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGHUP], [signal.SIGHUP] * 2],
                         ids=["int", "term", "hup", "hup twice"])
def test_stopping_leaves_nothing(stalled, tmp_path, numbers):
    run = stalled("quantize", *TYPE, "--save-path", "out")
    run.wait_for_folder()
    for number in numbers:
        run.process.send_signal(number)
        time.sleep(0.1)
    code, text = run.go()
    assert code == 130 and "stopped after layer" in text
    assert list(tmp_path.iterdir()) == []


def test_nohup_goes_on(stalled, tmp_path):
    run = stalled("quantize", *TYPE, "--save-path", "out", hangup=signal.SIG_IGN)
    run.wait_for_folder()
    run.process.send_signal(signal.SIGHUP)
    assert run.go()[0] == 0
    assert (tmp_path / "out" / "model_index.json").exists()


@pytest.mark.parametrize("there", [False, True])
def test_the_next_run_removes_what_a_killed_one_left(stalled, run_cli, tmp_path, there):
    place = tmp_path
    if there:
        place = tmp_path / "out"
        place.mkdir()
    run = stalled("quantize", *TYPE, "--save-path", "out")
    run.wait_for_folder(place)
    run.process.send_signal(signal.SIGINT)
    run.wait_for_handler(signal.SIGINT, there=False)
    run.process.send_signal(signal.SIGINT)
    assert run.go()[0] == -signal.SIGINT
    (left,) = place.glob(".cachedit*")
    assert re.fullmatch(r"\.cachedit-\d+-quantize-out\.tmp", left.name)
    done = run_cli("quantize", *TYPE, "--save-path", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob(".cachedit*"))


def test_generate_stops_on_a_closed_terminal(stalled, tmp_path):
    run = stalled("generate", "--prompt", "a", "--steps", "10000", "--threads", "1", "--json", "report.json")
    run.wait_for_handler(signal.SIGHUP)
    run.process.send_signal(signal.SIGHUP)
    code, text = run.go()
    assert code == 130 and "stopped" in text
    assert list(tmp_path.iterdir()) == []


# What the file system refuses.


def without_root_s_rights():
    """In the child: root reads and writes what its mode bits allow, as others do."""
    drop, override, read_search = 24, 1, 2
    libc = ctypes.CDLL(None)
    for capability in (override, read_search):
        libc.prctl(drop, capability, 0, 0, 0)


@pytest.fixture
def mode_bits_count(tmp_path):
    probe = tmp_path / "probe"
    probe.write_text("x")
    probe.chmod(0)
    done = subprocess.run(["cat", probe], preexec_fn=without_root_s_rights, capture_output=True, check=False)
    probe.unlink()
    if done.returncode == 0:
        pytest.skip("this user reads everything")


@pytest.fixture
def plain_copy(demo_model, tmp_path):
    return shutil.copytree(demo_model, tmp_path / "copied")


@pytest.mark.usefixtures("mode_bits_count")
@pytest.mark.parametrize("name", ["tokenizer/vocab.json", "vae/diffusion_pytorch_model.safetensors", "vae",
                                  "transformer/diffusion_pytorch_model.safetensors"])
def test_what_cannot_be_read_is_named(refused, plain_copy, name):
    (plain_copy / name).chmod(0)
    try:
        message = refused("quantize", *TYPE, "--model-path", plain_copy, "--save-path", "out", code=1,
                          says=[f"[{plain_copy / name}]", "Permission denied"], preexec_fn=without_root_s_rights)
    finally:
        (plain_copy / name).chmod(0o755)
    assert ".cachedit" not in message


def test_a_full_disk_is_named(refused, plain_copy):
    """No file may grow beyond a limit: as a full disk, it shows in the middle of a write."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))

    (plain_copy / "big.txt").write_bytes(b"x" * (1 << 18))
    message = refused("quantize", *TYPE, "--model-path", plain_copy, "--save-path", "out", code=1,
                      says=["File too large", "make room"], preexec_fn=limit)
    assert re.match(r"cachedit: error: \[\S+/cwd/out/", message), message


@pytest.mark.usefixtures("mode_bits_count")
def test_an_own_folder_in_a_locked_one(run_cli, refused):
    parent = run_cli.folder / "locked"
    (parent / "own").mkdir(parents=True)
    parent.chmod(0o555)
    try:
        refused("quantize", *TYPE, "--save-path", parent / "new", code=1, leaves=["locked", "own"],
                says=[f"[{parent}]", "Permission denied", "another place"], preexec_fn=without_root_s_rights)
        done = run_cli("quantize", *TYPE, "--save-path", parent / "own", preexec_fn=without_root_s_rights)
        assert done.returncode == 0, done.stderr
        assert (parent / "own" / "model_index.json").exists()
    finally:
        parent.chmod(0o755)


def test_the_current_folder(run_cli, tmp_path):
    before = run_cli.folder.stat().st_ino
    done = run_cli("quantize", *TYPE, "--save-path", ".")
    assert done.returncode == 0, done.stderr
    assert run_cli.folder.stat().st_ino == before
    assert (run_cli.folder / "model_index.json").exists()
    assert not list(tmp_path.rglob(".cachedit*"))


def test_results_that_nobody_gets_are_an_error(cli_path, cli_environment, tmp_path):
    for arguments in (["quantize", *TYPE, "--quiet", "--save-path", "out"], ["inspect"], ["--help"]):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([cli_path, *arguments], cwd=tmp_path, env=cli_environment, stdout=full, text=True,
                                  stderr=subprocess.PIPE, check=False)
        assert done.returncode == 1, arguments
        assert done.stderr.startswith('cachedit: error: [stdout] the output cannot be written: got "No space left')


# The request.


@pytest.mark.parametrize("kind", ["svdquant", "svdq_int4_r32", "nvfp4", "SVDQ", "fp9", "int8"])
@pytest.mark.parametrize("command", [("quantize", "--save-path", "out"), ("generate", "--prompt", "a")])
def test_types_that_are_not_there_are_wrong_requests(refused, command, kind):
    refused(*command, "--quantize-type", kind, code=2, says=[f"'{kind.lower()}'", "int8_per_row"])


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
def test_one_process_only(cli_path, cli_environment, tmp_path):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", str(cli_path), "quantize", *TYPE,
               "--save-path", "out"]
    done = subprocess.run(command, cwd=tmp_path, env=cli_environment, capture_output=True, text=True, check=False,
                          timeout=120)
    assert done.returncode != 0
    assert done.stderr.count("[quantize] one process writes the checkpoint: got 2 ranks") == 1, done.stderr
    assert "without mpirun" in done.stderr
    assert list(tmp_path.iterdir()) == []


# What is told of the result.


@pytest.mark.parametrize("kind", ["int8_per_row", "int4_weight_only", "float8_per_block"])
def test_inspect_counts_weights_and_tells_types(run_cli, demo_model, kind):
    done = run_cli("quantize", "--quantize-type", kind, "--quantize-text-encoder", "--save-path", "out")
    assert done.returncode == 0, done.stderr
    stored = load_file(demo_model / "transformer" / "diffusion_pytorch_model.safetensors")
    parts = {one["name"]: one for one in json.loads(run_cli("inspect", "out", "--json").stdout)["components"]}
    assert parts["transformer"]["parameters"] == sum(tensor.numel() for tensor in stored.values())
    assert parts["transformer"]["quantized_layers"] == {kind: 104}
    assert parts["text_encoder_2"]["quantized_layers"] == {kind: 14}
    assert parts["vae"]["quantized_layers"] == {}
    table = run_cli("inspect", "out").stdout
    assert re.search(r"^transformer .* 4\.50 M ", table, re.MULTILINE)
    assert f"\nquantized: transformer: {kind}: 104 layers\n" in table
    assert "quantized" not in run_cli("inspect").stdout


def test_the_report_names_the_type_of_a_quantized_folder(run_cli, generate):
    done = run_cli("quantize", *TYPE, "--save-path", "out")
    assert done.returncode == 0, done.stderr
    small = ("--prompt", "a", "--steps", 1, "--width", 32, "--height", 32, "--threads", 1)
    assert generate.report(*small, "--model-path", "out")["settings"]["quantize_type"] == "int8_per_row"
    asked = generate.report(*small, "--model-path", "out", "--quantize-type", "int8_weight_only")
    assert asked["settings"]["quantize_type"] == "int8_weight_only"
    assert generate.report(*small)["settings"]["quantize_type"] is None
