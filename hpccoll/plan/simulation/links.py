"""The links and NICs that the messages of a step use, computed once for all message sizes.

In array shapes, P is the number of simulated ranks (all n ranks, or fewer); rank r mod P represents rank r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpccoll.plan.operation import Mask
from hpccoll.plan.simulation.machine import Machine
from hpccoll.plan.step import NO_PEER, Floats, IntArray, Move

NEVER = -np.inf
_MOST_CACHED = 32  # entries of each cache of a LinkTable


@dataclass(frozen=True, slots=True)
class PeerLinks:
    """The peers of each rank in a step of messages and the costs of the links to them, as arrays of shape (P,).

    `dest` and `source` are the peer arrays of the plan; `dest_index` and `source_index` are the simulated ranks that
    represent these peers (for a rank without a peer, the rank itself). `far` marks ranks whose message leaves their
    node, and `local` marks ranks that copy to themselves; a mask that marks no rank is None. `overhead` is in seconds,
    and `beta` in seconds per byte. `bends` are pairs (size in bytes, seconds per byte that are added to beta for the
    part of a message beyond this size). `flight` is alpha - overhead (the seconds during which no port is busy), or
    NEVER for ranks that receive no message.
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
        """Return the seconds, without overhead, for which each rank's message keeps ports busy, shape (P,).

        `nbytes` has the bytes of each rank's message, and `share` the number of ranks that share its NIC (None: one).
        """
        seconds = nbytes * self.beta
        for start, change in self.bends:
            seconds += np.maximum(nbytes - start, 0) * change
        if share is not None and self.far is not None:
            seconds = np.where(self.far, seconds * share, seconds)
        return seconds


class LinkTable:
    """Looks up the links and the shared NICs of the messages of a plan's steps on a machine model.

    The links of a step (`PeerLinks`) are cached by the identity of the arrays `dest` and `source` of the step.

    Args:
        machine: the machine model.
        n: the number of ranks of the plan.
        represented: the number P of simulated ranks.
    """

    def __init__(self, machine: Machine, n: int, represented: int) -> None:
        self.machine, self.n, self.size = machine, n, represented
        self.rank = np.arange(represented, dtype=np.int64)
        self.node = np.arange(n, dtype=np.int64) // machine.ranks_per_node
        self.own_node = self.node[self.rank]
        place = self.rank % machine.ranks_per_node
        self.nic = self.own_node * machine.nics_per_node + place * machine.nics_per_node // machine.ranks_per_node
        self._cache: dict[tuple[int, int], PeerLinks] = {}
        self._no_sharing: dict[tuple[int, ...], tuple[Sequence[PeerLinks], bool]] = {}

    def peer_links(self, move: Move) -> PeerLinks:
        """Return the links between the ranks and their peers in the step `move`, from the cache if possible."""
        key = (id(move.dest), id(move.source))
        if key not in self._cache:
            if len(self._cache) >= _MOST_CACHED:
                self._cache.clear()
            self._cache[key] = self._find_links(move.dest, move.source)
        return self._cache[key]

    def _find_links(self, dest: IntArray, source: IntArray) -> PeerLinks:
        """Return the links on which each rank sends to `dest` and receives from `source` (two arrays of peers)."""
        local = dest == self.rank
        sends, receives = (dest != NO_PEER) & ~local, (source != NO_PEER) & (source != self.rank)
        dest_or_self, source_or_self = np.where(sends, dest, self.rank), np.where(receives, source, self.rank)
        far, from_far = self.node[dest_or_self] != self.own_node, self.node[source_or_self] != self.own_node
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
            flight=_by_link(receives, from_far, near.alpha_s - near.overhead_s, wide.alpha_s - wide.overhead_s, NEVER),
        )

    def _index(self, ranks: IntArray) -> IntArray:
        """Return the simulated ranks that represent `ranks`."""
        return ranks if self.n == self.size else ranks % self.size

    def count_sharers(self, peers: Sequence[PeerLinks], sent: Sequence[Mask]) -> Sequence[IntArray | None]:
        """Return, for each step of a round, the number of ranks that share the NIC at the busier end of each message.

        The numbers have shape (P,); they are None for every step if no ranks share a NIC. Ranks are counted, not
        messages, because a rank sends its messages of a round one after the other.

        Args:
            peers: the links of each step.
            sent: for each step, a mask of the ranks that send a message.
        """
        unshared: list[IntArray | None] = [None] * len(peers)
        if self._never_shares_nic(peers):
            return unshared
        counts = self._count_per_nic(peers, sent)
        if counts is None:
            return unshared
        leaving, entering = counts
        return [np.maximum(np.maximum(leaving[self.nic], entering[self.nic[peer.dest_index]]), 1) for peer in peers]

    def _never_shares_nic(self, peers: Sequence[PeerLinks]) -> bool:
        """Whether no two ranks share a NIC even if all messages of the round, empty ones too, are sent; cached."""
        if self.machine.ranks_per_node == self.machine.nics_per_node or all(peer.far is None for peer in peers):
            return True
        key = tuple(id(peer) for peer in peers)
        if key not in self._no_sharing:
            if len(self._no_sharing) >= _MOST_CACHED:
                self._no_sharing.clear()
            self._no_sharing[key] = (peers, self._count_per_nic(peers, [peer.sends for peer in peers]) is None)
        return self._no_sharing[key][1]

    def _count_per_nic(self, peers: Sequence[PeerLinks], sent: Sequence[Mask]) -> tuple[IntArray, IntArray] | None:
        """Return the numbers of ranks that send and that receive through each NIC; None if no number exceeds one."""
        out, into = np.zeros(self.size, np.bool_), np.zeros(self.size, np.bool_)
        for each, is_sent in zip(peers, sent, strict=True):
            if each.far is not None:
                crosses = each.far & is_sent
                out |= crosses
                into[each.dest_index[crosses]] = True
        nics = int(self.nic[-1]) + 1
        leaving, entering = (np.bincount(self.nic[each], minlength=nics) for each in (out, into))
        return (leaving, entering) if max(leaving.max(), entering.max()) > 1 else None


def _by_link(active: Mask, far: Mask, near_s: float, wide_s: float, otherwise: float) -> Floats:
    """Return `wide_s` for active ranks with peers on other nodes, `near_s` for other active ranks, else `otherwise`."""
    return np.where(active, np.where(far, wide_s, near_s), otherwise)
