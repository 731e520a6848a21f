"""Rounds of steps with random access, and the ways to put plans together.

`at(t)` gives round t without the rounds before it: reversal, composition, lag and pipelining cost nothing, and a
plan for 24,576 ranks needs no memory. A round is a superstep: all its sends read what stood at its start, all its
receives land at its end. It holds either moves, or loads and stores, or fences. How many rounds there are depends on
ranks and chunks, never on the rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import PlanError
from hpccoll.plan.step import NO_PEER, IntArray, Ints, Move, Op, Region, RegionMap, Step


@dataclass(frozen=True, slots=True)
class Rounds:
    """`count` rounds over `chunks` chunks a rank; round t is `at(t)`."""

    count: int
    chunks: int
    at: Callable[[int], Sequence[Step]]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Sequence[Step]]:
        return (self.at(t) for t in range(self.count))

    def __add__(self, after: Rounds) -> Rounds:
        """First these rounds, then those of `after`."""
        if self.chunks != after.chunks:
            raise PlanError(f"plans over {self.chunks} and {after.chunks} chunks cannot follow each other; scale one")
        here, there, cut = self.at, after.at, self.count
        return Rounds(cut + after.count, self.chunks, lambda t: here(t) if t < cut else there(t - cut))

    def map_steps(self, change: Callable[[Step], Step]) -> Rounds:
        """The same rounds with every step changed."""
        return Rounds(self.count, self.chunks, lambda t: [change(step) for step in self.at(t)])

    def reversed(self, op: Ints = Op.COPY) -> Rounds:
        """The rounds backwards, senders and receivers exchanged: a gather becomes a scatter, a reduce a broadcast.

        A load becomes a store and a store a load; fences stay where they are.
        """
        last = self.count - 1
        return Rounds(self.count, self.chunks, lambda t: [step.reversed(op) for step in self.at(last - t)])

    def map_regions(self, change: RegionMap, chunks: int) -> Rounds:
        """The same rounds over other chunks."""
        changed = self.map_steps(lambda step: step.map_regions(change))
        return Rounds(changed.count, chunks, changed.at)

    def scaled(self, unit: int) -> Rounds:
        """The same rounds after each chunk was cut into `unit` chunks."""
        return self.map_regions(lambda region: region.scaled(unit), self.chunks * unit)

    def shifted(self, base: Ints, chunks: int) -> Rounds:
        """The same rounds `base` chunks further up, among `chunks` chunks."""
        return self.map_regions(lambda region: region.shifted(base), chunks)

    def delayed(self, rounds: int) -> Rounds:
        """The same rounds after `rounds` idle ones."""
        return Rounds(self.count + rounds, self.chunks, lambda t: self.at(t - rounds) if t >= rounds else [])


def empty_rounds(chunks: int) -> Rounds:
    """No round at all."""
    return Rounds(0, chunks, lambda t: [])


def overlay(a: Rounds, b: Rounds) -> Rounds:
    """Both at once; they must not write the same chunks in the same round."""
    if a.chunks != b.chunks:
        raise PlanError(f"plans over {a.chunks} and {b.chunks} chunks cannot run side by side; shift them apart first")
    return Rounds(
        max(a.count, b.count),
        a.chunks,
        lambda t: [*(a.at(t) if t < a.count else []), *(b.at(t) if t < b.count else [])],
    )


def memoize_peer_map(change: Callable[[IntArray], IntArray], keep: int = 8) -> Callable[[IntArray], IntArray]:
    """Memoise a mapping of peers by the identity of their array: rounds reuse the same few arrays."""
    memo: dict[int, tuple[IntArray, IntArray]] = {}

    def mapped(peers: IntArray) -> IntArray:
        entry = memo.get(id(peers))
        if entry is None or entry[0] is not peers:
            if len(memo) >= keep:
                memo.clear()
            entry = memo[id(peers)] = (peers, change(peers))
        return entry[1]

    return mapped


def relabel_ranks(rounds: Rounds, name: Callable[[IntArray], IntArray]) -> Rounds:
    """The same rounds among other ranks: peer p of the plan is rank `name(p)`."""
    peers = memoize_peer_map(lambda p: np.where(p < 0, NO_PEER, name(np.maximum(p, 0))))
    return rounds.map_steps(lambda step: step.map_peers(peers))


def keep_ranks(rounds: Rounds, mask: NDArray[np.bool_]) -> Rounds:
    """The same rounds; ranks outside `mask` take no part."""
    peers = memoize_peer_map(lambda p: np.where(mask, p, NO_PEER))
    return rounds.map_steps(lambda step: step.map_peers(peers))


def fold_ranks(make: Callable[[IntArray, int], Rounds], rank: IntArray, n: int, core: int, whole: Region) -> Rounds:
    """Run `make(rank, core)` among ranks below `core`; the others hand their data in first and get the result last.

    Rank r >= core folds into r mod core, which reduces it after its own. Costs two more rounds for each layer of
    `core` ranks, and the lower ranks send up to `whole` more than the plan itself.
    """
    inner = make(np.minimum(rank, core - 1), core)
    before = reduce_into_core(rank, n, core, whole, inner.chunks)
    return before + keep_ranks(inner, rank < core) + before.reversed()


def reduce_into_core(rank: IntArray, n: int, core: int, whole: Region, chunks: int) -> Rounds:
    """Rank r >= core hands its data to rank r mod core, which reduces it after its own: `core` ranks a round."""
    layer, base = rank // core, rank % core

    def at(t: int) -> list[Move]:
        up = np.where(layer == t + 1, base, NO_PEER)
        extra = rank + core * (t + 1)
        down = np.where((layer == 0) & (extra < n), extra, NO_PEER)
        return [Move(up, down, whole, whole, Op.OWN_FIRST)]

    return Rounds(-(-n // core) - 1, chunks, at)
