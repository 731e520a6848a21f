"""Threads with a communicator each run asynchronous calls at the same time; one communicator takes one thread."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import UsageError

pytestmark = [
    pytest.mark.needs_ranks(2),
    pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="the MPI library has no MPI_THREAD_MULTIPLE"),
]


def run_random_calls(comm: Any, seed: int, problems: list[str]) -> None:
    """Make random blocking and asynchronous calls, the same on all ranks, and list the wrong results."""
    rng = random.Random(seed)
    total = sum(range(1, comm.size + 1))
    try:
        for step in range(20):
            works, arrays = [], []
            for _ in range(rng.randrange(1, 4)):
                x = np.full(rng.choice((1, 100, 5000)), float(comm.rank + 1))
                algorithm = rng.choice(("auto", "ring", "mpi", "recursive_doubling"))
                works.append(comm.all_reduce(x, algorithm=algorithm, async_op=True))
                arrays.append(x)
            if rng.random() < 0.5:
                comm.barrier()
            for work, x in zip(works, arrays, strict=True):
                work.wait()
                if (x != total).any():
                    problems.append(f"thread {seed}, step {step}: {x[:3]}")
    except Exception as error:  # noqa: BLE001 - the test reports it
        problems.append(f"thread {seed}: {error!r}")


@pytest.mark.parametrize("threads", [2, pytest.param(3, marks=pytest.mark.full), 4])
def test_each_thread_uses_a_communicator_of_its_own(threads):
    comms = [hpccoll.Communicator() for _ in range(threads)]
    problems: list[str] = []
    running = [
        threading.Thread(target=run_random_calls, args=(comm, seed, problems)) for seed, comm in enumerate(comms)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    for comm in comms:
        comm.close()
    assert not problems


@pytest.mark.parametrize("known", [0, 3], ids=["first call of its kind", "repeated call"])
def test_one_communicator_in_two_threads_is_an_error(known):
    """The other thread waits in a barrier, which the last rank enters only after this thread's call was refused."""
    comm, said = hpccoll.Communicator(), []
    for _ in range(known):
        comm.barrier()
    late = comm.rank == comm.size - 1
    other = threading.Thread(target=comm.barrier)
    if not late:
        other.start()
        while comm._state.current is None:
            pass
        with pytest.raises(UsageError, match="another thread is in barrier on this communicator"):
            comm.all_reduce(np.ones(3))
    MPI.COMM_WORLD.Barrier()
    if late:
        comm.barrier()
    else:
        other.join()
    said.append(comm.all_reduce(np.ones(1))[0])
    assert said == [comm.size]
    comm.close()
