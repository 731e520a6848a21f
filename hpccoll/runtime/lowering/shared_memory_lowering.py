"""Lowering rounds of loads, stores and fences: where the others' chunks are, and what may be written when.

Two ways to reach another rank's chunks. *Direct*: where they are, in the user's own memory. *Staged*: every chunk that
other ranks touch has a place in the arena, memory that the node's ranks share; it is copied there before the first
fence, and from there into the output after the last.

A rank's own landing must not be seen before the next fence. Where others still load from the very place, it lands in
scratch and is copied after the fence; where nobody touches the chunk any more, it lands in the output at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan import NO_CHUNK, NO_PEER, Fence, IntArray, Load, Op, Plan, Region, Step, Store
from hpccoll.runtime.lowering.chunk_locations import ChunkLocations, align_ranges
from hpccoll.runtime.lowering.message_lowering import get_own_chunks, get_own_value
from hpccoll.runtime.lowering.program import Copy, Instruction, MemoryKind, MemoryRange, NodeFence, Reduce


class RemoteAccesses:
    """What the ranks of a plan do to each other's chunks, for all of them at once.

    Shapes: n ranks, C chunks, T rounds. `contact` (n, C): chunks that another rank touches; `published` (n, C): those
    that one loads before they were written; `fetched` (n, C): those that one loads after; `stored` (n, C): those that
    one stores into; `last` (n, C): the last round in which another rank touches a chunk, -1 for none.
    """

    def __init__(self, plan: Plan) -> None:
        self.ranks = np.arange(plan.ranks)
        rounds = plan.make(self.ranks)
        self.rounds: list[Sequence[Step]] = [rounds.at(t) for t in range(rounds.count)]
        of = plan.ranks, rounds.chunks
        self.contact, self.published, self.fetched = (np.zeros(of, np.bool_) for _ in range(3))
        self.stored, self.written = (np.zeros(of, np.bool_) for _ in range(2))
        self.last = np.full(of, -1)
        self._loads: list[tuple[int, IntArray, IntArray]] = []
        for t, steps in enumerate(self.rounds):
            for step in steps:
                self._touch(t, step)
            self.end(t)
        self.written[:] = False

    def _touch(self, t: int, step: Step) -> None:
        if isinstance(step, Load):
            who, chunks = self._pairs(step.remote, step.source)
            self.published[who, chunks] |= ~self.written[who, chunks]
            self.fetched[who, chunks] |= self.written[who, chunks]
            self._loads.append((t, who, chunks))
        elif isinstance(step, Store):
            who, chunks = self._pairs(step.remote, step.dest)
            self.stored[who, chunks] = True
        else:
            return
        self.contact[who, chunks] = True
        self.last[who, chunks] = t

    def _pairs(self, region: Region, peer: IntArray) -> tuple[IntArray, IntArray]:
        """Return the (rank, chunk) that others touch, as two aligned lists."""
        ids = region.ids(len(self.ranks))
        touched = (ids != NO_CHUNK) & (peer != NO_PEER)[:, None] & (peer != self.ranks)[:, None]
        return np.broadcast_to(peer[:, None], ids.shape)[touched], ids[touched]

    def end(self, t: int) -> None:
        """Record what round `t` has written."""
        for step in self.rounds[t]:
            if isinstance(step, Fence):
                continue
            if isinstance(step, Store):
                region, who = step.remote, step.dest
            else:
                region, who = step.local if isinstance(step, Load) else step.recv, self._taking(step.source)
            ids = region.ids(len(self.ranks))
            lands = (ids != NO_CHUNK) & (who != NO_PEER)[:, None]
            self.written[np.broadcast_to(who[:, None], ids.shape)[lands], ids[lands]] = True

    def _taking(self, frm: IntArray) -> IntArray:
        return np.where(frm != NO_PEER, self.ranks, NO_PEER)

    def loaded_around(self, t: int, rank: int) -> NDArray[np.bool_]:
        """Return which chunks of `rank` others load between the fences around round `t`, shape (C,)."""
        fences = [r for r, steps in enumerate(self.rounds) if self._fences(steps, rank)]
        begin = max((r for r in fences if r <= t), default=-1)
        end = min((r for r in fences if r > t), default=len(self.rounds))
        loaded = np.zeros(self.contact.shape[1], np.bool_)
        for when, who, chunks in self._loads:
            if begin <= when < end:
                loaded[chunks[who == rank]] = True
        return loaded

    def crowded(self, t: int) -> bool:
        """Whether after the fence in round `t` a chunk is read that landed, before it, where others still loaded.

        Alike on all ranks: only then does a second meeting follow.
        """
        before = [r for r in range(t) if any(isinstance(step, Fence) for step in self.rounds[r])]
        landed, loaded = np.zeros_like(self.contact), np.zeros_like(self.contact)
        for r in range(before[-1] if before else 0, t):
            for step in self.rounds[r]:
                if isinstance(step, Load):
                    who, chunks = self._pairs(step.remote, step.source)
                    loaded[who, chunks] = True
                    ids = step.local.ids(len(self.ranks))
                    lands = (ids != NO_CHUNK) & (step.source != NO_PEER)[:, None]
                    landed[np.broadcast_to(self.ranks[:, None], ids.shape)[lands], ids[lands]] = True
        return bool((landed & loaded & (self.last > t)).any())

    @staticmethod
    def _fences(steps: Sequence[Step], rank: int) -> bool:
        return any(isinstance(step, Fence) and step.leader[rank] != NO_PEER for step in steps)

    def stores_last(self) -> bool:
        """Whether anything is stored after the last fence but one: then the last one must not be left out."""
        fences = [t for t, steps in enumerate(self.rounds) if any(isinstance(step, Fence) for step in steps)]
        between = self.rounds[fences[-2] :] if len(fences) > 1 else self.rounds
        return len(fences) < 2 or any(isinstance(step, Store) for steps in between for step in steps)


class SharedMemoryLowering:
    """Lowers one rank's loads, stores and fences.

    Args:
        plan: the plan.
        rank: whose.
        sizes: elements of each chunk.
        staged: whether chunks are reached in the arena.
        in_place: whether this rank's input and output share memory.
        neighbours: of the plan.
        steps: where instructions go.
        scratch: gives that many elements of scratch.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        sizes: IntArray,
        staged: bool,
        in_place: bool,
        neighbours: RemoteAccesses,
        steps: list[Instruction],
        scratch: Callable[[int], MemoryRange],
    ) -> None:
        self.plan, self.rank, self.sizes, self.staged, self.in_place = plan, rank, sizes, staged, in_place
        self.facts, self.steps, self.scratch = neighbours, steps, scratch
        self.deferred: list[tuple[list[MemoryRange], IntArray]] = []
        self._others: dict[int, ChunkLocations] = {}

    def arena(self, rank: int) -> NDArray[np.bool_]:
        """Return which chunks of a rank live in the arena, shape (C,)."""
        wanted = self.plan.operation.output_mask(np.array([rank]), self.plan.ranks, len(self.sizes), self.plan.root)[0]
        contact = self.facts.contact[rank]
        return np.asarray(contact if self.staged else contact & ~wanted)

    def touched(self) -> frozenset[MemoryKind]:
        """Return which of this rank's own memories others touch when they reach its chunks directly."""
        wanted = self.plan.operation.output_mask(
            np.array([self.rank]), self.plan.ranks, len(self.sizes), self.plan.root
        )[0]
        full = self.sizes > 0
        source = (self.facts.published[self.rank] & full).any()
        result = ((self.facts.stored[self.rank] | self.facts.fetched[self.rank]) & wanted & full).any()
        return frozenset({MemoryKind.SOURCE} if source else ()) | frozenset({MemoryKind.RESULT} if result else ())

    def begin(self, places: ChunkLocations) -> None:
        """Copy into the arena what others load before this rank has written it."""
        self.places = places
        if self.staged:
            chunks = np.nonzero(self.facts.published[self.rank])[0]
            self.copy(places.now(chunks), places.at(chunks, MemoryKind.ARENA))
            places.settle(chunks)

    def round(self, t: int, steps: Sequence[Step]) -> None:
        """Lower the steps of this rank in round `t`, and take note of what all ranks write in it."""
        if any(isinstance(step, Fence) and get_own_value(step.leader) != NO_PEER for step in steps):
            self.fence(t)
        chains: dict[tuple[int, ...], list[tuple[int, list[MemoryRange]]]] = {}
        for step in steps:
            if isinstance(step, Load) and (frm := get_own_value(step.source)) != NO_PEER:
                src, dst = get_own_chunks(step.remote), get_own_chunks(step.local)
                operand = self.places.now(src) if frm == self.rank else self.there(frm, src)
                chains.setdefault(tuple(dst.tolist()), []).append((get_own_value(step.op), operand))
            elif isinstance(step, Store) and (to := get_own_value(step.dest)) != NO_PEER:
                self.copy(self.places.now(get_own_chunks(step.local)), self.stored(to, get_own_chunks(step.remote)))
        for chunks, operands in chains.items():
            self.land(t, np.array(chunks, np.int64), operands)
        for step in self.facts.rounds[t]:
            if isinstance(step, Store):
                ids = step.remote.ids(self.plan.ranks)[step.dest == self.rank]
                self.places.settle(np.unique(ids[ids != NO_CHUNK]))
        self.facts.end(t)

    def copy(self, sources: list[MemoryRange], outs: list[MemoryRange]) -> None:
        """Copy where that moves anything."""
        self.steps.extend(Copy(source, out) for source, out in align_ranges(sources, outs) if source != out)

    def fence(self, t: int) -> None:
        """Wait for the others; then let land what they were still loading over.

        A last fence that only waits for readers of the arena is left out: its halves are used in turn.
        """
        if self.staged and t == len(self.facts.rounds) - 1 and not self.facts.stores_last():
            return
        self.steps.append(NodeFence())
        for landed, chunks in self.deferred:
            self.copy(landed, self.places.home(chunks))
            self.places.settle(chunks)
        self.deferred.clear()
        if self.facts.crowded(t):
            self.steps.append(NodeFence())  # what has just landed is read by others from here on

    def there(self, rank: int, chunks: IntArray) -> list[MemoryRange]:
        """Return where another rank's chunks are now."""
        other = self.other(rank)
        written = self.facts.written[rank, chunks]
        memory = np.where(written, other.homes(chunks), MemoryKind.ARENA if self.staged else MemoryKind.SOURCE)
        return [replace(place, owner=rank) for place in other.merged(chunks, memory)]

    def stored(self, rank: int, chunks: IntArray) -> list[MemoryRange]:
        """Return where chunks that are stored to a rank go."""
        if rank == self.rank:
            return self.places.home(chunks)
        return [replace(place, owner=rank) for place in self.other(rank).home(chunks)]

    def other(self, rank: int) -> ChunkLocations:
        """Return the places of another rank's chunks, as they are at its start."""
        if rank not in self._others:
            used = np.zeros(len(self.sizes), np.bool_)
            self._others[rank] = ChunkLocations(
                self.plan, rank, self.sizes, used, in_place=False, arena=self.arena(rank), apart=self.places.apart
            )
        return self._others[rank]

    def land(self, t: int, chunks: IntArray, operands: list[tuple[int, list[MemoryRange]]]) -> None:
        """Combine operands in their order with what is there, into the chunks' home."""
        now = self.places.now(chunks)
        if self.staged:
            self.places.rehome(chunks[self.facts.last[self.rank, chunks] <= t])
        home = target = self.places.home(chunks)
        still_read = self.facts.loaded_around(t, self.rank)[chunks].any() and any(
            place.overlaps(out) for place in self.read_by_others(chunks) for out in home
        )
        later = [place for _, operand in operands[1:] for place in operand]
        if still_read or any(place.overlaps(out) for place in later for out in home):
            target = [self.scratch(sum(place.count for place in home))] if home else []
        found: list[MemoryRange] | None = None
        for op, operand in operands:
            if op == Op.COPY:
                found = operand
                continue
            left, right = (found or now, operand) if op == Op.OWN_FIRST else (operand, found or now)
            self.steps.extend(Reduce(*sides) for sides in align_ranges(left, right, target))
            found = target
        if found is not None and found is not target:
            self.copy(found, target)
        if still_read:
            self.deferred.append((target, chunks))
            return
        if target is not home:
            self.copy(target, home)
        self.places.settle(chunks)

    def read_by_others(self, chunks: IntArray) -> list[MemoryRange]:
        """Return where others find chunks of this rank now."""
        if self.staged:
            return self.places.at(chunks, MemoryKind.ARENA)
        written = self.facts.written[self.rank, chunks]
        return [
            *self.places.at(chunks[written], MemoryKind.RESULT),
            *self.places.at(chunks[~written], MemoryKind.RESULT if self.in_place else MemoryKind.SOURCE),
        ]
