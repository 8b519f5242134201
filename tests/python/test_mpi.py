"""Ranks over real MPI: the collectives' promises, and that every failure ends all ranks and says why.

The program that mpirun starts here is tests/mpi/main.cc.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import uuid

import pytest

from conftest import BUILD, ROOT

PROGRAM = BUILD / "tests" / "cachedit_mpi_ranks"
# Ten seconds for a failure to end everything, the rest to start on a busy machine.
PATIENCE = 10 + 20
CHUNK = 1 << 30
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]

pytestmark = [
    pytest.mark.skipif(not PROGRAM.is_file(), reason="this build has no MPI"),
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun"),
]


@pytest.fixture
def environment(cli_environment):
    """No launcher's variables, should these tests themselves run under one."""
    launchers = ("OMPI_", "PMI", "PMIX_", "SLURM_", "PRTE_")
    return {key: value for key, value in cli_environment.items() if not key.startswith(launchers)}


def running(marker):
    """The processes, zombies aside, that were started with this argument."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "cmdline").read_bytes():
                found.append(folder.name)
        except OSError:  # it has ended meanwhile
            pass
    return found


def left_over(marker):
    """What is still there after the moment that killed processes need to go. Ends it, too."""
    for _ in range(50):
        if not running(marker):
            return []
        time.sleep(0.1)
    left = running(marker)
    for process in left:
        os.kill(int(process), signal.SIGKILL)
    return left


@pytest.fixture
def mpirun(environment):
    """Runs a command of the program as that many ranks; after it none of them may be left."""

    def run(ranks, command, chunk=CHUNK, env=None, launcher=None, timeout=PATIENCE):
        marker = uuid.uuid4().hex
        if launcher is None:
            launcher = [*MPIRUN, "-n", str(ranks)]
        process = subprocess.Popen([*launcher, str(PROGRAM), command, str(chunk), marker],
                                   env={**environment, **(env or {})}, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
            left = left_over(marker)
        assert left == []
        return process.returncode, out, err

    return run


def passed(out):
    """How many checks each rank has passed."""
    return {int(rank): int(checks) for rank, checks in re.findall(r"rank (\d+): (\d+) checks passed", out)}


# What collectives promise.


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_the_collectives_hold(mpirun, ranks):
    code, out, err = mpirun(ranks, "checks")
    assert code == 0, err
    assert sorted(passed(out)) == list(range(ranks))
    assert len(set(passed(out).values())) == 1 and passed(out)[0] >= 25


def test_messages_that_are_split_arrive_whole(mpirun):
    code, out, err = mpirun(3, "checks", chunk=1000)
    assert code == 0, err
    assert sorted(passed(out)) == [0, 1, 2]


def test_messages_are_split_at_the_size_that_was_given(mpirun):
    """Seen from ranks that do not agree on it."""
    first = ["-n", "1", str(PROGRAM), "greet", "1000", ":"]
    code, _, err = mpirun(2, "greet", chunk=3000, launcher=[*MPIRUN, *first, "-n", "1"])
    assert code != 0
    assert re.search("rank 0 sent 1000 bytes where rank 1 expects 3000 bytes|"
                     "rank 1 sent more where rank 0 expects 1000 bytes", err), err


def test_a_message_longer_than_an_int_can_count(mpirun):
    needed = 6 << 20  # KiB: the message twice, and room
    memory = dict(re.findall(r"(\w+): +(\d+) kB", pathlib.Path("/proc/meminfo").read_text(encoding="ascii")))
    if int(memory["MemAvailable"]) < needed:
        pytest.skip(f"needs {needed >> 20} GiB of free memory")
    code, out, err = mpirun(2, "large", timeout=300)
    assert code == 0, err
    assert int(re.search(r"rank 0: sent (\d+) bytes", out).group(1)) > 1 << 31


# Who starts the program.


def test_one_process_without_a_launcher(mpirun):
    code, out, err = mpirun(1, "checks", launcher=[])
    assert code == 0, err
    assert sorted(passed(out)) == [0]


def test_the_launcher_of_another_mpi_is_refused(mpirun):
    code, out, err = mpirun(1, "checks", launcher=[], env={"PMI_SIZE": "4"})
    assert code == 1
    assert "[mpi]" in err and "got 4 processes" in err and "sees alone" in err
    assert out == ""


def test_a_launcher_that_says_nonsense_is_refused(mpirun):
    code, _, err = mpirun(1, "checks", launcher=[], env={"PMI_SIZE": "many"})
    assert code == 1
    assert "[PMI_SIZE]" in err and "'many'" in err


@pytest.mark.parametrize("seconds", ["0", "soon"])
def test_a_bad_timeout_is_refused(mpirun, seconds):
    code, _, err = mpirun(2, "checks", env={"CACHEDIT_COMM_TIMEOUT": seconds})
    assert code != 0
    assert f"[CACHEDIT_COMM_TIMEOUT] must be seconds above 0: got '{seconds}'" in err


# Failures. Rank 1 fails; the others must say so, and all must end.


def reports_of(err, rank):
    return re.findall(rf"^rank {rank}: (.*)$", err, re.MULTILINE)


FAILURES = {
    "killed": r"\[all_reduce\] rank 1 \(pid \d+\) is gone: it was killed or crashed, while rank \d waited in all_reduce",
    "crash": r"\[all_reduce\] rank 1 \(pid \d+\) is gone: it was killed or crashed, while rank \d waited in all_reduce",
    "throw": r"\[all_reduce\] rank 1 failed, while rank \d waited: \[test\] the width must be even: got 7",
    "hang": r"\[all_reduce\] rank \d waited 2 seconds for rank 1 in vain; CACHEDIT_COMM_TIMEOUT sets how long",
    "end_early": r"\[all_reduce\] rank 1 has ended, while rank \d waited for it: all ranks must run the same program",
    "abandon": r"\[all_reduce\] an earlier exchange failed: rank \d and the others have lost step",
}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_rank_that_fails_ends_all_and_is_named(mpirun, failure, ranks):
    # mpirun leaves the others a second between SIGTERM and SIGKILL: too short on a busy machine.
    env = {"killed": {"OMPI_MCA_odls_base_sigkill_timeout": "4"},
           "crash": {"OMPI_MCA_odls_base_sigkill_timeout": "4"},
           "hang": {"CACHEDIT_COMM_TIMEOUT": "2"}}
    code, _, err = mpirun(ranks, failure, env=env.get(failure))
    assert code != 0
    for rank in set(range(ranks)) - {1}:
        reports = reports_of(err, rank)
        assert len(reports) == 1, err
        assert re.search(FAILURES[failure], reports[0]), err
    own = {"throw": ["[test] the width must be even: got 7"], "abandon": ["[test] gave up"]}
    assert reports_of(err, 1) == own.get(failure, []), err


def test_the_others_tell_rank_0_what_they_saw(mpirun):
    _, _, err = mpirun(3, "throw")
    heard = dict(re.findall(r"^rank 0 heard from rank (\d): (.*)$", err, re.MULTILINE))
    assert heard["1"] == "[test] the width must be even: got 7"
    assert "rank 1 failed" in heard["2"]


@pytest.mark.parametrize(("command", "sent"), [("too_little", "3996 bytes"), ("too_much", "more")])
def test_ranks_that_disagree_on_sizes_are_told(mpirun, command, sent):
    code, _, err = mpirun(2, command)
    assert code != 0
    assert (f"rank 0: [rotate] ranks must agree on sizes: rank 1 sent {sent} where rank 0 expects 4000 bytes"
            in err.splitlines())


def test_a_rank_that_had_finished_does_not_end_well_when_another_fails(mpirun):
    # mpirun's second between SIGTERM and SIGKILL is short on a busy machine.
    code, _, err = mpirun(3, "late", env={"OMPI_MCA_odls_base_sigkill_timeout": "4"})
    assert code != 0
    assert reports_of(err, 1) == ["[test] cannot write"]
    for rank in (0, 2):
        assert re.search(rf"rank {rank} had finished: \[exit\] rank 1 failed.*cannot write", err), err


# Two machines.


TWO_HOSTS = ROOT / "tools" / "two_hosts.sh"
REFUSED = 3


@pytest.fixture
def two_hosts(mpirun):
    def run(command, **options):
        code, out, err = mpirun(2, command, launcher=[str(TWO_HOSTS)], **options)
        if code == REFUSED:
            pytest.skip(err.strip())
        return code, out, err

    yield run
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout \
        if shutil.which("ip") else ""
    assert "cachedit-a-" not in names and "cachedit-b-" not in names


def test_what_two_hosts_exchange_goes_over_the_wire(two_hosts):
    code, out, err = two_hosts("wire")
    assert code == 0, err
    assert out.count("sent 64000000 bytes") == 2
    wire = re.search(r"two_hosts: (\d+) bytes went from rank 0's host, (\d+) from rank 1's", err)
    assert all(int(count) >= 64_000_000 for count in wire.groups())


def test_the_collectives_hold_between_two_hosts(two_hosts):
    code, out, err = two_hosts("checks")
    assert code == 0, err
    assert sorted(passed(out)) == [0, 1]


def test_a_failure_on_one_host_ends_the_other(two_hosts):
    code, _, err = two_hosts("throw")
    assert code != 0
    assert re.search(FAILURES["throw"], reports_of(err, 0)[0])


def test_a_rank_killed_on_one_host_ends_the_other(two_hosts):
    code, _, err = two_hosts("killed")
    assert code != 0
    assert re.search(r"process rank 1 .*exited on signal 9", err)  # mpirun says it


def test_two_hosts_without_root_says_so(environment):
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run([TWO_HOSTS, "true"], env=environment, capture_output=True, text=True, check=False,
                          **nobody)
    assert done.returncode == REFUSED
    assert done.stderr == "two_hosts: making network namespaces needs root\n"


def test_two_hosts_that_is_stopped_leaves_nothing(environment):
    marker = uuid.uuid4().hex
    process = subprocess.Popen([TWO_HOSTS, PROGRAM, "hang", str(CHUNK), marker], env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(10 * PATIENCE):
        if process.poll() is not None or len(running(marker)) >= 3:  # mpirun and both ranks
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    if process.returncode == REFUSED:
        pytest.skip(err.strip())
    assert process.returncode == 128 + signal.SIGTERM
    assert left_over(marker) == []
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"-{process.pid}" not in names
