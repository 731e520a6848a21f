"""Collectives of two levels as they are run: part after part, work within nodes behind messages between them.

The first part takes what the simulation of the plan says. Each further one follows as soon as the busiest node's link
has carried it, since messages of several parts are under way at once and all other work hides behind them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpccoll.algorithms.pipelining import MESSAGE_BYTES, wanted_parts
from hpccoll.plan import Machine, Plan, Simulation, simulate


def simulate_pipelined(plan: Plan, machine: Machine, count: int, itemsize: int, *, full: bool = False) -> Simulation:
    """Return what a plan of two levels takes on `machine`; on one node, what it takes in one part.

    Args:
        plan: of loads and stores within nodes, and messages between them.
        machine: the topology and the cost of its links.
        count: elements a rank: of its vector, or of one block.
        itemsize: bytes an element.
        full: simulate every rank, also where a period would do.
    """
    sizes = plan.operation.chunk_sizes(count, plan.ranks, plan.column(0).chunks)
    parts = wanted_parts(plan, sizes, itemsize) if plan.ranks > machine.ranks_per_node else 1
    first = simulate(plan, machine, -(-count // parts), itemsize, full=full, trace=False)
    if parts == 1:
        return first
    nodes = np.arange(len(first.between)) // machine.ranks_per_node
    busiest = float(np.bincount(nodes, first.between).max()) / machine.nics_per_node
    message = np.array([float(MESSAGE_BYTES)])  # of which parts are made
    later = (parts - 1) * busiest * float(machine.between.transfer_s(message)[0]) / MESSAGE_BYTES
    whole = plan.operation.message_bytes(count, itemsize, plan.ranks)
    within, between = first.within * parts, first.between * parts
    return replace(first, nbytes=whole, clocks_s=first.clocks_s + later, within=within, between=between)
