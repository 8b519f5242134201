"""`cachedit generate` as several ranks under mpirun: the single process's picture, one speaker, and failures
that end every rank with a message."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import numpy
import pytest
from PIL import Image

from conftest import BUILD, ROOT

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
# Ten seconds for a failure to end everything, the rest to start on a busy machine.
PATIENCE = 10 + 20
REQUEST = ("--prompt", "a red heart", "--steps", 6, "--seed", 7, "--dtype", "fp32")

pytestmark = [
    pytest.mark.skipif(not (BUILD / "tests" / "cachedit_mpi_ranks").is_file(), reason="this build has no MPI"),
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun"),
]


class Ranks:
    """Runs the command line as ranks in an empty folder; `each` holds arguments of single ranks."""

    def __init__(self, cli_path, environment, folder):
        launchers = ("OMPI_", "PMI", "PMIX_", "SLURM_", "PRTE_")
        self.cli = os.fspath(cli_path)
        self.environment = {k: v for k, v in environment.items() if not k.startswith(launchers)}
        # mpirun's second between SIGTERM and SIGKILL is short on a busy machine.
        self.environment["OMPI_MCA_odls_base_sigkill_timeout"] = "4"
        self.folder = folder

    def command(self, ranks, *arguments, each=()):
        arguments = [str(a) for a in arguments]
        contexts = [[self.cli, "generate", *arguments, *map(str, own)] for own in each]
        if not contexts:
            return [*MPIRUN, "-n", str(ranks), self.cli, "generate", *arguments]
        command = list(MPIRUN)
        for i, context in enumerate(contexts):
            command += ([":"] if i else []) + ["-n", "1", *context]
        return command

    def __call__(self, ranks, *arguments, each=(), timeout=300, launcher=None):
        command = self.command(ranks, *arguments, each=each)
        if launcher:
            command = [*launcher, self.cli, "generate", *map(str, arguments)]
        return subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True,
                              text=True, timeout=timeout, check=False)


@pytest.fixture
def ranks(cli_path, cli_environment, tmp_path):
    folder = tmp_path / "ranks"
    folder.mkdir()
    return Ranks(cli_path, cli_environment, folder)


@pytest.fixture(scope="module")
def alone(cli_path, cli_environment, tmp_path_factory):
    """The single process's picture."""
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run([cli_path, "generate", *map(str, REQUEST), "--save-path", "one.png"], cwd=folder,
                   env=cli_environment, check=True, capture_output=True)
    return pixels(folder / "one.png")


def pixels(path):
    return numpy.asarray(Image.open(path), dtype=numpy.int64)


def psnr(a, b):
    error = ((a - b) ** 2).mean()
    return float("inf") if error == 0 else 10 * numpy.log10(255 ** 2 / error)


LAYOUTS = [
    (2, ("--parallel-type", "ulysses"), "ulysses 2"),
    (2, ("--parallel-type", "ring", "--rotate", "allgather"), "ring 2"),
    (2, ("--parallel-type", "tp", "--parallel-text-encoder", "--parallel-vae"), "tp 2"),
    (3, ("--parallel", "ulysses", "--uaa", "--uaqkv"), "ulysses 3"),
    (4, ("--parallel-type", "usp"), "ring 2 x ulysses 2"),
    (4, ("--parallel-type", "tp_ring", "--no-fp32"), "ring 2 x tp 2"),
    (6, ("--ulysses-size", 2, "--ring-size", 3, "--ulysses-anything"), "ring 3 x ulysses 2"),
    (8, ("--parallel-type", "usp_tp"), "ring 2 x ulysses 2 x tp 2"),
]


