"""Simulation of hybrid plans cut into segments, as they run: work inside nodes overlaps with messages between nodes.

The first segment takes the simulated time of the plan. Every further segment adds the time for which it occupies the
busiest node's link: messages of several segments are in flight at once, and all other work overlaps with them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpccoll.algorithms.pipelining import MESSAGE_BYTES, choose_segment_count
from hpccoll.plan import Machine, Plan, Simulation, simulate


def simulate_pipelined(plan: Plan, machine: Machine, count: int, itemsize: int, *, full: bool = False) -> Simulation:
    """Simulate a hybrid plan on `machine`, cut into the segments of a run; into one segment on a single node.

    `count` is the number of elements per rank, of its vector or of one block. With `full`, every rank is simulated even
    if symmetry makes a few ranks enough.
    """
    sizes = plan.operation.chunk_sizes(count, plan.ranks, plan.column(0).chunks)
    segments = choose_segment_count(plan, sizes, itemsize) if plan.ranks > machine.ranks_per_node else 1
    first = simulate(plan, machine, -(-count // segments), itemsize, full=full, trace=False)
    if segments == 1:
        return first
    nodes = np.arange(len(first.between)) // machine.ranks_per_node
    busiest = float(np.bincount(nodes, first.between).max()) / machine.nics_per_node
    message = np.array([float(MESSAGE_BYTES)])
    later = (segments - 1) * busiest * float(machine.between.transfer_s(message)[0]) / MESSAGE_BYTES
    whole = plan.operation.message_bytes(count, itemsize, plan.ranks)
    within, between = first.within * segments, first.between * segments
    return replace(first, nbytes=whole, clocks_s=first.clocks_s + later, within=within, between=between)
