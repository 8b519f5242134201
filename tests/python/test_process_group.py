"""The communicator over torch.distributed's process groups, against torch.distributed itself.

Run by itself with arguments, this file is one rank: RANK RANKS BACKEND STORE LIBRARY CASE.
"""

import os
import pathlib
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def numbers(shape, dtype, *seeds):
    generator = torch.Generator().manual_seed(sum(100**i * seed for i, seed in enumerate(seeds)))
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype)


def same(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape
    assert torch.equal(got.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))


class Rank:
    def __init__(self, backend):
        self.ops = torch.ops.cachedit_test
        self.group = dist.group.WORLD.group_name
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.others = [r for r in range(self.size) if r != self.rank]
        self.device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")

    def rows(self, sender, receiver):
        return (3 * sender + 5 * receiver + sender * receiver) % 4

    def uneven(self, dtype, seed=0):
        """What this rank sends to each, room for what it receives, and what that must be."""
        pairs = [(self.rank, r) for r in range(self.size)]
        send = [numbers((self.rows(*p), 5), dtype, *p, seed).to(self.device) for p in pairs]
        want = [numbers((self.rows(r, s), 5), dtype, r, s, seed).to(self.device) for s, r in pairs]
        return send, [torch.empty_like(t) for t in want], want


@case
def describes_itself(own):
    assert own.ops.describe(own.group) == [str(own.rank), str(own.size), str(own.device)]


@case
def all_to_all_of_every_dtype(own):
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
                  torch.int32, torch.int64, torch.bool, torch.float8_e4m3fn):
        send, receive, want = own.uneven(dtype)
        own.ops.all_to_all(own.group, send, receive)
        for got, expected in zip(receive, want):
            same(got, expected)


@case
def all_to_all_as_torch_does_it(own):
    send, receive, _ = own.uneven(torch.float32)
    own.ops.all_to_all(own.group, send, receive)
    theirs = [torch.empty_like(t) for t in receive]
    work = [dist.irecv(theirs[r], r) for r in own.others if theirs[r].numel()]
    work += [dist.isend(send[r], r) for r in own.others if send[r].numel()]
    for one in work:
        one.wait()
    for r in own.others:
        same(receive[r], theirs[r])
    same(receive[own.rank], send[own.rank])


@case
def operations_overlap(own):
    send, receive, want = own.uneven(torch.float32, 1)
    send_second, receive_second, want_second = own.uneven(torch.int64, 2)
    own.ops.two_all_to_alls(own.group, send, receive, send_second, receive_second)
    for got, expected in zip(receive + receive_second, want + want_second):
        same(got, expected)


@case
def all_gather_of_uneven_shards(own):
    sizes = [(2 * r + 3) % 4 for r in range(own.size)]
    for dim in (0, 1):
        shards = [numbers((size, 6) if dim == 0 else (6, size), torch.float16, r).to(own.device)
                  for r, size in enumerate(sizes)]
        same(own.ops.all_gather(own.group, shards[own.rank], sizes, dim), torch.cat(shards, dim))


@case
def all_gather_of_even_shards_as_torch_does_it(own):
    local = numbers((4, 3), torch.float32, own.rank).to(own.device)
    whole = torch.empty((4 * own.size, 3), device=own.device)
    dist.all_gather_into_tensor(whole, local)
    same(own.ops.all_gather(own.group, local, [4] * own.size, 0), whole)


@case
def all_reduce_rounds_once(own):
    for count in (33, 20011):
        terms = [numbers((count,), torch.bfloat16, r).to(own.device) for r in range(own.size)]
        got = own.ops.all_reduce(own.group, terms[own.rank])
        total = terms[0].float()
        for term in terms[1:]:
            total += term.float()
        same(got, total.bfloat16())
        theirs = terms[own.rank].float()
        dist.all_reduce(theirs)
        torch.testing.assert_close(got.float(), theirs, rtol=2**-8, atol=2**-8)


