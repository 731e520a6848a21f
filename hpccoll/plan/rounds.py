"""Sequences of rounds with random access, and functions that combine them.

`Rounds.at(t)` computes round t without the rounds before it, so no plan is ever stored, and plans can be reversed,
concatenated, delayed and pipelined at no cost, even for 24,576 ranks. All sends of a round read the state at the start
of the round, and all receives take effect at its end. A round contains only messages (moves), or only loads and stores,
or only fences. The number of rounds is the same for every rank of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import PlanError
from hpccoll.plan.step import NO_PEER, IntArray, Ints, Move, Op, PeerMap, Region, RegionMap, Step

PeerPlaces: TypeAlias = IntArray | slice  # indices of some ranks, or all ranks
# From _MANY_RANKS ranks on, only the existing peers are computed if at most one rank in _FEW has a peer.
_MANY_RANKS, _FEW = 2**12, 4


@dataclass(frozen=True, slots=True)
class Rounds:
    """A sequence of `count` rounds over `chunks` chunks per rank; `at(t)` computes the steps of round t."""

    count: int
    chunks: int
    at: Callable[[int], Sequence[Step]]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Sequence[Step]]:
        return (self.at(t) for t in range(self.count))

    def __add__(self, after: Rounds) -> Rounds:
        """Return the rounds of this sequence followed by the rounds of `after`."""
        if self.chunks != after.chunks:
            raise PlanError(f"plans over {self.chunks} and {after.chunks} chunks cannot follow each other; scale one")
        first, second, count = self.at, after.at, self.count
        return Rounds(count + after.count, self.chunks, lambda t: first(t) if t < count else second(t - count))

    def map_steps(self, change: Callable[[Step], Step]) -> Rounds:
        """Return the rounds with `change` applied to every step; a step is changed when its round is computed."""
        return Rounds(self.count, self.chunks, lambda t: [change(step) for step in self.at(t)])

    def reversed(self, op: Ints = Op.COPY) -> Rounds:
        """Return the rounds in reverse order with senders and receivers exchanged; receives use `op`.

        The reverse of a gather is a scatter. Reversing turns loads into stores and stores into loads, but keeps fences.
        """
        last = self.count - 1
        return Rounds(self.count, self.chunks, lambda t: [step.reversed(op) for step in self.at(last - t)])

    def map_regions(self, change: RegionMap, chunks: int) -> Rounds:
        """Return the rounds with `change` applied to every region (set of chunks of a step).

        The returned rounds have `chunks` chunks per rank.
        """
        changed = self.map_steps(lambda step: step.map_regions(change))
        return Rounds(changed.count, chunks, changed.at)

    def scaled(self, unit: int) -> Rounds:
        """Return the rounds that move the same data if each chunk is divided into `unit` chunks."""
        return self.map_regions(lambda region: region.scaled(unit), self.chunks * unit)

    def shifted(self, base: Ints, chunks: int) -> Rounds:
        """Return the rounds with `base` (one number, or one per rank) added to every chunk number.

        The returned rounds have `chunks` chunks per rank.
        """
        return self.map_regions(lambda region: region.shifted(base), chunks)

    def delayed(self, rounds: int) -> Rounds:
        """Return `rounds` empty rounds, followed by the rounds of this object."""
        return Rounds(self.count + rounds, self.chunks, lambda t: self.at(t - rounds) if t >= rounds else [])


def empty_rounds(chunks: int) -> Rounds:
    """Return a sequence without rounds for a plan with `chunks` chunks per rank."""
    return Rounds(0, chunks, lambda t: [])


def overlay(a: Rounds, b: Rounds) -> Rounds:
    """Return rounds that perform `a` and `b` at once; `a` and `b` must not write the same chunk in the same round."""
    if a.chunks != b.chunks:
        raise PlanError(f"plans over {a.chunks} and {b.chunks} chunks cannot run side by side; shift them apart first")
    return Rounds(max(a.count, b.count), a.chunks, lambda t: [step for r in (a, b) if t < r.count for step in r.at(t)])


def memoize_peer_map(change: PeerMap, keep: int = 8) -> PeerMap:
    """Return the function `change` with a cache of `keep` results, keyed by the identity of the peer array it takes."""
    memo: dict[int, tuple[IntArray, IntArray]] = {}

    def map_memoized(peers: IntArray) -> IntArray:
        """Return `change(peers)`, from the cache if the same array was passed before."""
        entry = memo.get(id(peers))
        if entry is None or entry[0] is not peers:
            if len(memo) >= keep:
                memo.clear()
            entry = memo[id(peers)] = (peers, change(peers))
        return entry[1]

    return map_memoized


def relabel_ranks(rounds: Rounds, rank_of: PeerMap) -> Rounds:
    """Return the rounds with every peer p replaced by rank `rank_of(p)`; `rank_of` maps arrays of peers."""
    change = memoize_peer_map(lambda p: np.where(p < 0, NO_PEER, rank_of(np.maximum(p, 0))))
    return rounds.map_steps(lambda step: step.map_peers(change))


def relabel_places(rounds: Rounds, rank_of: Callable[[IntArray, PeerPlaces], IntArray]) -> Rounds:
    """Return the rounds with each array `peers` replaced by `rank_of(peers, places)`.

    `places` has the index of the rank that each entry of `peers` belongs to, or is `slice(None)` for all ranks. If few
    of many ranks have a peer, `rank_of` is called only for the ranks with a peer.
    """

    def change(peers: IntArray) -> IntArray:
        """Return `peers`, an array of one peer per rank, with each peer replaced by `rank_of`; -1 (no peer) stays."""
        has_peer = peers >= 0
        if len(peers) >= _MANY_RANKS and _FEW * np.count_nonzero(has_peer) <= len(peers):
            places, changed = np.flatnonzero(has_peer), np.full(len(peers), NO_PEER, np.int64)
            changed[places] = rank_of(peers[places], places)
            return changed
        return np.where(has_peer, rank_of(np.maximum(peers, 0), slice(None)), NO_PEER)

    memoized = memoize_peer_map(change)
    return rounds.map_steps(lambda step: step.map_peers(memoized))


def keep_ranks(rounds: Rounds, mask: NDArray[np.bool_]) -> Rounds:
    """Return `rounds` without the transfers of the ranks for which `mask` is false; `mask` has an entry per rank."""
    if mask.all():
        return rounds
    change = memoize_peer_map(lambda p: np.where(mask, p, NO_PEER))
    return rounds.map_steps(lambda step: step.map_peers(change))


def fold_ranks(make: Callable[[IntArray, int], Rounds], rank: IntArray, n: int, core: int, whole: Region) -> Rounds:
    """Return an all-reduce of n ranks that runs another all-reduce among the ranks below `core`.

    Ranks from `core` on first send their data to ranks below `core` (`reduce_into_core`), and get the result at the end
    by the reversed rounds. For n ranks, the sends before and after the inner all-reduce take 2 ceil((n - core) / core)
    rounds.

    Args:
        make: returns the rounds of an all-reduce of `core` ranks, called as `make(rank, core)`.
        core: the number of ranks of the inner all-reduce.
        whole: the region of all chunks of a rank.
    """
    inner = make(np.minimum(rank, core - 1), core)
    before = reduce_into_core(rank, n, core, whole, inner.chunks)
    return before + keep_ranks(inner, rank < core) + before.reversed()


def reduce_into_core(rank: IntArray, n: int, core: int, whole: Region, chunks: int) -> Rounds:
    """Return rounds in which each rank r >= core sends `whole` (its data) to rank r mod core, which reduces it.

    `core` is the number of ranks that keep data.
    """
    layer, core_rank = rank // core, rank % core

    def at(t: int) -> list[Move]:
        """Return round t, in which the ranks from core * (t + 1) on, at most `core` of them, send."""
        dest = np.where(layer == t + 1, core_rank, NO_PEER)
        extra = rank + core * (t + 1)
        source = np.where((layer == 0) & (extra < n), extra, NO_PEER)
        return [Move(dest, source, whole, whole, Op.OWN_FIRST)]

    return Rounds(-(-n // core) - 1, chunks, at)
