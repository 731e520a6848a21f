"""Repeated calls: nothing is bound to arrays or kept, and no call runs on the memory of an earlier one."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import psutil
import pytest

import hpccoll
from hpccoll import lowering
from hpccoll.algorithms import list_algorithm_names
from hpccoll.errors import UsageError
from hpccoll.plan import Operation
from hpccoll.runtime.messages import native_executable


@pytest.fixture
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


def total(hpc) -> int:
    return int(hpc.size * (hpc.size - 1) // 2)


def reduce(hpc, x, algorithm="ring", **how):
    """All-reduce the rank in x, and check."""
    x[:] = hpc.rank
    hpc.all_reduce(x, algorithm=algorithm, **how)
    assert set(x.tolist()) == {total(hpc)}


def reduce_in_place(hpc, x):
    """All-reduce the rank in x by a plan that is bound to the symmetric buffer x."""
    reduce(hpc, x, algorithm="shared_two_shot")


@pytest.mark.needs_ranks(2)
def test_every_rank_keeps_short_calls_with_a_root_in_its_call_table(hpc):
    """A rank whose buffers no other rank accesses keeps them, too."""
    x, out = np.ones(1), np.zeros(1)
    for number in (1, 2, 3):
        hpc.broadcast(x, algorithm="shared")
        hpc.reduce(x, out=out if hpc.rank == 0 else None, algorithm="shared")
        assert len(hpc._engine.cache.blocking) == 2, number


def test_a_second_call_is_not_lowered_again(hpc, monkeypatch):
    x, symmetric = np.zeros(10, np.int64), hpc.empty(10, np.int64)
    reduce(hpc, x)
    reduce_in_place(hpc, symmetric)
    monkeypatch.setattr(native_executable, "make_rows", None)
    monkeypatch.setattr(lowering, "lower_plan", None)
    for _ in range(3):
        reduce(hpc, x)
        reduce_in_place(hpc, symmetric)


def test_everything_that_differs_makes_another_kind(hpc):
    x = hpc.empty(12, np.int64)
    x[:] = 1
    part, unsigned, halves = x[:5], x.view(np.uint64), x.view(np.int32)
    calls = [
        lambda: hpc.all_reduce(x, algorithm="shared_two_shot"),
        lambda: hpc.all_reduce(x, algorithm="shared_one_shot"),
        lambda: hpc.all_reduce(x, op="max", algorithm="shared_two_shot"),
        lambda: hpc.all_reduce(part, algorithm="shared_two_shot"),
        lambda: hpc.all_reduce(unsigned, algorithm="shared_two_shot"),
        lambda: hpc.all_reduce(halves, algorithm="shared_two_shot"),
        lambda: hpc.broadcast(x, root=hpc.size - 1, algorithm="shared"),
        lambda: hpc.reduce(x, root=0, algorithm="shared"),
    ]
    for _ in range(2):
        for call in calls:
            call()
    assert len(hpc._engine.cache.blocking) == len(calls)


def test_ranks_with_new_and_repeated_arrays_meet(hpc):
    """One rank always passes new memory, and the others pass the same memory."""
    mine = np.zeros(1000, np.int64)
    for turn in range(12):
        x = np.zeros(1000, np.int64) if hpc.rank == turn % hpc.size else mine
        reduce(hpc, x)
        for algorithm in list_algorithm_names(Operation.ALL_REDUCE):
            x[:] = hpc.rank
            hpc.all_reduce(x, algorithm=algorithm)
            assert set(x.tolist()) == {total(hpc)}


@pytest.mark.full_except_on(2)
def test_a_new_array_with_the_identity_of_an_old_one_is_a_new_array(hpc):
    identities = set()
    for turn in range(80):
        x = np.zeros(3 + turn % 5, (np.int64, np.float32, np.int8)[turn % 3])
        identities.add(id(x))
        for _ in range(3):
            reduce(hpc, x)
        del x
    assert len(identities) < 80, "no identity came twice: this tested nothing"


@pytest.mark.full_except_on(2)
def test_new_memory_at_an_old_address_is_run_right(hpc):
    """The same memory holds arrays of many lengths and dtypes in turn."""
    memory = np.zeros(4096, np.uint8)
    for turn in range(60):
        dtype = np.dtype(("int64", "float32", "complex128", "int16")[turn % 4])
        x = memory[: (1 + turn % 7) * 16].view(dtype)
        for _ in range(2):
            reduce(hpc, x)


def test_an_array_that_changes_its_dtype_in_place_is_not_mistaken(hpc):
    x: Any = np.zeros(4, np.int32)
    for _ in range(3):
        reduce(hpc, x)
    y = x.view(np.float32)
    for _ in range(3):
        reduce(hpc, y)
    x.dtype = np.float32  # the same object from now on is another array
    for _ in range(2):
        x[:] = 0.5
        hpc.all_reduce(x, algorithm="ring")
        assert x.tolist() == [0.5 * hpc.size] * 4


def test_buffers_are_not_kept_alive(hpc):
    x, symmetric = np.zeros(100_000), hpc.empty(100_000)
    for _ in range(4):
        reduce(hpc, x)
        reduce_in_place(hpc, symmetric)
    gone = [weakref.ref(each) for each in (x, symmetric)]
    del x, symmetric
    assert [each() for each in gone] == [None, None]


@pytest.mark.full_except_on(2)
def test_large_new_buffers_leave_memory_flat(hpc):
    """The allocator gives freed blocks out again, so addresses come again while no buffer does."""
    size = 4 * 2**20
    before = 0
    for turn in range(60):
        if turn == 20:
            before = psutil.Process().memory_info().rss
        reduce(hpc, np.zeros(size // 8 + 8 * (turn % 3), np.int64))
    grown = psutil.Process().memory_info().rss - before
    assert grown < 8 * size, f"grew by {grown / 2**20:.0f} MiB over 40 buffers of {size / 2**20:.0f} MiB"


@pytest.mark.full_except_on(2, 3)
def test_many_small_new_buffers_leave_no_objects_behind(comm):
    hpc = hpccoll.Communicator(comm)

    def work(turns: int) -> None:
        for turn in range(turns):
            x = np.zeros(1 + turn % 7, np.int64)
            reduce(hpc, x)
            if turn % 3 == 0:
                reduce(hpc, x)
                hpc.all_reduce(x, async_op=True).wait()
                hpc.all_reduce_init(x).free()

    def objects() -> int:
        hpc._engine.cache.forget()
        hpc._engine.native.clear()
        gc.collect()
        return len(gc.get_objects())

    work(40)
    before = objects()  # traced bytes would count what Python keeps of freed tuples, some thousands
    turns = 240 if comm.size < 5 else 120
    work(turns)
    grown = objects() - before
    hpc.close()
    assert grown < turns / 6, f"{grown} objects more after {turns} turns"


@pytest.mark.parametrize("algorithm", ["ring", "shared_two_shot"])
def test_a_strided_input_is_read_anew_in_every_call(hpc, algorithm):
    x, out = np.zeros((50, 2), np.int64), np.zeros(50, np.int64)
    column = x[:, 0]
    for turn in range(6):
        x[:] = hpc.rank + turn
        hpc.all_reduce(column if turn % 3 else x[:, 0], out=out, algorithm=algorithm)
        assert set(out.tolist()) == {total(hpc) + turn * hpc.size}


def test_what_was_prepared_lasts_as_long_as_its_communicator(comm):
    hpc = hpccoll.Communicator(comm)
    x = np.zeros(5)
    run, other = hpc.all_reduce_init(x), hpc.all_reduce_init(x, op="max")
    other.free()
    other.free()
    x[:] = 1
    run()
    assert set(x) == {hpc.size}
    hpc.close()
    for each in (run, other):
        with pytest.raises(UsageError, match="prepare it again"):
            each()


def test_what_was_prepared_keeps_its_buffers(hpc):
    x, out = np.ones(1000), np.zeros(1000)
    kept = weakref.ref(x)
    run = hpc.all_reduce_init(x, out=out)
    del x
    run()
    assert kept() is not None
    assert set(out) == {hpc.size}
    run.free()
    assert kept() is None
