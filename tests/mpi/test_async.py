"""Many collectives in flight at the same time, completed in any order."""

from __future__ import annotations

import random
import time
import weakref
from typing import Any

import numpy as np
import pytest

import hpccoll
from hpccoll.algorithms import list_algorithm_names
from hpccoll.errors import CommunicationError
from hpccoll.plan import Operation
from hpccoll.runtime import engine
from hpccoll.runtime.progress import get_progress
from hpccoll.runtime.recorder.interruption import Interruption


@pytest.fixture
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


def brought(rank: int, count: int, i: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64) * (rank + 1) + 1000 * i


def summed(n: int, count: int, i: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64) * (n * (n + 1) // 2) + 1000 * i * n


def order(rank: int, many: int) -> list[int]:
    """Another order on every rank."""
    mine = list(range(many))
    random.Random(rank).shuffle(mine)
    return mine


@pytest.mark.parametrize("algorithm", list_algorithm_names(Operation.ALL_REDUCE))
def test_operations_are_waited_for_in_another_order_on_every_rank(hpc, algorithm):
    arrays = [brought(hpc.rank, 5 + 61 * i, i) for i in range(20)]
    works = [hpc.all_reduce(x, algorithm=algorithm, async_op=True) for x in arrays]
    for i in order(hpc.rank, len(works)):
        assert works[i].wait() is arrays[i]
        assert arrays[i].tolist() == summed(hpc.size, 5 + 61 * i, i).tolist()


def test_what_is_given_is_not_read_again_before_wait_and_done_after_it(hpc):
    x = brought(hpc.rank, 100, 0)
    work = hpc.all_gather(x, async_op=True)
    gathered = work.wait()
    assert work.done
    assert work.test()
    assert work.wait() is gathered
    assert gathered.tolist() == [brought(r, 100, 0).tolist() for r in range(hpc.size)]


@pytest.mark.parametrize("algorithm", ["ring", pytest.param("mpi", id="library")])
def test_the_copy_of_a_strided_input_lasts_until_the_operation_is_done(hpc, monkeypatch, algorithm):
    wide, copies, make_contiguous = np.full((2**17, 2), float(hpc.rank)), [], np.ascontiguousarray

    def remember(array):
        copied = make_contiguous(array)
        copies.extend([weakref.ref(copied)] if copied is not array else [])
        return copied

    monkeypatch.setattr(np, "ascontiguousarray", remember)
    work = hpc.all_gather(wide[:, 0], algorithm=algorithm, async_op=True)
    (source,) = copies
    assert work._operation.done or source() is not None
    assert (work.wait() == np.arange(hpc.size)[:, None]).all()
    assert source() is None


@pytest.mark.parametrize("given", [False, True])
def test_later_calls_on_the_same_arrays_skip_the_checks(hpc, monkeypatch, given):
    x, check, result = np.zeros(100), hpc._check, None
    out = np.zeros(100) if given else None
    for turn in range(4):
        monkeypatch.setattr(hpc, "_check", check if turn < 2 else None)
        x[:] = hpc.rank + turn
        result = hpc.all_reduce(x, algorithm="shared_one_shot", out=out, async_op=True).wait()
        assert result is (out if given else x)
        assert set(result.tolist()) == {hpc.size * (hpc.size - 1) / 2 + turn * hpc.size}
    freed = weakref.ref(x)
    del x, result
    assert freed() is None


def test_blocking_operations_barriers_and_messages_go_between(hpc):
    n, rank = hpc.size, hpc.rank
    for turn in range(5):
        under_way = [hpc.all_reduce(brought(rank, 200, i), async_op=True) for i in range(3)]
        x = brought(rank, 30, turn)
        hpc.all_reduce(x, algorithm="ring")
        assert x.tolist() == summed(n, 30, turn).tolist()
        if (rank + turn) % 2:
            under_way[0].wait()
        hpc.barrier()
        late = hpc.broadcast(np.full(7, rank), root=turn % n, async_op=True)
        token = np.zeros(1, np.int64)
        out = hpc.isend(np.array([rank]), (rank + 1) % n)
        hpc.recv(token, (rank - 1) % n)
        out.wait()
        assert token[0] == (rank - 1) % n
        assert late.wait().tolist() == [turn % n] * 7
        for i in order(rank + turn, 3):
            assert under_way[i].wait().tolist() == summed(n, 200, i).tolist()


def test_a_prepared_operation_runs_while_others_are_under_way(hpc):
    """Half the ranks run it first, and half wait for the other operation first: neither order may block."""
    x, y = np.zeros(2000), np.zeros(3000)
    run = hpc.all_reduce_init(x, algorithm="ring")
    for _ in range(4):
        x[:], y[:] = hpc.rank, 1
        work = hpc.all_reduce(y, algorithm="ring", async_op=True)
        if hpc.rank % 2:
            work.wait()
        run()
        work.wait()
        assert set(x) == {hpc.size * (hpc.size - 1) / 2}
        assert set(y) == {hpc.size}
    run.free()


def test_a_bound_operation_runs_while_others_are_under_way(hpc):
    x, y = np.zeros(2000), np.zeros(3000)
    for turn in range(6):
        x[:], y[:] = hpc.rank, 1
        work = hpc.all_reduce(y, algorithm="ring", async_op=True) if turn > 2 else None
        if work is not None and hpc.rank % 2:
            work.wait()
        hpc.all_reduce(x, algorithm="ring")
        if work is not None:
            work.wait()
            assert set(y) == {hpc.size}
        assert set(x) == {hpc.size * (hpc.size - 1) / 2}


def test_tags_are_used_again(hpc, monkeypatch):
    monkeypatch.setattr(engine, "ASYNC_TAGS", 3)
    arrays = [brought(hpc.rank, 40 + i, i) for i in range(25)]
    works = [hpc.all_reduce(x, async_op=True) for x in arrays]
    for i in order(hpc.rank, len(works)):
        assert works[i].wait().tolist() == summed(hpc.size, 40 + i, i).tolist()


def test_starting_and_testing_return_at_once_however_late_the_others_are(hpc, comm):
    """The last rank calls after the others have started and tested all; a blocking start would cause a deadlock."""
    late = hpc.rank == hpc.size - 1
    if late:
        comm.Barrier()
    arrays = [brought(hpc.rank, 1000, i) for i in range(5)]
    works = [hpc.all_reduce(x, async_op=True) for x in arrays]
    if not late:
        assert not any(work.test() for work in works)
        comm.Barrier()
    while not all(work.test() for work in works):
        time.sleep(0)
    for i, x in enumerate(arrays):
        assert x.tolist() == summed(hpc.size, 1000, i).tolist()


@pytest.mark.needs_ranks(2)
def test_waiting_with_a_timeout_says_so_and_can_go_on(hpc, comm):
    x = brought(hpc.rank, 10, 0)
    if hpc.rank == hpc.size - 1:
        comm.barrier()
        work = hpc.all_reduce(x, async_op=True)
    else:
        work = hpc.all_reduce(x, async_op=True)
        with pytest.raises(CommunicationError, match=rf"rank {hpc.rank}: not complete after 0.05 s") as caught:
            work.wait(timeout=0.05)
        assert caught.value.exit_status == 4
        assert not work.done
        comm.barrier()
    work.wait(timeout=60)
    assert x.tolist() == summed(hpc.size, 10, 0).tolist()


def test_operations_of_groups_and_of_the_world_are_under_way_together(hpc):
    n, rank = hpc.size, hpc.rank
    colours = [list(range(c, n, 2)) for c in range(min(n, 2))]
    groups = [hpc.new_group(ranks) for ranks in colours]
    mine = next(group for group in groups if group is not None)
    members = colours[rank % 2 if n > 1 else 0]
    inner = [mine.all_reduce(np.array([rank, i]), async_op=True) for i in range(4)]
    outer = [hpc.all_reduce(np.array([rank, i]), async_op=True) for i in range(4)]
    # Each communicator goes on with its own operations only, so all ranks finish one group before the next.
    for i in order(rank, 4):
        assert inner[i].wait().tolist() == [sum(members), i * len(members)]
    for i in order(rank, 4):
        assert outer[i].wait().tolist() == [n * (n - 1) // 2, i * n]
    mine.close()


def test_a_work_that_nobody_waits_for_is_carried_on_by_the_others(hpc):
    x, y = brought(hpc.rank, 50, 1), brought(hpc.rank, 50, 2)
    hpc.all_reduce(x, async_op=True)
    hpc.all_reduce(y)
    hpc.barrier()
    while hpc._engine.progress:
        hpc._engine.progress.advance()
    assert x.tolist() == summed(hpc.size, 50, 1).tolist()
    assert y.tolist() == summed(hpc.size, 50, 2).tolist()


@pytest.mark.parametrize("rounds", [400, pytest.param(4000, marks=pytest.mark.full)])
def test_thousands_of_mixed_operations_with_ranks_running_at_different_speeds(hpc, rounds):
    shared, own = random.Random(7), random.Random(100 + hpc.rank)
    n, rank = hpc.size, hpc.rank
    buffers = {count: np.empty(count, np.int64) for count in (1, 3, 64, 1000)}
    under_way: list[tuple[hpccoll.runtime.work.Work[Any], list[int]]] = []
    for turn in range(rounds):
        kind, root = (
            shared.choice(["all", "async", "async", "broadcast", "barrier", "gather", "drain"]),
            shared.randrange(n),
        )
        count = shared.choice(list(buffers))
        if own.random() < 0.05:
            time.sleep(own.random() * 0.002)
        if kind == "all":
            x = buffers[count]
            x[:] = brought(rank, count, turn)
            hpc.all_reduce(x, algorithm=shared.choice(list_algorithm_names(Operation.ALL_REDUCE)))
            assert x.tolist() == summed(n, count, turn).tolist(), turn
        elif kind == "async":
            algorithm = shared.choice(list_algorithm_names(Operation.ALL_REDUCE))
            work = hpc.all_reduce(brought(rank, count, turn), algorithm=algorithm, async_op=True)
            under_way.append((work, summed(n, count, turn).tolist()))
        elif kind == "broadcast":
            assert hpc.broadcast(np.array([rank, turn]), root=root).tolist() == [root, turn]
        elif kind == "gather":
            got = hpc.gather(np.array([rank, turn]), root=root)
            assert got is None or got.tolist() == [[r, turn] for r in range(n)]
        elif kind == "barrier":
            hpc.barrier()
        while under_way and (kind == "drain" or own.random() < 0.3):
            work, wanted = under_way.pop(own.randrange(len(under_way)))
            assert work.wait().tolist() == wanted, turn
    for work, wanted in under_way:
        assert work.wait().tolist() == wanted


@pytest.mark.needs_ranks(2)
@pytest.mark.parametrize("algorithm", ["shared_two_shot", "ring", "mpi"])
def test_an_operation_does_not_run_if_the_communicator_becomes_unusable_while_it_starts(comm, monkeypatch, algorithm):
    """As if the thread that reads notices of other ranks runs before the operation is listed."""
    with hpccoll.Communicator(comm) as own:
        started, notice = own._engine._started, Interruption(own.rank, 1, "barrier", "TimeoutError")
        add = started.add

        def add_after_notice(operation: Any) -> None:
            own._state.receive_interruption(notice)
            add(operation)

        monkeypatch.setattr(started, "add", add_after_notice)
        work = own.all_reduce(np.ones(3), algorithm=algorithm, async_op=True)
        progress = get_progress()
        assert all(operation.done for operation in (*progress.operations, *progress.transfers))
        with pytest.raises(CommunicationError, match="is unusable, because call 1"):
            work.wait()
        comm.Barrier()
