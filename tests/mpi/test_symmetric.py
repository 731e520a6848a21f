"""Loads and stores in shared memory have the bits of replay, in all kinds of memory, at any timing, without leaks."""

from __future__ import annotations

import gc
import random
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpccoll
from hpccoll.algorithms import list_algorithms
from hpccoll.arrays import get_dtype
from hpccoll.errors import MismatchError, UsageError
from hpccoll.measure.data import make_input
from hpccoll.runtime.shared_memory import access
from tests.mpi.calls import check
from tests.mpi.cases import Case
from tests.mpi.test_matrix import SAMPLE, counts
from tests.requirements import skip_or_fail

SHARED = {known.full_name: known for known in list_algorithms() if known.uses_shared_memory and not known.is_two_level}
ROWS = {name: [row for row in SAMPLE if row[0] == name] for name in SHARED}
MAX_GROWTH = 12  # MiB by which memory may grow over the cycles, because allocators keep some of the freed memory


@pytest.fixture(scope="module")
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


class Pool:
    """Allocates misaligned arrays from `whole`, a symmetric buffer of bytes.

    Calling a pool frees all arrays, and returns the function that allocates arrays.
    """

    def __init__(self, whole):
        self.whole, self.used = whole, 0

    def __call__(self):
        self.used = 0
        return self.take

    def take(self, nbytes):
        """Return an array of the next `nbytes` bytes; arrays are 8 bytes apart."""
        begin, self.used = self.used, self.used + nbytes + 8
        return self.whole[begin : begin + nbytes]


@pytest.fixture(scope="module")
def pool(hpc):
    return Pool(hpc.empty(8 * 2**20, "uint8"))


def draw_cases(hpc, name, data):
    """Yield the cases of the algorithm `name` in the sample of test_matrix, with counts and roots that `data` draws."""
    for turn, (_, dtype, op, size, in_place, path, special) in enumerate(ROWS[name]):
        count = data.draw(counts(size, hpc.size, turn), label="count")
        root = (data.draw(st.integers(0, hpc.size - 1), label="root") + turn) % hpc.size
        yield Case(SHARED[name], dtype, op, count, root, in_place, path, special, seed=turn)


@pytest.mark.parametrize("name", SHARED)
@settings(max_examples=1)
@given(data=st.data())
def test_symmetric_buffers_are_bit_equal_to_replay(hpc, comm, pool, name, data):
    check(hpc, comm, list(draw_cases(hpc, name, data)), pool)


