"""Measures the shortest time that the memory of a node, or the links between nodes, allow for a collective.

On one node, all ranks copy a message at the same time, and the limit is the time of the copy, scaled to the bytes that
the operation must read and write. An operation must read its input once if another rank or a reduction needs it, and
must write its output once, except the part that is in place already. On several nodes, every node sends a message to
the next node and receives one from the previous node, and the limit is the time of the exchange, scaled to the bytes
that a node must send.

`hpccoll bench`, the report and `hpccoll simulate --machine fit:FILE` state the same lower bound, that of
`compute_lower_bounds`. `compute_lower_bounds` uses the optimum of a known network, else the measured limit of long
messages, else the bounds of a machine model.
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
UNEQUAL_RATIO = 1.5  # the slowest node's time of the exchange, divided by the fastest node's time
LEAST_LIMITED = 2**20  # bytes; shorter messages are limited by latency and caches


@dataclass(frozen=True, slots=True)
class HardwareLimit:
    """The measured speed of a machine: the time `us` in which each rank copies, or each node sends, `nbytes` bytes.

    On one node, all ranks copy host memory at once. On several nodes, all nodes exchange messages at once.
    """

    us: float
    nbytes: int
    nodes: int
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
    """Return the lower bounds of an operation's time in seconds, by latency and by bandwidth; 0 for an unknown bound.

    If `optimum` (the least time per byte on a network) is given, it gives the bandwidth bound, and the machine model
    `machine` gives the latency bound. Without `optimum`, `limit`, a measurement of this machine, gives the bandwidth
    bound of messages of at least LEAST_LIMITED bytes, whose latency bound is unknown. In all other cases, `machine`
    gives both bounds. `nbytes` is the message size as nccl-tests defines it.
    """
    if optimum is not None:
        latency_s = 0.0 if machine is None else compute_bounds(operation, ranks, machine, nbytes).latency_s
        return Bounds(latency_s, optimum.compute_seconds(nbytes), optimum.binding)
    shortest_us = 0.0 if limit is None or nbytes < LEAST_LIMITED else limit.compute_us(operation, nbytes, ranks)
    if shortest_us:
        return Bounds(0.0, shortest_us * 1e-6)
    return Bounds(0.0, 0.0) if machine is None else compute_bounds(operation, ranks, machine, nbytes)


def find_network_optimum(record: CollectiveRecord, network: Network) -> Optimum | None:
    """Return the least time per byte of the record's operation on a network, and the links that set this bound.

    The bound ignores latency. The result is None if no bound is known for the operation, or the network has one rank.
    """
    from hpccoll.synthesis import compute_optimum
    from hpccoll.synthesis.optimum import RULED

    ruled = {operation.value: operation for operation in RULED}
    if record.op not in ruled or network.ranks < 2:
        return None
    return compute_optimum(network, ruled[record.op], record.root or 0)


def set_bound(record: CollectiveRecord, network: Network) -> CollectiveRecord:
    """Return a record of `bench` with the network's lower bound of its time in `bound_us`; unchanged if unknown."""
    optimum = find_network_optimum(record, network)
    if optimum is None:
        return record
    return replace(record, bound_us=optimum.compute_seconds(record.nbytes) * 1e6, binding=optimum.binding)


def _get_share(operation: Operation, ranks: int, nodes: int) -> float:
    """Return the bytes that an operation must move, as a multiple of those that the measured copy or exchange moves.

    With several nodes, the bytes that leave a node are counted; with one node, the bytes that all ranks read and write.
    """
    if nodes > 1:
        return get_busbw_factor(operation, nodes)
    n, others = ranks, ranks - 1
    read, written = {  # bytes that all ranks together read and write, in multiples of the message size
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
    """Return the measured time in which each rank copies `nbytes` bytes or, on several nodes, each node sends them.

    All ranks copy at once, or all nodes send to the next node at once. At most MOST_BYTES are copied or sent.
    Collective over `comm`. Cost: two buffers of the message size, and ITERATIONS + 1 copies.
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
    """Return the seconds of a copy or exchange by all ranks; `spans` has the times at which each rank began and ended.

    On one node, where all ranks read the same clock, the duration is the time from the first beginning to the last end:
    if ranks share cores, some begin after others have ended. On several nodes, whose clocks differ, the duration is
    that of the slowest rank.
    """
    if nodes > 1:
        return max(end - begin for begin, end in spans)
    return max(end for _, end in spans) - min(begin for begin, _ in spans)
