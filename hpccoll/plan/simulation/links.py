"""What holds for a pair of peers' arrays whatever the messages hold: links, and who shares a NIC with whom.

Shapes: P ranks that stand for all n (all of them, or one period: rank r is then represented by r mod P).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.simulation.chunk_bytes import Floats
from hpccoll.plan.simulation.machine import Link, Machine
from hpccoll.plan.step import NO_PEER, IntArray, Move

Mask: TypeAlias = NDArray[np.bool_]
NEVER = -np.inf
_KEPT = 32  # pairs of arrays


@dataclass(frozen=True, slots=True)
class PeerLinks:
    """Who sends to whom and by which link, each shape (P,).

    `dest` and `source` are the plan's own arrays; `dest_index` and `source_index` are their representatives (the rank
    itself where there is no peer), which index arrays of shape (P,).
    `far` is None where no message leaves its node, `local` where no rank copies to itself. `bends` are (bytes, by how
    much beta changes from there on). `flight` is how long a message is under way while it keeps no port busy, NEVER
    where none comes.
    """

    dest: IntArray
    source: IntArray
    dest_index: IntArray
    source_index: IntArray
    sends: Mask
    receives: Mask
    all_send: bool
    all_receive: bool
    local: Mask | None
    far: Mask | None
    overhead: Floats
    beta: Floats
    bends: tuple[tuple[float, Floats], ...]
    flight: Floats

    def transfer_s(self, nbytes: Floats, share: IntArray | None) -> Floats:
        """Return how long the bytes that each rank sends keep its port busy, shape (P,).

        Args:
            nbytes: shape (P,).
            share: among how many messages each NIC is divided.
        """
        seconds = nbytes * self.beta
        for start, change in self.bends:
            seconds += np.maximum(nbytes - start, 0) * change
        if share is not None and self.far is not None:
            seconds = np.where(self.far, seconds * share, seconds)
        return seconds


class LinkTable:
    """Finds out what holds for peers on a machine, and keeps it by the identity of their arrays."""

    def __init__(self, machine: Machine, n: int, represented: int) -> None:
        self.machine, self.n, self.size = machine, n, represented
        self.rank = np.arange(represented, dtype=np.int64)
        self.node = np.arange(n, dtype=np.int64) // machine.ranks_per_node
        self.here = self.node[self.rank]
        place = self.rank % machine.ranks_per_node
        self.nic = self.here * machine.nics_per_node + place * machine.nics_per_node // machine.ranks_per_node
        self._known: dict[tuple[int, int], PeerLinks] = {}
        self._apart: dict[tuple[int, ...], tuple[Sequence[PeerLinks], bool]] = {}

    def of(self, move: Move) -> PeerLinks:
        """Return what holds for the peers of a move."""
        key = (id(move.dest), id(move.source))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            found = self._known[key] = self._fix(move.dest, move.source)
        return found

    def _fix(self, dest: IntArray, source: IntArray) -> PeerLinks:
        local = dest == self.rank
        sends, receives = (dest != NO_PEER) & ~local, (source != NO_PEER) & (source != self.rank)
        dest_or_self, source_or_self = np.where(sends, dest, self.rank), np.where(receives, source, self.rank)
        far, from_far = self.node[dest_or_self] != self.here, self.node[source_or_self] != self.here
        near, wide = self.machine.within, self.machine.between
        return PeerLinks(
            dest=dest,
            source=source,
            dest_index=self._index(dest_or_self),
            source_index=self._index(source_or_self),
            sends=sends,
            receives=receives,
            all_send=bool(sends.all()),
            all_receive=bool(receives.all()),
            local=local if local.any() else None,
            far=far if far.any() else None,
            overhead=_by_link(sends, far, near.overhead_s, wide.overhead_s, 0.0),
            beta=_by_link(sends, far, near.beta_s_per_byte, wide.beta_s_per_byte, 0.0),
            bends=(
                *((start, _by_link(sends, far, change, 0.0, 0.0)) for start, change in near.bends),
                *((start, _by_link(sends, far, 0.0, change, 0.0)) for start, change in wide.bends),
            ),
            flight=_by_link(receives, from_far, _flight(near), _flight(wide), NEVER),
        )

    def _index(self, ranks: IntArray) -> IntArray:
        return ranks if self.n == self.size else ranks % self.size

    def shares(self, peers: Sequence[PeerLinks], going: Sequence[Mask]) -> Sequence[IntArray | None]:
        """Return among how many messages each one's NIC is divided, its own included, at the busier end.

        Ranks count, not messages: what a rank sends in a round goes one after the other anyway. None: each has its own.

        Args:
            peers: of the moves of a round.
            going: whose messages are sent, for each move, shape (P,).
        """
        alone: list[IntArray | None] = [None] * len(peers)
        if self._never_meet(peers):
            return alone
        counts = self._counts(peers, going)
        if counts is None:
            return alone
        leaving, entering = counts
        return [np.maximum(np.maximum(leaving[self.nic], entering[self.nic[each.dest_index]]), 1) for each in peers]

    def _never_meet(self, peers: Sequence[PeerLinks]) -> bool:
        """Whether no NIC is shared even when every message of the round is sent."""
        if self.machine.ranks_per_node == self.machine.nics_per_node or all(each.far is None for each in peers):
            return True
        key = tuple(id(each) for each in peers)
        if key not in self._apart:
            if len(self._apart) >= _KEPT:
                self._apart.clear()
            self._apart[key] = (peers, self._counts(peers, [each.sends for each in peers]) is None)
        return self._apart[key][1]

    def _counts(self, peers: Sequence[PeerLinks], going: Sequence[Mask]) -> tuple[IntArray, IntArray] | None:
        """Return how many ranks send and receive by each NIC; None where none serves two."""
        out, into = np.zeros(self.size, np.bool_), np.zeros(self.size, np.bool_)
        for each, goes in zip(peers, going, strict=True):
            if each.far is not None:
                crosses = each.far & goes
                out |= crosses
                into[each.dest_index[crosses]] = True
        nics = int(self.nic[-1]) + 1
        leaving, entering = (np.bincount(self.nic[each], minlength=nics) for each in (out, into))
        return (leaving, entering) if max(leaving.max(), entering.max()) > 1 else None


def _by_link(there: Mask, far: Mask, near_s: float, wide_s: float, otherwise: float) -> Floats:
    return np.where(there, np.where(far, wide_s, near_s), otherwise)


def _flight(link: Link) -> float:
    return link.alpha_s - link.overhead_s