@pytest.mark.parametrize("count, options, layout", LAYOUTS, ids=[" ".join(map(str, o)) for _, o, _ in LAYOUTS])
def test_layouts_draw_the_single_process_picture(ranks, alone, count, options, layout):
    done = ranks(count, *REQUEST, *options, "--save-path", "many.png", "--json", "report.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "many.png\n", "one rank speaks"
    assert [p.name for p in ranks.folder.iterdir() if p.suffix == ".png"] == ["many.png"]
    assert abs(pixels(ranks.folder / "many.png") - alone).max() <= 1
    report = json.loads((ranks.folder / "report.json").read_text())
    assert report["parallel"]["layout"] == layout
    assert report["parallel"]["ranks"] == count
    assert report["parallel"]["bytes_sent"] > 0
    assert 0 < report["parallel"]["seconds"] < report["seconds"]["total"]
    assert done.stderr.count("step 6/6") == 1
    assert f"{count} ranks, {layout}: rank 0 sent" in done.stderr


def test_float8_ulysses_is_within_35_db(ranks, alone):
    done = ranks(2, *REQUEST, "--parallel-type", "ulysses", "--ulysses-float8", "--save-path", "many.png")
    assert done.returncode == 0, done.stderr
    assert psnr(pixels(ranks.folder / "many.png"), alone) >= 35


def test_guidance_branches_and_caching_as_alone(ranks, run_cli):
    options = (*REQUEST, "--negative-prompt", "blue", "--true-cfg-scale", 3, "--cache", "F1B0_W2_R0.5",
               "--json", "report.json", "--output-type", "latent", "--save-path", "a.safetensors")
    single = run_cli("generate", *options)
    assert single.returncode == 0, single.stderr
    want = json.loads((run_cli.folder / "report.json").read_text())["cache"][0]
    assert want["cached_steps"] and want["cfg_cached_steps"]
    for count, layout in ((2, ("--cfg-size", 2)), (4, ("--cfg-size", 2, "--parallel-type", "ulysses"))):
        done = ranks(count, *options, *layout)
        assert done.returncode == 0, done.stderr
        got = json.loads((ranks.folder / "report.json").read_text())["cache"][0]
        assert got["cached_steps"] == want["cached_steps"]
        assert got["cfg_cached_steps"] == want["cfg_cached_steps"]


def test_a_yaml_file_chooses_the_layout(ranks, alone):
    (ranks.folder / "run.yaml").write_text(
        "parallelism_config:\n  ring: auto\n  attention_backend: flash\n  extra_parallel_modules: [vae]\n")
    done = ranks(2, *REQUEST, "--config-path", "run.yaml", "--save-path", "many.png", "--json", "report.json")
    assert done.returncode == 0, done.stderr
    report = json.loads((ranks.folder / "report.json").read_text())
    assert report["parallel"]["layout"] == "ring 2"
    assert report["attention_backend"] == "flash"
    assert psnr(pixels(ranks.folder / "many.png"), alone) > 50


def test_each_of_several_pictures_is_written_once(ranks):
    (ranks.folder / "prompts.txt").write_text("a red heart\na green leaf\n")
    done = ranks(2, "--prompt-file", "prompts.txt", "--steps", 2, "--parallel-type", "ring", "--seed", -1)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert len(list(ranks.folder.glob("*.png"))) == 2


def test_two_hosts_joined_by_tcp_draw_the_same_picture(ranks, alone):
    script = [os.fspath(ROOT / "tools" / "two_hosts.sh")]
    done = ranks(2, *REQUEST, "--parallel-type", "ulysses", "--save-path", ranks.folder / "many.png",
                 launcher=script)
    if done.returncode == 3:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert abs(pixels(ranks.folder / "many.png") - alone).max() <= 1


# Failures.


def expect_failure(done, folder, *texts):
    assert done.returncode != 0
    for text in texts:
        assert text in done.stderr
    assert not list(folder.glob("*.png*")), "no output, whole or partial"


REFUSED = [
    (2, (), "there are 2 ranks, but no layout"),
    (2, ("--parallel-type", "bogus"), "got 'bogus'; use tp, ulysses"),
    (3, ("--parallel-type", "tp"), "must divide the transformer's 4 attention heads: got 3"),
    (3, ("--parallel-type", "ulysses"), "heads must divide by the ranks: got 4 heads and 3 ranks; add --ulysses-anything"),
    (7, ("--parallel-type", "usp"), "cannot share out 7 ranks"),
    (2, ("--ulysses-size", 4), "4 x 1 x 1 x 1 = 4 and 2 ranks"),
    (2, ("--parallel-type", "ring", "--ulysses-float8"), "ulysses_float8 has no effect"),
    (2, ("--parallel-type", "ulysses", "--width", 144, "--height", 144), "got 81"),
    (2, ("--parallel-type", "tp", "--parallel-vae", "--vae-tiling"), "tiling"),
    (2, ("--parallel-type", "tp", "--tp-size", 0), "do not divide by 0"),
]


@pytest.mark.parametrize("count, options, text", REFUSED, ids=[" ".join(map(str, o)) for _, o, _ in REFUSED])
def test_what_does_not_fit_is_refused_once_by_all(ranks, count, options, text):
    done = ranks(count, *REQUEST, *options, timeout=PATIENCE)
    expect_failure(done, ranks.folder, text)
    assert done.stderr.count("cachedit: error:") == 1, done.stderr
    assert "rank 0:" not in done.stderr, "all ranks say the same"


def test_a_single_process_needs_others(run_cli):
    done = run_cli("generate", *REQUEST, "--parallel-type", "ulysses")
    assert done.returncode == 2
    assert "several ranks: got one; start them together (mpirun -n 2" in done.stderr


@pytest.mark.parametrize("own, text", [
    (("--seed", 8), "rank 1 has 'seed=8' where rank 0 has 'seed=7'"),
    (("--steps", 5), "rank 1 has 'num-inference-steps=5' where rank 0 has 'num-inference-steps=6'"),
], ids=["seed", "steps"])
def test_other_arguments_on_one_rank(ranks, own, text):
    options = [a for a in REQUEST if a not in (own[0], 7 if own[0] == "--seed" else 6)]
    usual = ("--seed", 7) if own[0] == "--seed" else ("--steps", 6)
    done = ranks(2, *options, "--parallel-type", "ring", each=[usual, own], timeout=PATIENCE)
    expect_failure(done, ranks.folder, "all ranks must have the same arguments", text)


def test_a_bad_option_on_one_rank(ranks):
    done = ranks(2, *REQUEST, "--parallel-type", "ring", each=[(), ("--bogus",)], timeout=PATIENCE)
    expect_failure(done, ranks.folder, "rank 1: [usage]", "--bogus")


def test_a_checkpoint_that_only_one_rank_lacks(ranks):
    done = ranks(2, *REQUEST, "--parallel-type", "ring", each=[(), ("--model-path", "/absent")],
                 timeout=PATIENCE)
    expect_failure(done, ranks.folder, "rank 1: [/absent] no such folder")


def test_another_checkpoint_on_one_rank(ranks, demo_model):
    other = ranks.folder / "other"
    shutil.copytree(demo_model, other)
    weights = other / "transformer" / "diffusion_pytorch_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    done = ranks(2, *REQUEST, "--parallel-type", "ring",
                 each=[("--model-path", demo_model), ("--model-path", other)], timeout=PATIENCE)
    expect_failure(done, ranks.folder, "all ranks must have the same checkpoint", "transformer: ")


