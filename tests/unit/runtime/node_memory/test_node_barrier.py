"""The barrier of a node's ranks, with threads as ranks and ordinary memory for the shared words."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hpccoll.native import ArrivalCounter, NodeBarrier
from hpccoll.runtime.node_memory.node_barrier import DIRECT, FINGERPRINT, WORDS
from hpccoll.runtime.progress import InFlight, Progress
from tests.unit.runtime.simulated_node import make_barrier

MANY_RANKS = 20


def make_barriers(n: int, *, oversubscribed: bool = True, progress: Progress | None = None) -> list[NodeBarrier]:
    """Return the barrier of each of n ranks."""
    lines, progress = np.zeros((n, WORDS), np.uint64), progress or Progress()
    return [make_barrier(lines, rank, oversubscribed, progress) for rank in range(n)]


def together(work: Callable[[int], Any], n: int) -> list[Any]:
    """Run `work(rank)` in a thread for each rank; return the results."""
    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(work, range(n), timeout=60))


def entered(ranks: list[NodeBarrier], *entries: int) -> list[Any]:
    """Let every rank enter with its own entry."""
    return together(lambda rank: ranks[rank].enter(entries[rank]), len(ranks))


@pytest.mark.parametrize("oversubscribed", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5, MANY_RANKS])
def test_nobody_leaves_a_fence_before_all_have_come(n, oversubscribed):
    ranks, came = make_barriers(n, oversubscribed=oversubscribed), [0] * n

    def work(rank: int) -> int:
        short = 0
        for turn in range(1, 60):
            came[rank] = turn
            if (turn + rank) % 7 == 0:
                time.sleep(0.001)
            ranks[rank].fence()
            short += min(came) < turn
        return short

    assert together(work, n) == [0] * n


@pytest.mark.parametrize("n", [2, 4, MANY_RANKS])
def test_all_that_enter_alike_learn_whether_all_can_be_touched(n):
    ranks = make_barriers(n)
    assert entered(ranks, *[5 | DIRECT] * n) == [True] * n
    assert entered(ranks, *[5] * n) == [True] * n
    for odd in range(n):
        mixed = entered(ranks, *(9 if rank == odd else 9 | DIRECT for rank in range(n)))
        assert mixed == [False] * n


@pytest.mark.parametrize("n", [2, 3, 4, MANY_RANKS])
def test_every_rank_finds_out_who_disagrees_and_the_next_entry_works(n):
    ranks = make_barriers(n)
    for odd in range(n):
        for flag in (0, DIRECT):
            found = entered(ranks, *((3 + (rank == odd)) | flag for rank in range(n)))
            assert all(each is None for each in found)
            assert entered(ranks, *[7] * n) == [True] * n


def test_disagreement_goes_before_the_way_that_ranks_came():
    ranks = make_barriers(2)
    found = entered(ranks, 2 | DIRECT, 1)
    assert all(each is None for each in found)


def test_every_bit_of_a_fingerprint_counts():
    for bit in range(62):
        ranks = make_barriers(2)
        found = entered(ranks, 0, 1 << bit & FINGERPRINT)
        assert all(each is None for each in found), bit


@pytest.mark.parametrize("n", [3, MANY_RANKS])
def test_places_are_those_of_the_others_in_their_order(n):
    ranks = make_barriers(n)
    together(lambda rank: ranks[rank].enter(1, 10 * rank + 1, 2**63 + rank), n)
    for rank in range(n):
        others = [other for other in range(n) if other != rank]
        assert ranks[rank].locations() == tuple(word for r in others for word in (10 * r + 1, 2**63 + r))


@pytest.mark.parametrize("n", [1, 3, MANY_RANKS])
def test_all_have_arrived_once_the_last_has(n):
    ranks = make_barriers(n)
    for barrier in ranks:
        assert not any(each.all_arrived() for each in ranks if each.count)
        barrier.post(1)
    assert all(each.all_arrived() for each in ranks)


@pytest.mark.parametrize("n", [1, 3, MANY_RANKS])
def test_all_have_arrived_at_a_slot_once_the_last_has(n):
    lines = np.zeros((n, WORDS), np.uint64)
    slots = [ArrivalCounter(lines, rank) for rank in range(n)]
    for turn in range(3):
        for slot in slots:
            slot.arrive()
            assert slot.all_arrived() == (slot is slots[-1]), turn


@pytest.mark.parametrize("behind", range(4))
def test_a_rank_that_is_an_entry_ahead_does_not_disturb_who_still_reads(behind):
    """The fast rank reads that the slow rank has entered, while the slow rank still reads the previous entry."""
    lines = np.zeros((3, WORDS), np.uint64)  # of the slow rank as the fast one sees it, the fast rank, the slow rank
    come = lines[0]
    come[0] = 1000
    fast, slow = (make_barrier(lines[first : first + 2], 1, True, Progress()) for first in (0, 1))
    for turn in range(behind):
        come[1], come[4] = turn, turn  # what the fast one finds of the slow one
        fast.enter(turn, 100 + turn, 200 + turn)
        assert slow.enter(turn, 0, 0)
    for turn in (behind, behind + 1):
        come[1], come[4] = turn, turn
        fast.enter(turn, 100 + turn, 200 + turn)
    assert slow.enter(behind, 0, 0)
    assert slow.locations() == (100 + behind, 200 + behind)


class Polled(InFlight):
    """An operation in flight that never completes and notes that it was advanced."""

    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def _advance(self) -> bool:
        self.event.set()
        return False


def test_operations_in_flight_advance_while_a_rank_waits():
    progress, operation = Progress(), Polled()
    progress.add(operation)
    ranks = make_barriers(2, progress=progress)

    def work(rank: int) -> bool:
        if rank:  # enters only once the other rank has advanced the operation
            assert operation.event.wait(30)
        ranks[rank].fence()
        return True

    assert together(work, 2) == [True, True]


@pytest.mark.parametrize("oversubscribed", [False, True])
def test_who_waits_long_leaves_its_core_to_others(oversubscribed):
    """A wait of at least half a second costs far less CPU time than it lasts."""
    ranks = make_barriers(2, oversubscribed=oversubscribed)

    def work(rank: int) -> float:
        if rank:
            time.sleep(0.5)
        began, before = time.monotonic(), time.thread_time()
        ranks[rank].fence()
        return (time.thread_time() - before) / (time.monotonic() - began)

    assert together(work, 2)[0] < 0.7


@pytest.mark.parametrize("n", [1, 3, MANY_RANKS])
def test_freed_words_are_let_go(n):
    memory = bytearray(8 * WORDS * n)
    barrier = make_barrier(np.frombuffer(memory, np.uint64).reshape(n, WORDS), 0, False, Progress())
    with pytest.raises(BufferError):
        memory.append(0)
    barrier.free()
    memory.append(0)  # refused while anything still looks at it
