"""The waits of ranks for each other: spinning, yielding the core, sleeping."""

from __future__ import annotations

import os
import resource
import time

import numpy as np
import pytest

import hpccoll

needs_cores = pytest.mark.needs_ranks(2, len(os.sched_getaffinity(0)))
TRIES = 40  # other programs may keep the cores busy during most of them, so that a quarter counts
LATE_S = 0.0005  # shorter than a rank yields before it sleeps


@needs_cores
def test_ranks_with_cores_of_their_own_do_not_sleep_in_short_waits(comm):
    """To sleep, and to be woken by the other rank, takes longer than a short wait."""
    x, sleeps = np.ones(1), []
    with hpccoll.Communicator(comm) as hpc:
        for _ in range(TRIES):
            hpc.barrier()
            end = time.perf_counter() + LATE_S
            while comm.rank == 1 and time.perf_counter() < end:
                pass
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            hpc.all_reduce(x)
            sleeps.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)
    assert comm.rank == 1 or sorted(sleeps)[TRIES // 4] == 0, sleeps
