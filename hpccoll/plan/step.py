"""The steps of plans: transfers of chunks between ranks, fences (barriers), and the operand order of reductions.

In array shapes, P is the number of ranks that a step describes (one rank, or all n ranks).

Every value of a step is an array with one entry per rank, so that one definition of a step serves one rank (in the
runtime) and all ranks at once (in check, replay, simulate and draw). A rank whose peer is -1 takes no part in the step.
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
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = int | IntArray  # one value for all ranks, or one per rank
NO_PEER = NO_CHUNK = -1


class Op(IntEnum):
    """The effect of a received chunk on the receiver's chunk: copy it, or reduce with a stated operand order."""

    COPY = 0
    OWN_FIRST = 1  # own = own (+) incoming
    INCOMING_FIRST = 2  # own = incoming (+) own


def _as_column(value: Ints) -> IntArray:
    """Return `value` as a column: shape (ranks, 1), or (1, 1) for one value for all ranks."""
    return np.asarray(value, np.int64).reshape(-1, 1)


@dataclass(frozen=True, slots=True)
class Span:
    """A cyclic interval of `count` units of `unit` chunks; unit j begins at base + unit * ((first + j) mod `mod`).

    `first`, `count` and `base` may differ by rank. `first` may be any integer, also a negative one.
    """

    first: Ints
    count: Ints
    mod: int
    unit: int = 1
    base: Ints = 0

    @property
    def size(self) -> Ints:
        """Number of chunks in the interval: one number for all ranks, or one per rank."""
        return self.count * self.unit

    def ids(self, ranks: int) -> IntArray:
        """Return the chunk numbers of each rank in order, one row per rank; shorter rows are padded with -1."""
        longest = (self.count if isinstance(self.count, int) else int(np.max(self.count, initial=0))) * self.unit
        ids = (_as_column(self.first) + np.arange(longest // self.unit)) % max(self.mod, 1)
        if self.unit > 1:
            ids = (ids[..., None] * self.unit + np.arange(self.unit)).reshape(len(ids), longest)
        if not isinstance(self.base, int) or self.base:
            ids = ids + _as_column(self.base)
        if not isinstance(self.count, int):
            ids = np.where(np.arange(longest) < _as_column(self.size), ids, NO_CHUNK)
        return ids if len(ids) == ranks else np.broadcast_to(ids, (ranks, longest))

    def scaled(self, unit: int) -> Span:
        """Return the interval of the same data after each chunk has been divided into `unit` smaller chunks."""
        return Span(self.first, self.count, self.mod, self.unit * unit, self.base * unit)

    def shifted(self, base: Ints) -> Span:
        """Return the interval with `base` (one number, or one per rank) added to every chunk number."""
        starts_at_zero = isinstance(self.base, int) and self.base == 0  # then no array is added
        return Span(self.first, self.count, self.mod, self.unit, base if starts_at_zero else self.base + base)


@dataclass(frozen=True, slots=True)
class Picks:
    """A list of `count` arbitrary chunks per rank, in order.

    `table()` computes the chunk numbers, one row of `count` numbers per rank.
    """

    count: int
    table: Callable[[], IntArray]

    @property
    def size(self) -> int:
        """Number of chunks in the list, which is the same for all ranks."""
        return self.count

    def ids(self, ranks: int) -> IntArray:
        """Return the chunk numbers of each rank in order, shape (ranks, count)."""
        return np.broadcast_to(self.table(), (ranks, self.count))

    def scaled(self, unit: int) -> Picks:
        """Return the list for the same data after each chunk has been divided into `unit` smaller chunks."""

        def scaled_table() -> IntArray:
            """Return the chunk numbers after the division of each chunk, one row of count * unit numbers per rank."""
            ids = self.table()[..., None] * unit + np.arange(unit)
            return ids.reshape(*ids.shape[:-2], self.count * unit)

        return Picks(self.count * unit, scaled_table)

    def shifted(self, base: Ints) -> Picks:
        """Return the list with `base` (one number, or one per rank) added to every chunk number."""
        return Picks(self.count, lambda: self.table() + np.reshape(base, (-1, 1)))


Region: TypeAlias = Span | Picks
RegionMap: TypeAlias = Callable[[Region], Region]
PeerMap: TypeAlias = Callable[[IntArray], IntArray]  # receives and returns arrays of peers, which may hold -1
SIGNAL = Span(0, 0, 1)  # no chunks: a message without data, as barriers send


@dataclass(frozen=True, slots=True)
class Move:
    """Every rank sends chunks `send` to `dest` and receives into chunks `recv` from `source`.

    `dest` and `source` have one entry per rank, -1 for none; a rank that is its own `dest` and `source` copies locally.
    The elements of the sent chunks, in order, are copied or reduced into those of the received chunks. `op` (copy, or
    the operand order of a reduction) may differ by rank.
    """

    dest: IntArray
    source: IntArray
    send: Region
    recv: Region
    op: Ints = Op.COPY

    def reversed(self, op: Ints) -> Move:
        """Return the opposite move, in which the receivers send, and the senders receive and apply `op`."""
        return Move(self.source, self.dest, self.recv, self.send, op)

    def map_peers(self, change: PeerMap) -> Move:
        """Return the move with `change`, a function of a peer array, applied to its destinations and sources."""
        return Move(change(self.dest), change(self.source), self.send, self.recv, self.op)

    def map_regions(self, change: RegionMap) -> Move:
        """Return the move with `change`, a function of a set of chunks, applied to its sent and received chunks."""
        return Move(self.dest, self.source, change(self.send), change(self.recv), self.op)


@dataclass(frozen=True, slots=True)
class Load:
    """Every rank reads chunks `remote` of rank `source` (-1: none) through shared memory into its own chunks `local`.

    Rank `source` takes no action in a load. The load reads the contents that `remote` had at the last fence, and copies
    or reduces them by `op`, which may differ by rank. Other ranks may read the chunks `local` after the next fence.
    """

    source: IntArray
    remote: Region
    local: Region
    op: Ints = Op.COPY

    def reversed(self, op: Ints) -> Store:
        """Return the store that writes `local` back to `remote`; raise PlanError unless `op` is COPY."""
        if np.any(np.asarray(op) != Op.COPY):
            raise PlanError("a reversed load is a store, and stores cannot reduce; reverse it with op=Op.COPY")
        return Store(self.source, self.local, self.remote)

    def map_peers(self, change: PeerMap) -> Load:
        """Return the load with `change`, a function of a peer array, applied to its sources."""
        return Load(change(self.source), self.remote, self.local, self.op)

    def map_regions(self, change: RegionMap) -> Load:
        """Return the load with `change`, a function of a set of chunks, applied to its remote and local chunks."""
        return Load(self.source, change(self.remote), change(self.local), self.op)


@dataclass(frozen=True, slots=True)
class Store:
    """Every rank writes its own chunks `local` through shared memory into chunks `remote` of rank `dest` (-1: none).

    Rank `dest` takes no action in a store. All ranks may read the chunks `remote` after the next fence.
    """

    dest: IntArray
    local: Region
    remote: Region

    def reversed(self, op: Ints) -> Load:
        """Return the load that reads `remote` into `local` by `op`."""
        return Load(self.dest, self.remote, self.local, op)

    def map_peers(self, change: PeerMap) -> Store:
        """Return the store with `change`, a function of a peer array, applied to its destinations."""
        return Store(change(self.dest), self.local, self.remote)

    def map_regions(self, change: RegionMap) -> Store:
        """Return the store with `change`, a function of a set of chunks, applied to its local and remote chunks."""
        return Store(self.dest, change(self.local), change(self.remote))


@dataclass(frozen=True, slots=True)
class Fence:
    """A barrier among the ranks with the same `leader`, which is one of these ranks (usually the lowest).

    Ranks with leader -1 take no part in the fence. After the fence, ranks see each other's earlier stores. Between two
    fences, no two ranks may access the same chunk of a rank if one of them writes it. No fence is needed between a load
    of a chunk by another rank and a load in the same or a later round by which the owner of the chunk overwrites it.
    """

    leader: IntArray

    def reversed(self, op: Ints) -> Fence:  # noqa: ARG002 - the signature of the other steps
        """Return the fence unchanged, because a barrier has no direction; `op` is ignored."""
        return self

    def map_peers(self, change: PeerMap) -> Fence:
        """Return the fence with `change`, a function of a peer array, applied to its leaders."""
        return Fence(change(self.leader))

    def map_regions(self, change: RegionMap) -> Fence:  # noqa: ARG002 - the signature of the other steps
        """Return the fence unchanged, because a fence has no chunks."""
        return self


Step: TypeAlias = Move | Load | Store | Fence
