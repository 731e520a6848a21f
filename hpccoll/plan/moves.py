"""Loads, stores and fences read as messages, for the readers that follow what moves and not who carries it out.

Shapes: n ranks; everything here is over all of them.

A load is a message that its receiver carries out, a store one that its sender does. In a plan that `check` proves,
each round read as a superstep of messages gives the same values, so fences say nothing more there: they only keep
ranks apart that would touch the same place at once. In a barrier a fence is the news itself; what tells of barriers
asks for the fences, too (`share_at_fences`).

A message has one receiver and one sender in a move; where several ranks load from
one, or store to one, in a step, the step becomes as many moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.rounds import Rounds
from hpccoll.plan.step import NO_PEER, Fence, IntArray, Ints, Load, Move, Op, Picks, Region, Span, Step, Store


class TransferKind(Enum):
    """Who carries out a transfer: both ends (a message), its receiver (a load) or its sender (a store)."""

    MESSAGE = "message"
    LOAD = "load"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class MoveRounds(Rounds):
    """Rounds in which everything that moves is a message."""

    at: Callable[[int], list[Move]]

    def __iter__(self) -> Iterator[list[Move]]:
        return (self.at(t) for t in range(self.count))


def to_move_rounds(rounds: Rounds, n: int) -> MoveRounds:
    """Return the rounds of all n ranks with loads and stores as moves, and without fences."""
    raw = rounds.at
    return MoveRounds(rounds.count, rounds.chunks, lambda t: [move for step in raw(t) for move in to_moves(step, n)])


def transfer_kind(step: Step) -> TransferKind:
    """Return who carries out the transfers of a step."""
    return (
        TransferKind.LOAD
        if isinstance(step, Load)
        else TransferKind.STORE
        if isinstance(step, Store)
        else TransferKind.MESSAGE
    )


def to_moves(step: Step, n: int) -> list[Move]:
    """Return the transfers of a step over all n ranks as moves: a partial permutation each, none for a fence."""
    if isinstance(step, Move):
        return [step]
    if isinstance(step, Fence):
        return []
    if isinstance(step, Load):
        pairs = _permutations(step.source, n)
        return [Move(to, frm, _seen(step.remote, to, n), step.local, step.op) for frm, to in pairs]
    return [Move(to, frm, step.local, _seen(step.remote, frm, n), Op.COPY) for to, frm in _permutations(step.dest, n)]


def share_at_fences(heard: NDArray[np.bool_], fences: Sequence[Step]) -> NDArray[np.bool_]:
    """Return who has heard of whom after the fences among the steps of a round, shape (n, n): a group hears of all."""
    after = heard.copy()
    for fence in fences:
        if isinstance(fence, Fence):
            for leader in np.unique(fence.leader[fence.leader != NO_PEER]).tolist():
                members = fence.leader == leader
                after[members] |= heard[members].any(axis=0)
    return after


def _permutations(peers: IntArray, n: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Cut a mapping of ranks to peers into partial permutations; yield each and its inverse."""
    actors = np.nonzero(peers != NO_PEER)[0]
    named = peers[actors]
    order = np.argsort(named, kind="stable")
    nth = np.empty(len(named), np.int64)
    nth[order] = np.arange(len(named)) - np.searchsorted(named[order], named[order])  # how often it was named before
    for k in range(int(nth.max(initial=-1)) + 1):
        mine = actors[nth == k]
        there, back = np.full((2, n), NO_PEER, np.int64)
        there[mine], back[peers[mine]] = peers[mine], mine
        yield there, back


def _seen(region: Region, by: IntArray, n: int) -> Region:
    """Return a region that the ranks `by` state, as their peers see it."""
    at = np.maximum(by, 0)
    if isinstance(region, Picks):
        return Picks(region.count, lambda: region.ids(n)[at])

    def each(value: Ints) -> Ints:
        return value[at] if isinstance(value, np.ndarray) and value.shape == (n,) else value

    return Span(each(region.first), each(region.count), region.mod, region.unit, each(region.base))
