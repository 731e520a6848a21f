"""Collectives that some ranks call blocking and others asynchronously, on a communicator with mixed forms."""

from __future__ import annotations

import numpy as np
import pytest

import hpccoll
from hpccoll.algorithms import list_algorithm_names
from hpccoll.plan import Operation

COUNTS = (0, 1, 5, 1000, 70_001)


@pytest.fixture(scope="module")
def mixed(comm):
    with hpccoll.Communicator(comm, mixed_forms=True) as made:
        yield made


def names(operation: Operation, size: int) -> list[str]:
    """The algorithms of an operation that run on plain host arrays of any number of ranks, and the library."""
    return ["auto", "mpi", *list_algorithm_names(operation)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("algorithm", names(Operation.ALL_REDUCE, 2))
def test_ranks_reduce_alike_whether_they_block_or_not(mixed, algorithm, count):
    for turn in range(4):
        x = np.full(count, mixed.rank + turn, np.int64)
        try:
            if (mixed.rank + turn) % 2:
                mixed.all_reduce(x, algorithm=algorithm)
            else:
                mixed.all_reduce(x, algorithm=algorithm, async_op=True).wait()
        except hpccoll.UsageError:  # the algorithm needs another number of ranks or several nodes, on all ranks alike
            return
        assert (x == sum(rank + turn for rank in range(mixed.size))).all()


@pytest.mark.parametrize("count", COUNTS)
def test_several_calls_in_flight_end_in_the_order_of_their_calls(mixed, count):
    arrays = [np.full(count, mixed.rank + number, np.float64) for number in range(6)]
    works = []
    for number, x in enumerate(arrays):
        if (mixed.rank + number) % 3:
            works.append(mixed.all_reduce(x, async_op=True))
        else:
            mixed.all_reduce(x)
    for work in works[::-1]:
        work.wait()
    for number, x in enumerate(arrays):
        assert (x == sum(rank + number for rank in range(mixed.size))).all()


def test_two_calls_on_one_array_follow_each_other(mixed):
    x = mixed.empty(3000, "float32")
    x[:] = 1
    first = mixed.all_reduce(x, async_op=True)
    second = mixed.all_reduce(x, async_op=True)
    second.wait()
    assert first.test()
    assert (x == mixed.size**2).all()


def test_moved_blocks_arrive_whether_ranks_block_or_not(mixed):
    n, me = mixed.size, mixed.rank
    for count in COUNTS:
        later = bool((me + count) % 2)

        def done(result, later=later):
            return result.wait() if later else result

        gathered = done(mixed.all_gather(np.full(count, me), async_op=later))
        assert gathered.reshape(n, count).tolist() == [[rank] * count for rank in range(n)]
        block = done(mixed.reduce_scatter(np.ones(n * count), async_op=later))
        assert (block == n).all()
        swapped = done(mixed.all_to_all(np.repeat(np.arange(n) + 10 * me, count), async_op=later))
        assert swapped.reshape(n, count).tolist() == [[10 * rank + me] * count for rank in range(n)]
        done(mixed.barrier(async_op=later))
        assert (done(mixed.broadcast(np.full(count, me), root=n - 1, async_op=later)) == n - 1).all()
        rows = done(mixed.gather(np.full(count, me), root=0, async_op=later))
        assert me != 0 or rows.reshape(n, count).tolist() == [[rank] * count for rank in range(n)]
        counts = [rank + 1 for rank in range(n)]
        uneven = done(mixed.all_gather(np.full(me + 1, me), counts=counts, async_op=later))
        assert uneven.tolist() == [rank for rank in range(n) for _ in range(rank + 1)]


@pytest.mark.needs_ranks(2)
def test_a_blocking_call_selects_its_algorithm_once(mixed, monkeypatch):
    """A second selection could choose another number of chunks than ranks that call asynchronously."""
    selector, selected = mixed._engine.selector, []
    select = selector.select_for

    def note_selection(call, **form):
        selected.append(call)
        return select(call, **form)

    monkeypatch.setattr(selector, "select_for", note_selection)
    mixed.all_reduce(np.ones(7), algorithm="ring")
    assert len(selected) == 1
