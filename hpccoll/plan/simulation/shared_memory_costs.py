"""The costs of loads, stores and fences.

Shapes: P ranks that represent all n (see links.py).

A load or a store takes its actor the time of the bytes on the link within the node, without alpha; the port of the
other rank stays free. A reduction adds gamma per byte; a load from the rank itself takes gamma only. Ranks leave a
fence one alpha of that link after the last of them has entered. Plans that access memory of another node are refused.
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
    """The fences of a round: the representative of each rank's leader (-1: no fence), and the time of a fence."""

    leader: IntArray
    alpha_s: float

    def leave(self, clocks: Floats) -> tuple[Floats, IntArray]:
        """Return when each rank leaves, and the last rank that it waited for (itself if none), shape (P,) each."""
        members = np.nonzero(self.leader != NO_PEER)[0]
        group = self.leader[members]
        latest, last = np.full(len(clocks), -np.inf), np.arange(len(clocks))
        np.maximum.at(latest, group, clocks[members])
        comes_last = members[clocks[members] == latest[group]][::-1]
        last_of = np.zeros(len(clocks), np.int64)
        last_of[self.leader[comes_last]] = comes_last  # the lowest rank of those that come at the same time
        after = clocks.copy()
        after[members] = latest[group] + self.alpha_s
        waits = members[clocks[members] < latest[group]]
        last[waits] = last_of[self.leader[waits]]
        return after, last


@dataclass(frozen=True, slots=True)
class AccessCosts:
    """The seconds and bytes of a round's loads and stores, shape (P,) each, and the number of transfers."""

    seconds: Floats
    nbytes: Floats
    transfers: int


class SharedMemoryPricer:
    """Computes the costs of rounds of loads and stores, and of rounds of fences."""

    def __init__(self, plan: Plan, machine: Machine, chunk_bytes: ChunkBytes, links: LinkTable) -> None:
        self.plan, self.machine, self.chunks, self.links = plan, machine, chunk_bytes, links

    def price_fences(self, fences: Sequence[Fence]) -> FenceCosts:
        """Return the costs of the fences of a round; a rank takes part in at most one."""
        leader = np.full(self.links.size, NO_PEER)
        for fence in fences:
            self._check_same_node(fence.leader, "waits for")
            leader = np.where(fence.leader != NO_PEER, fence.leader % self.links.size, leader)
        fence_s = self.machine.fence_s
        return FenceCosts(leader, self.machine.within.alpha_s if fence_s is None else fence_s)

    def price_accesses(self, steps: Sequence[Step]) -> AccessCosts:
        """Return the costs of the loads and stores of a round."""
        size, gamma, link = self.links.size, self.machine.gamma_s_per_byte, self.machine.within
        seconds, nbytes, transfers = np.zeros(size), np.zeros(size), 0
        for step in steps:
            if not isinstance(step, Load | Store):
                continue
            loads = isinstance(step, Load)
            peers, region = (step.source, step.local) if isinstance(step, Load) else (step.dest, step.local)
            self._check_same_node(peers, "loads from" if loads else "stores to")
            moved = np.where(peers != NO_PEER, self.chunks.region_bytes(region), 0.0)
            local = peers == self.links.rank
            crossing = np.where(local, 0.0, moved)
            seconds += link.transfer_s(crossing)
            reduces = np.asarray(step.op if isinstance(step, Load) else Op.COPY) != Op.COPY
            seconds += np.where(local | reduces, moved, 0.0) * gamma
            nbytes += crossing
            transfers += int(np.count_nonzero(crossing))
        return AccessCosts(seconds, nbytes, transfers)

    def _check_same_node(self, peers: IntArray, does: str) -> None:
        """Raise UsageError if a peer is on another node, whose memory is not shared."""
        links, q = self.links, self.machine.ranks_per_node
        far = np.nonzero((peers != NO_PEER) & (links.node[peers] != links.own_node))[0]
        if len(far):
            pair = f"rank {far[0]} {does} rank {peers[far[0]]}, which is on another node of {self.machine.name}"
            raise UsageError(
                f"{self.plan.name} on {self.plan.ranks} ranks: {pair} ({q} {'rank' if q == 1 else 'ranks'} "
                f"per node) and shares no memory with it; ask for --ranks {q} at most, or for --nodes 1"
            )
