"""The links and NICs that the messages of a step use, computed once for all message sizes.

In array shapes, P is the number of simulated ranks (all n ranks, or fewer); rank r mod P represents rank r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from hpccoll.plan.operation import Mask
from hpccoll.plan.simulation.fabric import NO_LINK, Fabric, FabricTable, SharedLinks, count_users
from hpccoll.plan.simulation.machine import Machine
from hpccoll.plan.step import NO_PEER, Floats, IntArray, Move

Shares: TypeAlias = IntArray | Floats
NEVER = -np.inf
_MOST_CACHED = 32  # entries of each cache of a LinkTable
# A move is sparse if at least _LEAST_SPARSE ranks are simulated, and at most one in _SPARSE of them sends.
_LEAST_SPARSE, _SPARSE = 2**12, 4
_MOST_CACHED_PEERS = 2**21  # most cached pairs of peer arrays times simulated ranks; about 200 MB


@dataclass(frozen=True, slots=True)
class PeerLinks:
    """The peers of each simulated rank in a step of messages and the costs of their links, as arrays by rank.

    `dest` and `source` are the peer arrays of the plan; `dest_index` and `source_index` are the simulated ranks that
    represent these peers (for a rank without a peer, the rank itself). `far` marks ranks whose message leaves their
    node, and `local` marks ranks that copy to themselves; a mask that marks no rank is None. `overhead` is in seconds,
    and `beta` in seconds per byte. `bends` are pairs (size in bytes, seconds per byte that are added to beta for the
    part of a message beyond this size). `flight` is alpha - overhead (the seconds during which no port is busy), or
    NEVER for ranks that receive no message.

    If few of many ranks send, `is_sparse` is true, and all arrays but `dest` and `source` have one entry per message:
    `source_index` has the senders, and `dest_index` the receivers.
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
    shared: tuple[SharedLinks, ...] = ()
    is_sparse: bool = False

    def transfer_s(self, nbytes: Floats, share: Shares | None) -> Floats:
        """Return the seconds, without overhead, for which each rank's message keeps ports busy.

        `nbytes` has the bytes of each rank's message. `share` has the factors by which messages on shared links take
        longer; None if no link is shared.
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
    `represented` is the number P of simulated ranks.
    """

    def __init__(self, machine: Machine, n: int, represented: int) -> None:
        self.machine, self.n, self.size = machine, n, represented
        self.most_cached = max(min(_MOST_CACHED, _MOST_CACHED_PEERS // max(represented, 1)), 1)
        self.rank = np.arange(represented, dtype=np.int64)
        # Node numbers are stored as small integers, so that the table, which is read at random, fits in the cache.
        self.node = (np.arange(n) // machine.ranks_per_node).astype(np.int32)
        self.own_node = self.node[self.rank]
        place = self.rank % machine.ranks_per_node
        self.nic = self.own_node * machine.nics_per_node + place * machine.nics_per_node // machine.ranks_per_node
        self._fabric = self._make_fabric_table()
        self._cache: dict[tuple[int, int], PeerLinks] = {}
        self._no_sharing: dict[tuple[int, ...], tuple[Sequence[PeerLinks], bool]] = {}

    def _make_fabric_table(self) -> FabricTable | None:
        """Return the table of links that nodes share in the machine's network; None if nodes share no links."""
        fabric, q = self.machine.fabric, self.machine.ranks_per_node
        if fabric is None:
            return None
        rail = np.arange(self.n) % q * self.machine.nics_per_node // q
        return FabricTable(
            fabric, self.node.astype(np.int64) // fabric.nodes_per_switch, rail * fabric.has_rails, self.size
        )

    def peer_links(self, move: Move) -> PeerLinks:
        """Return the peers of all ranks in the step `move` and the costs of their links, from a cache if possible."""
        key = (id(move.dest), id(move.source))
        if key not in self._cache:
            if len(self._cache) >= self.most_cached:
                self._cache.clear()
            self._cache[key] = self._find_links(move.dest, move.source)
        return self._cache[key]

    def _find_links(self, dest: IntArray, source: IntArray) -> PeerLinks:
        """Return the links on which each rank sends to `dest` and receives from `source` (two arrays of peers)."""
        if self.size >= _LEAST_SPARSE and self._fabric is None:
            senders = np.flatnonzero(dest != NO_PEER)
            if _SPARSE * len(senders) <= self.size and not (dest[senders] == senders).any():
                return self._find_sparse_links(dest, source, senders)
        local = dest == self.rank
        sends, receives = (dest != NO_PEER) & ~local, (source != NO_PEER) & (source != self.rank)
        dest_or_self, source_or_self = np.where(sends, dest, self.rank), np.where(receives, source, self.rank)
        far, from_far = self.node[dest_or_self] != self.own_node, self.node[source_or_self] != self.own_node
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
            **self._find_costs(sends, far, receives, from_far),
            shared=() if self._fabric is None else self._fabric.find_shared_links(dest_or_self, far),
        )

    def _find_sparse_links(self, dest: IntArray, source: IntArray, senders: IntArray) -> PeerLinks:
        """Return the links of the messages of a step in which only the ranks `senders` send."""
        to, every = dest[senders], np.ones(len(senders), np.bool_)
        far = self.node[to] != self.node[senders]
        return PeerLinks(
            dest=dest,
            source=source,
            dest_index=self._index(to),
            source_index=senders,
            sends=every,
            receives=every,
            all_send=True,
            all_receive=True,
            local=None,
            far=far if far.any() else None,
            **self._find_costs(every, far, every, far),
            is_sparse=True,
        )

    def _find_costs(self, sends: Mask, far: Mask, receives: Mask, from_far: Mask) -> dict[str, Any]:
        """Return the values of the fields of `PeerLinks` that have costs, by field name.

        The arguments are masks of ranks; `far` has those that send to another node, `from_far` those that receive from
        one.
        """
        near, wide = self.machine.within, self.machine.between
        return {
            "overhead": _by_link(sends, far, near.overhead_s, wide.overhead_s, 0.0),
            "beta": _by_link(sends, far, near.beta_s_per_byte, wide.beta_s_per_byte, 0.0),
            "bends": (
                *((start, _by_link(sends, far, change, 0.0, 0.0)) for start, change in near.bends),
                *((start, _by_link(sends, far, 0.0, change, 0.0)) for start, change in wide.bends),
            ),
            "flight": _by_link(
                receives, from_far, near.alpha_s - near.overhead_s, wide.alpha_s - wide.overhead_s, NEVER
            ),
        }

    def _index(self, ranks: IntArray) -> IntArray:
        """Return the indices of the simulated ranks that represent `ranks`."""
        return ranks if self.n == self.size else ranks % self.size

    def count_sharers(self, peers: Sequence[PeerLinks], sent: Sequence[Mask]) -> Sequence[Shares | None]:
        """Return, for each step of a round, the factors by which messages take longer because they share links.

        A factor is the larger of two numbers: the number of ranks that share the NIC at the busier end of a message,
        and the number of ranks that share a link between switches, divided by this link's bandwidth in NICs. There is
        one array with an entry per simulated rank for each step, or None for every step if nothing is shared. Ranks are
        counted, not messages, because a rank sends its messages of a round one after the other. `peers` has the links
        of each step, and `sent` a mask of the ranks that send in each step.
        """
        shares: list[Shares | None] = [None] * len(peers)
        counts = None if self._never_shares_nic(peers) else self._count_per_nic(peers, sent)
        if counts is not None:
            leaving, entering = counts
            nics = [(self.nic[peer.source_index] if peer.is_sparse else self.nic, peer) for peer in peers]
            ends = [(leaving[own], entering[self.nic[peer.dest_index]]) for own, peer in nics]
            shares = [np.maximum(np.maximum(*users), 1) for users in ends]
        fabric = self.machine.fabric
        return shares if fabric is None or not peers else self._add_fabric(fabric, peers, sent, shares)

    def _add_fabric(
        self, fabric: Fabric, peers: Sequence[PeerLinks], sent: Sequence[Mask], shares: Sequence[Shares | None]
    ) -> Sequence[Shares]:
        """Return the factors `shares`, increased where ranks share a link between switches beyond its bandwidth."""
        slowest: list[Shares] = [np.ones(self.size) if share is None else share for share in shares]
        for kind, link in enumerate(peers[0].shared):
            both = zip(peers, sent, strict=True)
            numbers = [np.where(goes, peer.shared[kind].number, NO_LINK) for peer, goes in both]
            users = [peer.dest_index if link.at_dest else self.rank for peer in peers]
            counts = count_users(numbers, users, self.size)
            slowest = [np.maximum(s, c / fabric.capacity) for s, c in zip(slowest, counts, strict=True)]
        return slowest

    def sum_shared_bytes(self, peers: Sequence[PeerLinks], nbytes: Sequence[Floats]) -> tuple[Floats, ...]:
        """Return the bytes of a round on each link between switches, one array per kind of shared links.

        `peers` has the links of each step, and `nbytes` the bytes that each rank sends in each step. The result is
        empty if nodes share no links.
        """
        if self._fabric is None:
            return ()
        sums = [np.zeros(self._fabric.links) for _ in range(self._fabric.kinds)]
        for peer, sent in zip(peers, nbytes, strict=True):
            for link, total in zip(peer.shared, sums, strict=True):
                used = link.number != NO_LINK
                np.add(total, np.bincount(link.number[used], sent[used], len(total)), out=total)
        return tuple(sums)

    def _never_shares_nic(self, peers: Sequence[PeerLinks]) -> bool:
        """Whether no two ranks share a NIC even if all messages of the round, also empty ones, are sent; cached."""
        if self.machine.ranks_per_node == self.machine.nics_per_node or all(peer.far is None for peer in peers):
            return True
        key = tuple(id(peer) for peer in peers)
        if key not in self._no_sharing:
            if len(self._no_sharing) >= self.most_cached:
                self._no_sharing.clear()
            self._no_sharing[key] = (peers, self._count_per_nic(peers, [peer.sends for peer in peers]) is None)
        return self._no_sharing[key][1]

    def _count_per_nic(self, peers: Sequence[PeerLinks], sent: Sequence[Mask]) -> tuple[IntArray, IntArray] | None:
        """Return the numbers of ranks that send and receive through each NIC in a round; None if none exceeds one."""
        out, into = np.zeros(self.size, np.bool_), np.zeros(self.size, np.bool_)
        for move_peers, is_sent in zip(peers, sent, strict=True):
            if move_peers.far is not None:
                crosses = move_peers.far & is_sent
                if move_peers.is_sparse:
                    out[move_peers.source_index[crosses]] = True
                else:
                    out |= crosses
                into[move_peers.dest_index[crosses]] = True
        nics = int(self.nic[-1]) + 1
        leaving, entering = (np.bincount(self.nic[crossing], minlength=nics) for crossing in (out, into))
        return (leaving, entering) if max(leaving.max(), entering.max()) > 1 else None


def _by_link(active: Mask, far: Mask, near_s: float, wide_s: float, otherwise: float) -> Floats:
    """Return seconds per rank: `wide_s` for `active` ranks in `far`, `near_s` for other active ranks, else `otherwise`.

    `far` marks ranks whose peer is on another node.
    """
    if near_s == wide_s == otherwise:
        return np.full(len(active), otherwise)
    return np.array([otherwise, near_s, wide_s]).take(active * np.int8(1) + (active & far))
