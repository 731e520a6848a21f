"""The vocabulary of plans: who sends (or loads, or stores) which chunks in a step, and in which order a sum is taken.

Shapes: P ranks of a column (one, or all n of them).

Everything here is an array over the ranks of a column, so that one definition serves one rank (the runtime) and
all of them at once (check, replay, simulate, draw). A peer of -1 means that the rank takes no part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import PlanError

IntArray: TypeAlias = NDArray[np.int64]
Ints: TypeAlias = int | IntArray
NO_PEER = NO_CHUNK = -1


class Op(IntEnum):
    """What a received chunk does to the receiver's own; the operand order is part of the plan."""

    COPY = 0
    OWN_FIRST = 1  # own = own (+) incoming
    INCOMING_FIRST = 2  # own = incoming (+) own


def _rows(value: Ints) -> IntArray:
    return np.asarray(value, np.int64).reshape(-1, 1)


@dataclass(frozen=True, slots=True)
class Span:
    """A cyclic interval of `count` units of `unit` chunks: base + unit * ((first + j) mod `mod`), j < count.

    `first`, `count` and `base` may differ by rank. `first` need not be reduced modulo `mod`: leaving it saves a
    division over all ranks in every step.
    """

    first: Ints
    count: Ints
    mod: int
    unit: int = 1
    base: Ints = 0

    @property
    def size(self) -> Ints:
        """Chunks in the region, by rank or alike for all."""
        return self.count * self.unit

    def ids(self, ranks: int) -> IntArray:
        """Return the chunks of each rank in order, shape (P, most); shorter rows end in -1."""
        most = (self.count if isinstance(self.count, int) else int(np.max(self.count, initial=0))) * self.unit
        ids = (_rows(self.first) + np.arange(most // self.unit)) % max(self.mod, 1)
        if self.unit > 1:
            ids = (ids[..., None] * self.unit + np.arange(self.unit)).reshape(len(ids), most)
        if not isinstance(self.base, int) or self.base:
            ids = ids + _rows(self.base)
        if not isinstance(self.count, int):
            ids = np.where(np.arange(most) < _rows(self.size), ids, NO_PEER)
        return ids if len(ids) == ranks else np.broadcast_to(ids, (ranks, most))

    def scaled(self, unit: int) -> Span:
        """Return the same region after each chunk was cut into `unit` chunks."""
        return Span(self.first, self.count, self.mod, self.unit * unit, self.base * unit)

    def shifted(self, base: Ints) -> Span:
        """Return the same region `base` chunks further up."""
        return Span(self.first, self.count, self.mod, self.unit, self.base + base)


@dataclass(frozen=True, slots=True)
class Picks:
    """Any other set of `count` chunks; `table()` gives shape (P, count) and is called only when it is read."""

    count: int
    table: Callable[[], IntArray]

    @property
    def size(self) -> int:
        """Chunks in the region, alike for all ranks."""
        return self.count

    def ids(self, ranks: int) -> IntArray:
        """Return the chunks of each rank in order, shape (P, count)."""
        return np.broadcast_to(self.table(), (ranks, self.count))

    def scaled(self, unit: int) -> Picks:
        """Return the same region after each chunk was cut into `unit` chunks."""

        def finer() -> IntArray:
            cut = self.table()[..., None] * unit + np.arange(unit)
            return cut.reshape(*cut.shape[:-2], self.count * unit)

        return Picks(self.count * unit, finer)

    def shifted(self, base: Ints) -> Picks:
        """Return the same region `base` chunks further up."""
        return Picks(self.count, lambda: self.table() + np.reshape(base, (-1, 1)))


Region: TypeAlias = Span | Picks
RegionMap: TypeAlias = Callable[[Region], Region]
PeerMap: TypeAlias = Callable[[IntArray], IntArray]  # of peers, -1 among them
SIGNAL = Span(0, 0, 1)  # no chunk at all: the message itself is the news (barriers)


@dataclass(frozen=True, slots=True)
class Move:
    """Every rank sends `send` to `dest` and receives `recv` from `source`: a partial permutation of the ranks.

    A message is a stream of elements: the sender's chunks in order become the receiver's chunks in order.
    Where `dest == source ==` the rank itself, it is a local copy. `op` may differ by rank.
    """

    dest: IntArray
    source: IntArray
    send: Region
    recv: Region
    op: Ints = Op.COPY

    def reversed(self, op: Ints) -> Move:
        """Return the move that runs backwards: who received sends, who sent receives (by `op`)."""
        return Move(self.source, self.dest, self.recv, self.send, op)

    def map_peers(self, name: PeerMap) -> Move:
        """Return the same move among other ranks."""
        return Move(name(self.dest), name(self.source), self.send, self.recv, self.op)

    def map_regions(self, change: RegionMap) -> Move:
        """Return the same move of other chunks."""
        return Move(self.dest, self.source, change(self.send), change(self.recv), self.op)


@dataclass(frozen=True, slots=True)
class Load:
    """Every rank reads chunks `remote` of rank `source` into its own chunks `local`, where memory is shared.

    Only the reader acts. What it reads is what stood there at the last fence; what lands in `local` is for others to
    read after the next one. `op` may differ by rank.
    """

    source: IntArray
    remote: Region
    local: Region
    op: Ints = Op.COPY

    def reversed(self, op: Ints) -> Store:
        """Return the store that gives back what this loads or reduces; raise PlanError where `op` is not COPY."""
        if np.any(np.asarray(op) != Op.COPY):
            raise PlanError("a load backwards is a store, which cannot reduce; reverse it with op=Op.COPY")
        return Store(self.source, self.local, self.remote)

    def map_peers(self, name: PeerMap) -> Load:
        """Return the same load among other ranks."""
        return Load(name(self.source), self.remote, self.local, self.op)

    def map_regions(self, change: RegionMap) -> Load:
        """Return the same load of other chunks."""
        return Load(self.source, change(self.remote), change(self.local), self.op)


@dataclass(frozen=True, slots=True)
class Store:
    """Every rank writes its chunks `local` into chunks `remote` of rank `dest`, where memory is shared.

    Only the writer acts. What it wrote is there for others, the owner of the place among them, after the next fence.
    """

    dest: IntArray
    local: Region
    remote: Region

    def reversed(self, op: Ints) -> Load:
        """Return the load that fetches back what this stores (by `op`)."""
        return Load(self.dest, self.remote, self.local, op)

    def map_peers(self, name: PeerMap) -> Store:
        """Return the same store among other ranks."""
        return Store(name(self.dest), self.local, self.remote)

    def map_regions(self, change: RegionMap) -> Store:
        """Return the same store of other chunks."""
        return Store(self.dest, change(self.local), change(self.remote))


@dataclass(frozen=True, slots=True)
class Fence:
    """Ranks with the same `leader` (one of them, as a rule the lowest) wait for each other; -1 takes no part.

    What they stored before is there for the others after. Between two fences no place may be touched by two ranks of
    which one writes, except as `Load` says.
    """

    leader: IntArray

    def reversed(self, op: Ints) -> Fence:  # noqa: ARG002 - what the other steps take
        """Return the fence: backwards, the same ranks wait for each other."""
        return self

    def map_peers(self, name: PeerMap) -> Fence:
        """Return the same fence among other ranks."""
        return Fence(name(self.leader))

    def map_regions(self, change: RegionMap) -> Fence:  # noqa: ARG002 - what the other steps take
        """Return the fence: it names no chunks."""
        return self


Step: TypeAlias = Move | Load | Store | Fence