def ranks_of(marker):
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if marker.encode() in words and b"generate" in words and not words[0].endswith(b"mpirun"):
            found.append(int(folder.name))
    return sorted(found)


@pytest.mark.parametrize("which", [0, 2], ids=["rank 0", "rank 2"])
def test_a_rank_killed_in_mid_step(ranks, which):
    marker = f"killed {which} {os.getpid()}"
    process = subprocess.Popen(
        ranks.command(3, "--prompt", marker, "--steps", 10000, "--seed", 1, "--parallel-type", "ring",
                      "--save-path", "k.png"),
        cwd=ranks.folder, env=ranks.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        first = process.stderr.readline()  # progress: the ranks are at it
        assert "steps/s" in first
        pids = {}
        for pid in ranks_of(marker):
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            rank = [e for e in environment if e.startswith(b"OMPI_COMM_WORLD_RANK=")]
            pids[int(rank[0].split(b"=")[1])] = pid
        start = time.time()
        os.kill(pids[which], signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE)
        assert time.time() - start < PATIENCE
    finally:
        process.kill()
    assert process.returncode != 0
    assert f"rank {which} (pid {pids[which]}) is gone" in err
    assert "in step " in err and "of 10000" in err
    for _ in range(50):
        if not ranks_of(marker):
            break
        time.sleep(0.1)
    assert ranks_of(marker) == [], "orphans"
    assert not list(ranks.folder.glob("k.png*"))


def test_ctrl_c_stops_all_ranks(ranks):
    marker = f"stopped {os.getpid()}"
    process = subprocess.Popen(
        ranks.command(2, "--prompt", marker, "--steps", 10000, "--seed", 1, "--parallel-type", "ring",
                      "--save-path", "k.png"),
        cwd=ranks.folder, env=ranks.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert "steps/s" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode != 0
    assert ranks_of(marker) == []
    assert not list(ranks.folder.glob("k.png*"))
