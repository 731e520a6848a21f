"""Measures the shortest time that the memory of a node, or the links between nodes, allow for a collective.

On one node, the limit is the time in which all ranks at once copy a message once, scaled to the bytes that the
operation has to read and write in place: the input that other ranks need or a reduction needs is read once, and the
output is written once, except where it is in place already. Between nodes,
the limit is the time in which every node sends a message to the next node and receives one from the previous node,
scaled to the bytes that a node has to send.

The terminal, the report and `hpccoll simulate --machine fit:FILE` state the same lower bound: that of
`compute_lower_bounds`, which takes the optimum of a known network, or the measured limit where it applies, and
otherwise a machine model's bounds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from hpccoll.measure.bandwidth import get_busbw_factor
from hpccoll.plan import Machine, Operation
from hpccoll.plan.simulation import compute_bounds
from hpccoll.plan.simulation.bounds import Bounds
from hpccoll.records import CollectiveRecord

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.runtime.job import RankLayout
    from hpccoll.synthesis import Network, Optimum

ITERATIONS = 5
MOST_BYTES = 64 * 2**20
UNEQUAL_RATIO = 1.5  # of the slowest node's time of the exchange to that of the fastest
LEAST_LIMITED = 2**20  # bytes; shorter messages are limited by latency and caches


@dataclass(frozen=True, slots=True)
class HardwareLimit:
    """The measured speed of a machine: the time `us` in which all ranks copy, or all nodes exchange, `nbytes` bytes."""

    us: float
    nbytes: int
    nodes: int  # 1: the ranks copied host memory; more: the nodes exchanged messages
    unequal: bool = False  # whether some nodes exchange much faster than others

    @classmethod
    def from_run(cls, run: Mapping[str, Any]) -> HardwareLimit | None:
        """Return the limit that `run`, a record of kind `run`, contains; None if it contains none."""
        us, nbytes = run.get("limit_us"), run.get("limit_nbytes")
        if not us or not nbytes:
            return None
        return cls(float(us), int(nbytes), int(run.get("nodes") or 1), bool(run.get("limit_unequal")))

    def compute_us(self, operation: Operation, nbytes: int, ranks: int) -> float:
        """Return the shortest possible time in microseconds of an operation on `ranks` ranks, by this limit.

        `nbytes` is the message size as nccl-tests defines it.
        """
        share = _get_share(operation, ranks, self.nodes)
        if self.unequal and operation is Operation.ALL_REDUCE:
            share = 1.0  # only the slowest link needs the measured time, and it carries each byte once at least
        return self.us * nbytes / self.nbytes * share


def compute_lower_bounds(
    operation: Operation,
    nbytes: int,
    ranks: int,
    limit: HardwareLimit | None,
    machine: Machine | None = None,
    optimum: Optimum | None = None,
) -> Bounds:
    """Return the lower bounds of an operation's time, by latency and by bandwidth; 0 where they are unknown.

    If `optimum`, the least time on the network, is given, it is the bandwidth bound. Else, from LEAST_LIMITED bytes on,
    the bandwidth bound is that of `limit`, a measurement of this machine, and there is no latency bound. Otherwise both
    bounds are those of the machine model `machine`. `nbytes` is the message size as nccl-tests defines it.
    """
    if optimum is not None:
        latency_s = 0.0 if machine is None else compute_bounds(operation, ranks, machine, nbytes).latency_s
        return Bounds(latency_s, optimum.compute_seconds(nbytes), optimum.binding)
    shortest_us = 0.0 if limit is None or nbytes < LEAST_LIMITED else limit.compute_us(operation, nbytes, ranks)
    if shortest_us:
        return Bounds(0.0, shortest_us * 1e-6)
    return Bounds(0.0, 0.0) if machine is None else compute_bounds(operation, ranks, machine, nbytes)


def find_network_optimum(record: CollectiveRecord, network: Network) -> Optimum | None:
    """Return the least time of a measured operation on a network, as an `Optimum`; None if it cannot be computed."""
    from hpccoll.synthesis import compute_optimum
    from hpccoll.synthesis.optimum import RULED

    ruled = {operation.value: operation for operation in RULED}
    if record.op not in ruled or network.ranks < 2:
        return None
    return compute_optimum(network, ruled[record.op], record.root or 0)


def set_bound(record: CollectiveRecord, network: Network) -> CollectiveRecord:
    """Return a record of `bench` with the least time on the network, if it is known, as its lower bound."""
    optimum = find_network_optimum(record, network)
    if optimum is None:
        return record
    return replace(record, bound_us=optimum.compute_seconds(record.nbytes) * 1e6, binding=optimum.binding)


def _get_share(operation: Operation, ranks: int, nodes: int) -> float:
    """Return the bytes that an operation must move, relative to a copy or exchange of its message by all ranks.

    With several nodes, these are bytes that leave a node; with one node, reads and writes of memory by all ranks.
    """
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
    """Measure how fast all ranks copy `nbytes` of memory at once or, on several nodes, how fast nodes exchange them.

    At most MOST_BYTES are copied. Collective over `comm`. Cost: two buffers of the copied bytes, and ITERATIONS + 1
    copies.
    """
    size = min(nbytes, MOST_BYTES)
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    leaders = [members[0] for members in layout.members]
    place = leaders.index(comm.rank) if comm.rank in leaders else None
    samples, unequal = [], []
    for _ in range(ITERATIONS + 1):
        comm.Barrier()
        begin = time.perf_counter()
        if layout.nodes == 1:
            np.copyto(target, source)
        elif place is not None:
            after, before = leaders[(place + 1) % len(leaders)], leaders[place - 1]
            comm.Sendrecv(source, after, recvbuf=target, source=before)
        spans = comm.allgather((begin, time.perf_counter()))
        samples.append(_compute_duration(spans, layout.nodes))
        durations = [spans[leader][1] - spans[leader][0] for leader in leaders]
        unequal.append(layout.nodes > 1 and max(durations) > UNEQUAL_RATIO * min(durations))
    return HardwareLimit(min(samples[1:]) * 1e6, size, layout.nodes, any(unequal[1:]))


def _compute_duration(spans: Sequence[tuple[float, float]], nodes: int) -> float:
    """Return how long all ranks took together; `spans` are the times at which each rank began and ended.

    The ranks of one node read the same clock. If ranks share cores, some begin after others have ended, so the duration
    is that from the first beginning to the last end. The clocks of several nodes differ, so the duration is that of the
    slowest rank.
    """
    if nodes > 1:
        return max(end - begin for begin, end in spans)
    return max(end for _, end in spans) - min(begin for begin, _ in spans)
