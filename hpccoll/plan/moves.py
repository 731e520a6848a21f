"""Conversion of shared-memory loads and stores to messages (`Move`), for code that handles only messages.

A load is a message that the receiver transfers alone, and a store is a message that the sender transfers alone. In a
plan that `check` has proven, executing loads and stores as messages gives the same values. Fences only order accesses
to shared memory, so the conversion drops fences. In a barrier operation, a fence also tells its ranks of each other's
arrival, which `share_at_fences` computes.

In a `Move` each rank sends to at most one rank, so a step in which k ranks load from one rank becomes k moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.step import NO_PEER, Fence, IntArray, Ints, Load, Move, Op, Picks, Region, Span, Step, Store


class TransferKind(Enum):
    """Which ranks act in a transfer: both ends (a message), the receiver (a load) or the sender (a store)."""

    MESSAGE = "message"
    LOAD = "load"
    STORE = "store"


def transfer_kind(step: Step) -> TransferKind:
    """Return the kind of the step's transfers; MESSAGE for a fence, which transfers no data."""
    if isinstance(step, Load):
        return TransferKind.LOAD
    return TransferKind.STORE if isinstance(step, Store) else TransferKind.MESSAGE


def to_moves(step: Step, n: int) -> list[Move]:
    """Return a step of all n ranks as moves (at most one message to and from each rank); an empty list for a fence."""
    if isinstance(step, Move):
        return [step]
    if isinstance(step, Fence):
        return []
    if isinstance(step, Load):
        pairs = _split_into_permutations(step.source, n)
        return [Move(dest, source, _at_peers(step.remote, dest, n), step.local, step.op) for source, dest in pairs]
    pairs = _split_into_permutations(step.dest, n)
    return [Move(dest, source, step.local, _at_peers(step.remote, source, n), Op.COPY) for dest, source in pairs]


def share_at_fences(heard: NDArray[np.bool_], steps: Sequence[Step]) -> NDArray[np.bool_]:
    """Return, after the fences of a round of a barrier, which ranks each rank knows to have arrived.

    `heard` is a mask before the fences, shape (ranks, ranks): `heard[a, b]` is whether a knows that b has arrived. In
    the returned mask, all ranks of a fence know of every arrival that one of them knew of.
    """
    after = heard.copy()
    for fence in steps:
        if isinstance(fence, Fence):
            for leader in np.unique(fence.leader[fence.leader != NO_PEER]).tolist():
                members = fence.leader == leader
                after[members] |= heard[members].any(axis=0)
    return after


def _split_into_permutations(peers: IntArray, n: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield pairs of arrays (peer, inverse): `peers` divided into arrays without repetitions, and their inverses.

    `peers` has one peer per rank, or -1; inverse[p] is the rank whose peer is p in this pair, or -1.
    """
    actors = np.nonzero(peers != NO_PEER)[0]
    named = peers[actors]
    order = np.argsort(named, kind="stable")
    nth = np.empty(len(named), np.int64)
    nth[order] = np.arange(len(named)) - np.searchsorted(named[order], named[order])  # lower ranks with the same peer
    for k in range(int(nth.max(initial=-1)) + 1):
        chosen = actors[nth == k]
        forward, inverse = np.full((2, n), NO_PEER, np.int64)
        forward[chosen], inverse[peers[chosen]] = peers[chosen], chosen
        yield forward, inverse


def _at_peers(region: Region, peers: IntArray, n: int) -> Region:
    """Return a copy of `region` (a set of chunks per rank) that gives each rank the chunks of its peer in `peers`."""
    at = np.maximum(peers, 0)
    if isinstance(region, Picks):
        return Picks(region.count, lambda: region.ids(n)[at])

    def take(value: Ints) -> Ints:
        """Return the value of each rank's peer if `value` is an array by rank; return any other value unchanged."""
        return value[at] if isinstance(value, np.ndarray) and value.shape == (n,) else value

    return Span(take(region.first), take(region.count), region.mod, region.unit, take(region.base))