@pytest.mark.parametrize("name", SHARED)
@settings(max_examples=1)
@given(data=st.data())
def test_memory_of_other_processes_is_bit_equal_to_replay(hpc, comm, name, data):
    if hpc._engine.node.readable is None:
        skip_or_fail("processes may not read each other's memory here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(access, "find_least_remote_bytes", lambda *_: 1)
        check(hpc, comm, list(draw_cases(hpc, name, data)))


@pytest.mark.parametrize("name", SHARED)
@settings(max_examples=1)
@given(data=st.data())
def test_many_segments_through_the_slots_are_bit_equal_to_replay(comm, name, data):
    with pytest.MonkeyPatch.context() as patch, hpccoll.Communicator(comm) as small:
        patch.setattr(small._engine.node, "slot_bytes", 2**9)
        patch.setattr(access, "find_least_remote_bytes", lambda *_: 2**60)
        check(small, comm, list(draw_cases(small, name, data)))


def test_ranks_may_mix_symmetric_and_ordinary_buffers(hpc):
    shared = hpc.empty(3000)
    x = shared if hpc.rank == 0 else np.empty(3000, np.float32)
    for turn in range(4):
        x[:] = hpc.rank + turn
        hpc.all_reduce(x, algorithm="shared_two_shot")
        assert (x == hpc.size * turn + hpc.size * (hpc.size - 1) / 2).all()


def test_buffers_may_move_between_calls(hpc):
    whole = hpc.empty(5000)
    for begin in (0, 100, 3, 100, 0):
        x = whole[begin : begin + 1000 + begin]
        for turn in range(3):
            x[:] = hpc.rank + turn
            hpc.all_reduce(x, algorithm="shared_two_shot")
            assert (x == hpc.size * turn + hpc.size * (hpc.size - 1) / 2).all()


STRESS = 10_000
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all")


def run_mixed_collectives(hpc, calls, seed):
    """Run `calls` random collectives with random delays; return the number of wrong results on this rank.

    `seed` is the same on all ranks.
    """
    same, own = random.Random(seed), random.Random(1000 * seed + hpc.rank)
    n, most = hpc.size, 3000
    shared = [hpc.empty(n * most, "int64") for _ in range(2)]
    private = [np.empty(n * most, np.int64) for _ in range(2)]
    wrong = 0
    for turn in range(calls):
        operation = same.choice(OPERATIONS)
        count = same.choice((0, 1, n, same.randrange(most), same.randrange(64)))
        x, out = same.choice((shared, private, (shared[0], private[1]), (private[0], shared[1])))
        root, name = same.randrange(n), "shared"
        if operation == "all_reduce":
            name = same.choice(("shared_one_shot", "shared_two_shot"))
        if same.random() < 0.02:
            hpc.barrier(algorithm="shared")
        if own.random() < 0.05:
            time.sleep(own.random() * 1e-3)
        wrong += run_and_check(hpc, operation, name, count, root, turn, x, out)
        if own.random() < 0.05:
            time.sleep(own.random() * 1e-3)
    return wrong


def run_and_check(hpc, operation, name, count, root, turn, x, out):
    """Run one collective from `x` into `out`, of `count` elements per block, and return whether its result is wrong.

    Every element of block j of rank r's input is turn + 7 r + 1000 j.
    """
    n, rank = hpc.size, hpc.rank
    blocks = n if operation in ("reduce_scatter", "scatter", "all_to_all") else 1
    x = x[: blocks * count].reshape(blocks, count) if blocks > 1 else x[:count]
    values = turn + 7 * np.arange(n)
    x[...] = values[rank] + (1000 * np.arange(blocks)[:, None] if blocks > 1 else 0)
    total = int(values.sum())
    call = getattr(hpc, operation)
    if operation in ("all_reduce", "reduce"):
        how = {"root": root} if operation == "reduce" else {}
        result = call(x, out=out[:count] if not how or rank == root else None, algorithm=name, **how)
        return int(not how or rank == root) and bool((result != total).any())
    if operation == "broadcast":
        return bool((call(x, root=root, algorithm=name) != values[root]).any())
    if blocks > 1 and operation != "all_to_all":
        if not count:
            return False
        how = {"root": root} if operation == "scatter" else {}
        given = x if operation != "scatter" or rank == root else None
        result = call(given, out=out[:count], algorithm=name, **how)
        return bool((result != (values[root] + 1000 * rank if how else total + 1000 * n * rank)).any())
    if operation == "all_to_all":
        result = call(x, out=out[: n * count].reshape(n, count), algorithm=name)
        return bool((result != values[:, None] + 1000 * rank).any())
    how = {"root": root} if operation == "gather" else {}
    into = out[: n * count].reshape(n, count) if not how or rank == root else None
    result = call(x, out=into, algorithm=name, **how)
    return into is not None and bool((result != values[:, None]).any())


def test_mixed_collectives_back_to_back(hpc, comm):
    assert comm.allreduce(run_mixed_collectives(hpc, 600, seed=1)) == 0


@pytest.mark.full
def test_ten_thousand_mixed_collectives_back_to_back(hpc, comm):
    assert comm.allreduce(run_mixed_collectives(hpc, STRESS, seed=2)) == 0


def test_asynchronous_operations_go_on_while_ranks_wait_at_a_fence(hpc):
    """Rank 0 waits for its message only after the fence, the others before it: both orders must end."""
    for turn in range(20):
        x, y = np.full(70_000, hpc.rank + turn, np.int64), np.full(500, hpc.rank, np.int64)
        work = hpc.all_reduce(x, algorithm="ring", async_op=True)
        if hpc.rank:
            work.wait()
        hpc.all_reduce(y, algorithm="shared_one_shot")
        work.wait()
        assert (x == hpc.size * turn + hpc.size * (hpc.size - 1) // 2).all()
        assert (y == hpc.size * (hpc.size - 1) // 2).all()


@pytest.mark.slow
@pytest.mark.full_except_on(3)
@pytest.mark.parametrize("cycles", [1000, pytest.param(10_000, marks=pytest.mark.full)])
def test_freed_and_dropped_buffers_leave_no_memory(comm, cycles):
    """Half of the buffers are freed, half go out of scope; calls on them are repeated, and so cached."""
    with hpccoll.Communicator(comm) as hpc:
        process = psutil.Process()

        def cycle(turn):
            x = hpc.empty(20_000)
            for _ in range(3):
                x[:] = 1
                hpc.all_reduce(x, algorithm="shared_two_shot")
            assert x[-1] == hpc.size
            if turn % 2:
                hpc.free(x)

        def measure_resources():
            """Return the resident bytes, open files and mappings of hpccoll of this process."""
            gc.collect()
            with Path("/proc/self/maps").open() as lines:
                maps = sum("hpccoll" in line for line in lines)
            return process.memory_info().rss, process.num_fds(), maps

        for turn in range(100):
            cycle(turn)
        rss, files, maps = measure_resources()
        for turn in range(cycles):
            cycle(turn)
        after = measure_resources()
    assert after[0] - rss < MAX_GROWTH * 2**20
    assert after[1:] == (files, maps)


def test_use_of_a_freed_buffer_raises(hpc):
    x = hpc.empty(100)
    for _ in range(3):
        hpc.all_reduce(x, algorithm="shared_two_shot")
    hpc.free(x)
    with pytest.raises(UsageError, match="was freed"):
        hpc.all_reduce(x, algorithm="shared_two_shot")
    with pytest.raises(UsageError, match="was freed"):
        hpc.free(x)


@pytest.mark.parametrize("algorithm", ["ring", "shared_two_shot", pytest.param("mpi", id="library")])
def test_a_buffer_may_be_freed_while_an_operation_is_in_flight(hpc, comm, algorithm):
    """`free` waits for shared-memory plans only; other operations go on and keep the memory."""
    x = hpc.empty(50_000, "int64")
    x[:] = hpc.rank
    comm.Barrier()
    if hpc.rank:
        time.sleep(0.2)
    work = hpc.all_reduce(x, algorithm=algorithm, async_op=True)
    hpc.free(x)
    assert work._operation.done or algorithm != "shared_two_shot"
    assert set(work.wait()) == {hpc.size * (hpc.size - 1) // 2}
    with pytest.raises(UsageError, match="this symmetric buffer was freed"):
        hpc.all_reduce(x)


def test_a_symmetric_buffer_of_another_communicator_is_refused(hpc, comm):
    with hpccoll.Communicator(comm) as other:
        x = other.empty(100)
        with pytest.raises(UsageError, match="another communicator"):
            hpc.all_reduce(x, algorithm="shared_two_shot")


def test_an_array_that_is_not_symmetric_cannot_be_freed(hpc):
    with pytest.raises(UsageError, match="empty"):
        hpc.free(np.zeros(3))


@pytest.mark.needs_ranks(2)
def test_all_ranks_raise_if_they_ask_for_different_shapes(hpc):
    with pytest.raises(MismatchError, match="asked for a symmetric buffer"):
        hpc.empty(100 + (hpc.rank == 0))
    assert hpc.empty(5).shape == (5,)


@pytest.mark.needs_ranks(2)
def test_all_ranks_raise_if_they_reduce_different_counts(hpc):
    for _ in range(2):
        with pytest.raises(MismatchError, match=r"rank 0: count 6; rank 1: count 5"):
            hpc.all_reduce(np.zeros(6 if hpc.rank == 0 else 5), algorithm="shared_two_shot")
    x = np.full(5, hpc.rank)
    assert (hpc.all_reduce(x, algorithm="shared_two_shot") == hpc.size * (hpc.size - 1) // 2).all()


def test_symmetric_buffers_have_no_file_name(hpc):
    x = hpc.empty(1000)
    named = [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith("hpccoll")]
    recordings = "hpccoll-recorder-", "hpccoll-profile-"  # also those of other jobs
    assert all(name.startswith(recordings) for name in named), x.shape


def test_a_symmetric_tensor_lies_in_symmetric_memory(hpc):
    pytest.importorskip("torch")
    import torch

    x = hpc.torch_empty((30, 50), torch.bfloat16)
    x.fill_(hpc.rank)
    hpc.all_reduce(x, algorithm="shared_two_shot")
    assert (x == hpc.size * (hpc.size - 1) / 2).all()
    assert hpc._engine.node.symmetric.find(x.data_ptr(), 3000) is not None


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex128", "int8"])
def test_large_sums_agree_in_all_kinds_of_memory(hpc, comm, monkeypatch, dtype):
    """Ordinary, symmetric and staged sums of one plan have the same bits, tile by tile."""
    kind = get_dtype(dtype)
    count = 200_003
    mine = make_input(kind, 3, hpc.rank, count)
    shared, ordinary, small = hpc.empty(count, dtype), mine.copy(), mine.copy()
    shared[:] = mine
    hpc.all_reduce(shared, algorithm="shared_two_shot")
    hpc.all_reduce(ordinary, algorithm="shared_two_shot")
    with monkeypatch.context() as patch:
        patch.setattr(access, "find_least_remote_bytes", lambda *_: 2**60)
        hpc.all_reduce(small, algorithm="shared_two_shot")
    assert shared.tobytes() == ordinary.tobytes() == small.tobytes()
    assert len(set(comm.allgather(shared.tobytes()))) == 1
