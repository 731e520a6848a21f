"""Measures whether each rank of a job has a core of its own, by letting all ranks compute at the same time.

The number of cores that the operating system states can be wrong: containers and control groups limit the time on
cores, and several nodes of a job may run on the same machine.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.runtime.job import RankLayout

ATTEMPTS = 3
SPIN_S = 0.15  # longer than the period of a CPU quota, 0.1 s
OWN_CORE = 0.75  # a rank that gets less shares its core: 3 ranks on 2 cores get two thirds of a core each


def measure_core_share(comm: MPI.Intracomm) -> float:
    """Return the least share of a core that a rank of `comm` gets while all ranks compute: 1 at best. Collective.

    A low share is measured again, because another program may have been busy for a moment; the highest of up to
    ATTEMPTS measurements counts. Cost: SPIN_S seconds per measurement.
    """
    best = 0.0
    for _ in range(ATTEMPTS):
        comm.Barrier()
        best = max(best, min(comm.allgather(_measure_own_share())))
        if best >= OWN_CORE:
            break
    return best


def find_core_share(comm: MPI.Intracomm, layout: RankLayout) -> float | None:
    """Return `measure_core_share(comm)` to three decimals; None for one rank, or more ranks than cores. Collective."""
    return None if layout.oversubscribed or comm.size == 1 else round(measure_core_share(comm), 3)


def is_shared(core_share: float | None) -> bool:
    """Whether the result of `find_core_share` means that ranks share cores; False if it is None."""
    return core_share is not None and core_share < OWN_CORE


def _measure_own_share() -> float:
    """Return the share of a core that this thread gets while it computes for SPIN_S seconds."""
    begun_s, spent_s = time.perf_counter(), time.thread_time()
    while time.perf_counter() - begun_s < SPIN_S:
        pass
    return min((time.thread_time() - spent_s) / (time.perf_counter() - begun_s), 1.0)
