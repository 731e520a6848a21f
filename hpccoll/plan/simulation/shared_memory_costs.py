"""What loads, stores and fences cost: bytes for whoever acts, and for those who meet at a fence the latest clock.

Shapes: P ranks that stand for all n (see peers.py).

A load or a store takes its actor the bytes of the link within the node, and no alpha: nobody is sent to, and the port
of the other side stays free. A reduction takes gamma a byte more; what a rank loads from itself takes gamma only. A
fence lets all of its ranks go on one alpha of that link after the last of them has come. Memory is shared within a node
and not beyond, so a plan that reaches further is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpccoll.errors import UsageError
from hpccoll.plan.plan import Plan
from hpccoll.plan.simulation.chunk_bytes import ChunkBytes, Floats
from hpccoll.plan.simulation.links import LinkTable
from hpccoll.plan.simulation.machine import Machine
from hpccoll.plan.step import NO_PEER, Fence, IntArray, Load, Op, Step, Store


@dataclass(frozen=True, slots=True)
class FenceCosts:
    """The fences of a round: each rank's leader as a representative (-1: it takes no part), and what a fence takes."""

    leader: IntArray
    alpha_s: float

    def leave(self, clocks: Floats) -> tuple[Floats, IntArray]:
        """Return when each rank goes on, and for whom it waited (the rank itself where for nobody), shape (P,) each."""
        there = np.nonzero(self.leader != NO_PEER)[0]
        group = self.leader[there]
        latest, last = np.full(len(clocks), -np.inf), np.arange(len(clocks))
        np.maximum.at(latest, group, clocks[there])
        comes_last = there[clocks[there] == latest[group]][::-1]
        of = np.zeros(len(clocks), np.int64)
        of[self.leader[comes_last]] = comes_last  # the lowest of those that come at the same time
        after = clocks.copy()
        after[there] = latest[group] + self.alpha_s
        waits = there[clocks[there] < latest[group]]
        last[waits] = of[self.leader[waits]]
        return after, last


@dataclass(frozen=True, slots=True)
class AccessCosts:
    """What the loads and stores of a round take each rank, and how many bytes it moves, shape (P,) each."""

    seconds: Floats
    nbytes: Floats
    transfers: int


class SharedMemoryPricer:
    """Prices rounds of loads and stores, and rounds of fences."""

    def __init__(self, plan: Plan, machine: Machine, chunk_bytes: ChunkBytes, directory: LinkTable) -> None:
        self.plan, self.machine, self.chunks, self.directory = plan, machine, chunk_bytes, directory

    def meeting(self, fences: Sequence[Fence]) -> FenceCosts:
        """Return the fences of a round as one; a rank takes part in one of them at most."""
        leader = np.full(self.directory.size, NO_PEER)
        for fence in fences:
            self._refuse_far(fence.leader, "waits for")
            leader = np.where(fence.leader != NO_PEER, fence.leader % self.directory.size, leader)
        fence_s = self.machine.fence_s
        return FenceCosts(leader, self.machine.within.alpha_s if fence_s is None else fence_s)

    def acting(self, steps: Sequence[Step]) -> AccessCosts:
        """Return what the loads and stores of a round take."""
        size, gamma, link = self.directory.size, self.machine.gamma_s_per_byte, self.machine.within
        seconds, nbytes, transfers = np.zeros(size), np.zeros(size), 0
        for step in steps:
            if not isinstance(step, Load | Store):
                continue
            loads = isinstance(step, Load)
            peers, region = (step.source, step.local) if isinstance(step, Load) else (step.dest, step.local)
            self._refuse_far(peers, "loads from" if loads else "stores to")
            moved = np.where(peers != NO_PEER, self.chunks.of(region), 0.0)
            local = peers == self.directory.rank
            crossing = np.where(local, 0.0, moved)
            seconds += link.transfer_s(crossing)
            reduces = np.asarray(step.op if isinstance(step, Load) else Op.COPY) != Op.COPY
            seconds += np.where(local | reduces, moved, 0.0) * gamma
            nbytes += crossing
            transfers += int(np.count_nonzero(crossing))
        return AccessCosts(seconds, nbytes, transfers)

    def _refuse_far(self, peers: IntArray, does: str) -> None:
        directory, q = self.directory, self.machine.ranks_per_node
        far = np.nonzero((peers != NO_PEER) & (directory.node[peers] != directory.here))[0]
        if len(far):
            pair = f"rank {far[0]} {does} rank {peers[far[0]]}, which is on another node of {self.machine.name}"
            raise UsageError(
                f"{self.plan.name} on {self.plan.ranks} ranks: {pair} ({q} {'rank' if q == 1 else 'ranks'} a node) and "
                f"shares no memory with it; ask for --ranks {q} at most, or for --nodes 1"
            )
