"""Fences where the machine does not show stores in program order: full memory barriers around every word."""

from __future__ import annotations

import numpy as np

import hpccoll
from hpccoll.runtime.node_memory import node_barrier


def test_barriers_of_memory_are_set_and_given_back(comm, monkeypatch):
    monkeypatch.setattr(node_barrier, "_ORDERED_MACHINES", ())
    with hpccoll.Communicator(comm) as hpc:
        barrier = hpc._engine.node.barrier
        assert barrier.window is not None
        x = hpc.empty(1000, "int64")
        for turn in range(20):
            x[:] = hpc.rank + turn
            hpc.all_reduce(x, algorithm="shared_two_shot")
            assert (x == hpc.size * turn + hpc.size * (hpc.size - 1) // 2).all()
            y = hpc.all_gather(np.full(3, turn + hpc.rank), algorithm="shared")
            assert (y == turn + np.arange(hpc.size)[:, None]).all()
    assert barrier.window is None


def test_they_come_before_a_word_is_written_and_after_the_others_were_read(comm, monkeypatch):
    monkeypatch.setattr(node_barrier, "_ORDERED_MACHINES", ())
    with hpccoll.Communicator(comm) as hpc:
        barrier = hpc._engine.node.barrier
        seen: list[int] = []
        sync = barrier._synchronize
        assert sync is not None

        def watched() -> None:
            seen.append(barrier._own[0])
            sync()

        barrier._synchronize = barrier._finish = watched
        hpc.barrier(algorithm="shared")
        barrier._synchronize = barrier._finish = sync
    assert len(seen) % 2 == 0
    assert all(after == before + 1 for before, after in zip(seen[::2], seen[1::2], strict=True))
    assert seen or comm.size == 1
