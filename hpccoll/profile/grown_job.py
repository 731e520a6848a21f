"""Simulates a recorded job on several times as many ranks, if all recorded ranks make the same sequence of calls.

The new ranks make the same calls as the recorded ones. A new rank computes as long as the recorded rank at the same
place in the order of ranks: with 2 recorded ranks and 4 new ones, ranks 0 and 1 compute as rank 0, and ranks 2 and 3 as
rank 1. Messages keep the distance between source and destination: if each recorded rank but the last sends to the next
rank, each new rank but the last does so, too. Each collective is simulated with the times at which its ranks enter it,
because the data of other ranks may have arrived before a late rank enters.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hpccoll.plan import Floats, IntArray
from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.layout import EntryFlag
from hpccoll.profile.network_model import NetworkModel
from hpccoll.profile.placement import Placement
from hpccoll.profile.transfer_kinds import JobTransfers, ModelledTransfer, grow_transfer

SERIAL_LIBRARIES: Final = ("gloo", "nccl")  # carry out the collectives of a process group one after the other
MOST_RANKS: Final = 128  # the simulation of collectives takes time in proportion to the square of the number of ranks


@dataclass(frozen=True, slots=True)
class _Received:
    """The messages whose receives a call completes.

    Args:
        kind: the kind of transfers to which the messages belong.
        sending: index of the sending call in the sequence of calls.
        source: the rank that sends to each recorded rank, shape (recorded ranks,); -1: none.
    """

    kind: ModelledTransfer
    sending: int
    source: IntArray


@dataclass(frozen=True, slots=True)
class _CompletedCollective:
    """The collective that a call completes; the same call, or an earlier one that did not block, has entered it.

    Args:
        kind: the operation, ranks and message size of its transfer; None if the transfer takes no time.
        entering: index of the entering call in the sequence of calls, which is the same on all ranks.
        root: the root of the collective; 0 if it has no root.
    """

    kind: ModelledTransfer | None
    entering: int
    root: int


@dataclass(frozen=True, slots=True)
class GrownJob:
    """The sequence of calls that all ranks of a recorded job make, to be simulated on more ranks.

    Args:
        start_s: the time at which each recorded rank starts, shape (ranks,).
        gap_s: the seconds for which each recorded rank computes before each call, shape (calls, ranks).
        own_s: the seconds that each call takes if it completes no message or collective of several ranks, else 0.
        received: the messages that calls complete, by the index of the call.
        collectives: the collectives that calls complete, by the index of the call.
        per_node: the number of ranks on each node; None if all ranks are on one node.
        is_serial: whether a rank's collectives run one after the other, as those of Gloo do.
    """

    start_s: Floats
    gap_s: Floats
    own_s: Floats
    received: dict[int, list[_Received]]
    collectives: dict[int, _CompletedCollective]
    per_node: int | None
    is_serial: bool

    @classmethod
    def read(cls, graph: CallGraph, transfers: JobTransfers, placement: Placement) -> GrownJob | None:
        """Return the sequence of calls of a recorded job.

        The result is None if the ranks of the job make different calls, or collectives of a part of the ranks, or if a
        rank receives a message in an earlier call of the sequence than the call in which another rank sends it.
        """
        ranks, counts = len(graph.start_s), np.bincount(graph.rank)
        if (counts != counts[0]).any() or (graph.op.reshape(ranks, -1) != graph.op[: counts[0]]).any():
            return None
        received, collectives = _find_received(graph, ranks), _find_collectives(graph, transfers, ranks)
        if received is None or collectives is None:
            return None
        gap_s, own_s = (values.reshape(ranks, -1).T.copy() for values in (graph.gap_s, graph.transfer_s))
        own_s[[*received, *collectives]] = 0.0
        per_node = placement.count_per_node(range(ranks)) if placement.count > 1 else None
        start_s = graph.start_s - graph.start_s.min()
        is_serial = graph.profile.library in SERIAL_LIBRARIES
        return cls(start_s, gap_s, own_s, received, collectives, per_node, is_serial)

    def simulate_s(self, network: NetworkModel, factor: int = 1, *, is_strong: bool = False) -> float:
        """Return the run time in seconds of the job with `factor` times as many ranks on a network.

        Args:
            network: the network that carries all messages.
            factor: the number of ranks divided by the recorded number.
            is_strong: whether each rank computes for 1 / `factor` of the recorded time, and the whole array of a gather
                or all-gather keeps its size; otherwise, computing times and the block of each rank stay as recorded.
        """
        recorded = len(self.start_s)
        size = recorded * factor
        origin = np.arange(size) * recorded // size
        clock, begins = self.start_s[origin], np.empty((len(self.gap_s), size))
        entered = {collective.entering: collective for collective in self.collectives.values()}
        left_s, last_left_s = dict[int, Floats](), np.zeros(size)  # by the entering call; of the latest collective
        delays: dict[tuple[ModelledTransfer | None, int], Floats] = {}
        for call, gap_s in enumerate(self.gap_s):
            begins[call] = clock + gap_s[origin] / (factor if is_strong else 1)
            clock = begins[call] + self.own_s[call, origin]
            if call in entered:
                key = entered[call].kind, entered[call].root
                if key not in delays:
                    delays[key] = self._find_delays(entered[call], network, factor, is_strong=is_strong)
                entered_s = np.maximum(begins[call], last_left_s) if self.is_serial else begins[call]
                left_s[call] = last_left_s = (entered_s[:, np.newaxis] + delays[key]).max(axis=0)
            for messages in self.received.get(call, ()):
                for source in _extend(messages.source, factor):
                    clock = np.maximum(clock, self._carry(messages, source, begins[messages.sending], network))
            if call in self.collectives:
                clock = np.maximum(clock, left_s.pop(self.collectives[call].entering))
        return float(clock.max())

    def _find_delays(
        self, collective: _CompletedCollective, network: NetworkModel, factor: int, *, is_strong: bool
    ) -> Floats:
        """Return a matrix of seconds from the entry of one rank (row) until another (column) can leave a collective.

        The collective has `factor` times as many ranks as recorded; the other arguments are those of `simulate_s`. An
        element is minus infinity if the rank of the column does not wait for the rank of the row.
        """
        if collective.kind is None:
            return np.zeros((len(self.start_s) * factor,) * 2)
        kind = grow_transfer(collective.kind, factor, is_strong=is_strong)
        return network.find_delays(kind, collective.root * factor, has_nodes=self.per_node is not None)

    def _carry(self, messages: _Received, source: IntArray, sent_s: Floats, network: NetworkModel) -> Floats:
        """Return the time in seconds at which each rank has received a message; minus infinity if it receives none.

        Args:
            messages: the messages that a call of each rank receives.
            source: the rank that sends to each rank; -1: none.
            sent_s: the time at which each rank sends.
            network: the network that carries the messages.
        """
        far_s, near_s = (network.predict_s(replace(messages.kind, per_node=mates)) for mates in (1, 2))
        per_node = self.per_node or len(source)
        seconds = np.where(np.arange(len(source)) // per_node == source // per_node, near_s, far_s)
        return np.where(source >= 0, sent_s[source] + seconds, -np.inf)


def _find_received(graph: CallGraph, ranks: int) -> dict[int, list[_Received]] | None:
    """Return the messages that calls complete, by the index of the call among the calls of its rank.

    The result is None if a rank receives a message by an earlier call than the call by which another rank sends it.
    """
    senders, calls = graph.matches.find_senders(), len(graph.rank) // ranks
    sources: dict[int, dict[int, IntArray]] = defaultdict(dict)  # by the completing call, then by the sending call
    nbytes: dict[tuple[int, int], int] = defaultdict(int)
    for at in np.flatnonzero(graph.matches.received >= 0).tolist():
        sender = int(senders[graph.matches.received[at]])
        (dest, call), (source, sending) = divmod(at, calls), divmod(sender, calls)
        if sending > call:
            return None
        sources[call].setdefault(sending, np.full(ranks, -1))[dest] = source
        nbytes[call, sending] = max(nbytes[call, sending], int(graph.nbytes[sender]))
    return {
        call: [
            _Received(ModelledTransfer("send", ranks, nbytes[call, sending]), sending, source)
            for sending, source in by_sending.items()
        ]
        for call, by_sending in sources.items()
    }


def _find_collectives(graph: CallGraph, transfers: JobTransfers, ranks: int) -> dict[int, _CompletedCollective] | None:
    """Return the collectives that calls complete, by the index of the call among the calls of its rank.

    Collectives of a single rank are left out. The result is None if some ranks do not take part in a collective.
    """
    matches = graph.matches
    kinds: dict[int, ModelledTransfer] = {
        int(matches.instance[call]): transfers.kinds[transfers.index[call]]
        for call in np.flatnonzero((matches.instance >= 0) & (transfers.index >= 0)).tolist()
    }
    is_message = matches.find_senders() >= 0
    is_start = np.append(graph.profile.ranks[0].entries["flags"] & EntryFlag.START != 0, False)  # no start at the end
    entering: dict[int, int] = {}
    found: dict[int, _CompletedCollective] = {}
    for call, numbers in enumerate(matches.instance.reshape(ranks, -1).T):
        first, known = int(numbers[0]), set(numbers[numbers >= 0].tolist())
        if not known or any(is_message[number] for number in known):
            continue
        if (numbers != first).any():
            if len(known) < ranks or any(kinds[number].ranks > 1 for number in known if number in kinds):
                return None
            continue
        if ranks == 1:
            continue
        begun = entering.setdefault(first, call)
        if not is_start[call]:
            found[call] = _CompletedCollective(kinds.get(first), begun, max(int(graph.root[begun]), 0))
    return found


def _extend(source: IntArray, factor: int) -> list[IntArray]:
    """Return the ranks that send to each rank in a job with `factor` times as many ranks, as arrays; -1 for none.

    There is one array per message that a rank may receive. Messages keep the distance from source to destination if it
    is the same for all recorded ranks; the last ranks then send to the first ones, or to no rank. Otherwise, groups of
    as many ranks as were recorded exchange messages among each other.

    Args:
        source: the rank that sends to each recorded rank; -1: none.
        factor: the number of ranks divided by the recorded number.
    """
    recorded = len(source)
    ranks, own = np.arange(recorded * factor), np.arange(recorded)
    receives = source >= 0
    distances = (source - own)[receives]
    around = np.unique(distances % recorded)
    if receives.all() and len(around) == 1:
        distance = int(around[0])
        return [(ranks + (distance if 2 * distance <= recorded else distance - recorded)) % len(ranks)]
    extended = []
    for distance in np.unique(distances).tolist():
        reached = (own + distance >= 0) & (own + distance < recorded)
        if (reached != (receives & (source - own == distance))).any():
            tiled = np.tile(source, factor)
            return [np.where(tiled >= 0, tiled + ranks // recorded * recorded, -1)]
        inside = (ranks + distance >= 0) & (ranks + distance < len(ranks))
        extended.append(np.where(inside, ranks + distance, -1))
    return extended
