"""Runs plans of loads, stores and fences rank by rank in one process, in random and adverse orders of the ranks.

The module shares no code with hpccoll.plan.proof.races and knows no rules: the ranks take turns at random, chunk by
chunk. A rank's memory holds junk before the rank enters the collective and after it has left. The result of a load is
visible to the loading rank at once, and to others after the loading rank's next fence. The results of many orders are
judged as in referee.py, on symbolic expressions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from hpccoll.plan import Fence, Load, Move, Op, Operation, Plan, Region, Store
from tests.unit.plan.referee import Place, brought, required, unfulfilled

Arrived = tuple[int, int, int]  # round, step, leader
JUNK = ("junk",)


def chunks_of(region: Region, n: int) -> list[list[int]]:
    """Return the chunks of each rank in a region."""
    return [[chunk for chunk in row if chunk >= 0] for row in region.ids(n).tolist()]


class Node:
    """The memory of all ranks while a plan runs."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan, self.n, self.rounds = plan, plan.ranks, plan.rounds()
        self.script = [list(self.rounds.at(t)) for t in range(self.rounds.count)]
        self.base: dict[Place, Any] = {}
        self.landed: list[dict[Place, Any]] = [{} for _ in range(self.n)]
        self.heard = [{rank} for rank in range(self.n)]
        self.waiting: dict[Arrived, set[int]] = {}
        self.mail: dict[tuple[int, int], list[Any]] = {}
        self.out: dict[Place, Any] = {}
        self.chance = random.Random(seed)

    def own(self, rank: int, chunk: int) -> Any:
        """Return the contents of a rank's own chunk, as the rank itself sees them."""
        place = (rank, chunk)
        return self.landed[rank].get(place, self.base.get(place, JUNK))

    def read(self, rank: int, place: Place) -> Any:
        """Return the contents of a chunk as `rank` sees them."""
        return self.own(*place) if place[0] == rank else self.base.get(place, JUNK)

    def joined(self, rank: int, chunk: int, value: Any, op: int) -> Any:
        """Return the new contents of a rank's chunk after a copy or reduction of `value`."""
        mine = self.own(rank, chunk)
        return {Op.COPY: value, Op.OWN_FIRST: ("+", mine, value), Op.INCOMING_FIRST: ("+", value, mine)}[Op(op)]

    def run(self) -> str | None:
        """Run all ranks to the end; return the first fault, or None."""
        programs = {rank: self.program(rank) for rank in range(self.n)}
        blocked: dict[int, Any] = dict.fromkeys(programs)
        constancy, rank = self.chance.random(), 0
        while programs:
            able = [r for r in programs if blocked[r] is None or blocked[r]()]
            if not able:
                return "stuck"
            if rank not in able or self.chance.random() > constancy:
                rank = self.chance.choice(able)
            try:
                blocked[rank] = next(programs[rank])
            except StopIteration:
                del programs[rank]
        if self.plan.operation is Operation.BARRIER:
            return None if all(len(heard) == self.n for heard in self.heard) else "left too early"
        return unfulfilled(self.out, required(self.plan, self.rounds.chunks))

    def program(self, rank: int) -> Iterator[Any]:
        """Run a rank; yield None between two accesses, or a function that must return true before it continues."""
        chunks = self.rounds.chunks
        yield None
        for c in range(chunks):  # it comes: what its memory held before is lost
            self.base[rank, c] = (rank, c) if brought(self.plan, rank, c, chunks) else JUNK
        for t, steps in enumerate(self.script):
            before = {c: self.own(rank, c) for c in range(chunks)}
            moves = [step for step in steps if isinstance(step, Move)]
            yield from self.exchange(rank, moves, before)
            for index, step in enumerate(steps):
                if isinstance(step, Fence):
                    yield from self.wait(rank, t, index, step)
                elif isinstance(step, Load):
                    yield from self.load(rank, step, before)
                elif isinstance(step, Store):
                    yield from self.store(rank, step)
        for c in range(chunks):  # it has gone: its memory is used for something else
            self.out[rank, c] = self.own(rank, c)
        for c in range(chunks):
            self.base[rank, c] = JUNK

    def load(self, rank: int, step: Load, before: dict[int, Any]) -> Iterator[None]:
        """Carry out a load, chunk by chunk."""
        frm = int(step.source[rank])
        if frm < 0:
            return
        op = int(np.broadcast_to(step.op, (self.n,))[rank])
        for there, here in zip(chunks_of(step.remote, self.n)[rank], chunks_of(step.local, self.n)[rank], strict=True):
            value = before[there] if frm == rank else self.read(rank, (frm, there))
            self.landed[rank][rank, here] = self.joined(rank, here, value, op)
            yield None

    def store(self, rank: int, step: Store) -> Iterator[None]:
        """Carry out a store, chunk by chunk."""
        to = int(step.dest[rank])
        if to < 0:
            return
        for here, there in zip(chunks_of(step.local, self.n)[rank], chunks_of(step.remote, self.n)[rank], strict=True):
            value = self.own(rank, here)
            yield None
            if to == rank:
                self.landed[rank].pop((to, there), None)
            self.base[to, there] = value
            yield None

    def exchange(self, rank: int, moves: list[Move], before: dict[int, Any]) -> Iterator[Any]:
        """Carry out the sends and receives of a round."""
        for move in moves:
            if (to := int(move.dest[rank])) >= 0:
                news = (set(self.heard[rank]), [before[c] for c in chunks_of(move.send, self.n)[rank]])
                self.mail.setdefault((rank, to), []).append(news)
        for move in moves:
            if (frm := int(move.source[rank])) >= 0:
                yield lambda frm=frm: self.mail.get((frm, rank))
                heard, values = self.mail[frm, rank].pop(0)
                self.heard[rank] |= heard
                op = int(np.broadcast_to(move.op, (self.n,))[rank])
                for chunk, value in zip(chunks_of(move.recv, self.n)[rank], values, strict=True):
                    self.base[rank, chunk] = self.joined(rank, chunk, value, op)
                    self.landed[rank].pop((rank, chunk), None)

    def wait(self, rank: int, t: int, index: int, fence: Fence) -> Iterator[Any]:
        """Wait at a fence for all ranks with the same leader."""
        leader = int(fence.leader[rank])
        if leader < 0:
            return
        key, group = (t, index, leader), np.nonzero(fence.leader == leader)[0].tolist()
        here = self.waiting.setdefault(key, set())
        here.add(rank)
        if len(here) == len(group):
            for member in group:
                self.base |= self.landed[member]
                self.landed[member].clear()
            together = set().union(*(self.heard[member] for member in group))
            for member in group:
                self.heard[member] = set(together)
        yield lambda: len(here) == len(group)


def fault_in_some_order(plan: Plan, orders: int) -> str | None:
    """Return the first fault in a number of random orders; None if all results are correct."""
    for seed in range(orders):
        fault = Node(plan, seed).run()
        if fault is not None:
            return fault
    return None