@case
def rotate_passes_to_the_next(own):
    local = numbers((1000, 7), torch.float32, own.rank).to(own.device)
    got = torch.empty_like(local)
    own.ops.rotate(own.group, local, got)
    same(got, numbers((1000, 7), torch.float32, (own.rank - 1) % own.size).to(own.device))


@case
def subgroups_are_groups(own):
    ends = dist.new_group([0, own.size - 1])
    if own.rank in (0, own.size - 1):
        local = torch.full((3,), own.rank, device=own.device)
        got = own.ops.all_gather(ends.group_name, local, [3, 3], 0)
        assert got.tolist() == [0] * 3 + [own.size - 1] * 3


@case
def different_arguments_are_refused(own):
    own.ops.require_equal(own.group, "the same")
    fails(lambda: own.ops.require_equal(own.group, f"steps {min(own.rank, 1)}"),
          "[comm] all ranks must have the same arguments", "rank 1 has 'steps 1' where rank 0 has 'steps 0'")


@case
def unknown_groups_are_refused(own):
    fails(lambda: own.ops.describe("no such group"), "[process_group]", "got 'no such group'")


def fails(action, *texts):
    try:
        action()
    except RuntimeError as error:
        for text in texts:
            assert text in str(error), error
        return
    raise AssertionError("it did not fail")


def a_rank_that_leaves_is_an_error(own):
    """Not among the others: it ends the group."""
    own.ops.rotate(own.group, torch.zeros(1000), torch.empty(1000))
    if own.rank == 1:
        os._exit(0)
    fails(lambda: own.ops.rotate(own.group, torch.zeros(1000), torch.empty(1000)),
          "[rotate] the process group failed on rank 0")


def run_rank(rank, ranks, backend, store, library, name):
    if backend == "nccl":
        torch.cuda.set_device(int(rank))
    torch.ops.load_library(library)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=int(rank), world_size=int(ranks))
    own = Rank(backend)
    if name == "leaving":
        a_rank_that_leaves_is_an_error(own)
        print("passed leaving", flush=True)
        os._exit(0)  # the group is broken
    for title, function in CASES.items():
        function(own)
        print("passed", title, flush=True)
    dist.destroy_process_group()


@pytest.fixture
def ranks_of(cli_environment, tmp_path):
    """Runs all cases on that many ranks; gives what each printed."""
    build = pathlib.Path(os.environ.get("CACHEDIT_BUILD_DIR", pathlib.Path(__file__).parents[2] / "build/release"))
    library = build.resolve() / "tests" / "libcachedit_test_ops.so"

    def run(ranks, backend="gloo", name="all"):
        environment = {**cli_environment, "GLOO_SOCKET_IFNAME": "lo"}  # a host name may lead nowhere
        started = [subprocess.Popen([sys.executable, "-W", "ignore", __file__, str(rank), str(ranks), backend,
                                     str(tmp_path / "store"), str(library), name],
                                    env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                   for rank in range(ranks)]
        try:
            results = [process.communicate(timeout=240) for process in started]
        finally:
            for process in started:
                process.kill()
        for process, (_, err) in zip(started, results):
            assert process.returncode == 0, err
        return [out.split("\n")[:-1] for out, _ in results]

    return run


@pytest.mark.parametrize("ranks", [2, 3])
def test_gloo_groups_serve_as_communicators(ranks_of, ranks):
    assert ranks_of(ranks) == [[f"passed {name}" for name in CASES]] * ranks


def test_a_rank_that_leaves_ends_the_waits_of_the_others(ranks_of):
    assert ranks_of(2, name="leaving") == [["passed leaving"], []]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_nccl_groups_serve_as_communicators(ranks_of):
    assert ranks_of(2, backend="nccl") == [[f"passed {name}" for name in CASES]] * 2


if __name__ == "__main__":
    run_rank(*sys.argv[1:])
