"""Measures the shortest time that the memory of a node, or the links between nodes, allow for a collective.

On one node, the limit is the time in which all ranks at once copy a message once, scaled to the bytes that the
operation has to read and write in place: the input that other ranks need or a reduction needs is read once, and the
output is written once, except where it is in place already. Between nodes,
the limit is the time in which every node sends a message to the next node and receives one from the previous node,
scaled to the bytes that a node has to send.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpccoll.measure.bandwidth import get_busbw_factor
from hpccoll.plan import Operation

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.runtime.job import RankLayout

ITERATIONS = 5
MOST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class HardwareLimit:
    """The measured time `us` in which all ranks copy, or all nodes exchange, `nbytes` bytes."""

    us: float
    nbytes: int
    nodes: int

    def compute_us(self, operation: Operation, nbytes: int, ranks: int) -> float:
        """Return the shortest time in microseconds of an operation on a message of `nbytes` (nccl-tests' S)."""
        return self.us * nbytes / self.nbytes * _get_share(operation, ranks, self.nodes)


def _get_share(operation: Operation, ranks: int, nodes: int) -> float:
    """Return the bytes that an operation must move, divided by those of the measured copy or exchange."""
    if nodes > 1:
        return get_busbw_factor(operation, nodes)
    n, others = ranks, ranks - 1
    read, written = {  # over all ranks, in multiples of the message size
        Operation.ALL_REDUCE: (n, n),
        Operation.REDUCE: (n, 1),
        Operation.REDUCE_SCATTER: (n, 1),
        Operation.SCAN: (n, others),
        Operation.EXSCAN: (others, others),
        Operation.BROADCAST: (1, others),
        Operation.ALL_GATHER: (1, others),
        Operation.ALL_TO_ALL: (others, others),
        Operation.GATHER: (others / n, others / n),
        Operation.SCATTER: (others / n, others / n),
        Operation.BARRIER: (0, 0),
    }[operation]
    return (read + written) / (2 * n)


def measure_hardware_limit(comm: MPI.Intracomm, layout: RankLayout, nbytes: int) -> HardwareLimit:
    """Measure copies of up to `MOST_BYTES` by all ranks at once or, on several nodes, the exchange between nodes.

    Collective over `comm`. Cost: two buffers of the message size, and ITERATIONS + 1 copies or exchanges.
    """
    size = min(nbytes, MOST_BYTES)
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    leaders = [members[0] for members in layout.members]
    place = leaders.index(comm.rank) if comm.rank in leaders else None
    samples = []
    for _ in range(ITERATIONS + 1):
        comm.Barrier()
        begin = time.perf_counter()
        if layout.nodes == 1:
            np.copyto(target, source)
        elif place is not None:
            after, before = leaders[(place + 1) % len(leaders)], leaders[place - 1]
            comm.Sendrecv(source, after, recvbuf=target, source=before)
        samples.append(_compute_duration(comm.allgather((begin, time.perf_counter())), layout.nodes))
    return HardwareLimit(min(samples[1:]) * 1e6, size, layout.nodes)


def _compute_duration(spans: Sequence[tuple[float, float]], nodes: int) -> float:
    """Return how long all ranks took together; `spans` are the times at which each rank began and ended.

    The ranks of one node read the same clock. If ranks share cores, some begin after others have ended, so the duration
    is that from the first beginning to the last end. The clocks of several nodes differ, so the duration is that of the
    slowest rank.
    """
    if nodes > 1:
        return max(end - begin for begin, end in spans)
    return max(end for _, end in spans) - min(begin for begin, _ in spans)
