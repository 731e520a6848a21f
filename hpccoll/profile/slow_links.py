"""Finds pairs of ranks, and nodes, whose messages take longer than messages of equal size between other ranks.

The cost of slow messages is the run time that the job saves in a simulation in which these messages take the usual
time. The usual time of a pair of ranks is the median time of the pairs that include neither of these ranks. If all
other pairs include one of these ranks, the usual time is the shortest time of the other pairs. If most of a node's
pairs with other nodes are slow, these slow pairs are one finding. A node is also slow if one of its pairs is slow, and
the job saves clearly more if the slow messages of all of its pairs take the usual time: transfers of the other pairs
may be hidden behind those of the slow pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from hpccoll.plan import IntArray
from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.placement import Placement
from hpccoll.profile.replay import replay_job

SLOWER: Final = 3.0  # messages are slow if they take more than this multiple of the usual time
_FEWEST_MESSAGES, _FEWEST_PAIRS = 4, 3  # pairs with fewer messages, and sizes that fewer pairs have, are left out
_SLOW_SHARE: Final = 0.5  # a node is slow if more than this share, at least two, of its pairs with others are slow
_MORE_SAVED: Final = 1.1  # a node is also slow if its messages cost more than this multiple of the cost of a slow pair


@dataclass(frozen=True, slots=True)
class SlowMessages:
    """Messages of two ranks, or of a node with other nodes, that take longer than other messages of their size.

    Args:
        messages: the number of slow messages.
        nbytes: the bytes of each message; for several slow pairs of ranks, of the pair with the most messages.
        seconds: the median time of the slow messages of `nbytes` bytes.
        usual_s: the median time of messages of `nbytes` bytes between other ranks.
        saved_s: the run time that the job would save if the slow messages took the usual time.
    """

    messages: int
    nbytes: int
    seconds: float
    usual_s: float
    saved_s: float


@dataclass(frozen=True, slots=True)
class SlowLink(SlowMessages):
    """The slow messages of one size from the rank `source` to the rank `dest`."""

    source: int
    dest: int


@dataclass(frozen=True, slots=True)
class SlowNode(SlowMessages):
    """The slow messages between the node `host`, which runs the ranks `ranks`, and other nodes."""

    host: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Pair:
    """The messages of one size from the rank `source` to the rank `dest`.

    Args:
        nodes: the nodes of both ranks, as numbers of `Placement`.
        calls: the calls that receive the messages.
        seconds: the median transfer of these calls.
        usual_s: the median transfer of messages of this size between other ranks.
    """

    source: int
    dest: int
    nodes: tuple[int, int]
    nbytes: int
    calls: IntArray
    seconds: float
    usual_s: float

    @property
    def is_slow(self) -> bool:
        """Whether the messages take more than SLOWER times as long as those of other pairs.

        No pair is slow if `usual_s` is 0: messages of the other pairs then arrive before their receives begin.
        """
        return self.seconds > SLOWER * self.usual_s > 0

    def connects(self, node: int) -> bool:
        """Whether the messages are between the node with the number `node` and another node."""
        return node in self.nodes and self.nodes[0] != self.nodes[1]


def find_slow_messages(graph: CallGraph) -> tuple[tuple[SlowNode, ...], tuple[SlowLink, ...]]:
    """Return a tuple with a `SlowNode` per slow node, and one with a `SlowLink` per other slow pair of ranks.

    Both tuples begin with the most costly element. A slow pair of ranks within a slow node has a `SlowLink`, too. Cost:
    one simulation of the job per element of both tuples, and one of the unchanged job.
    """
    placement = Placement.read(graph.profile)
    pairs = _list_pairs(graph, placement)
    slow = [pair for pair in pairs if pair.is_slow]
    if not slow:
        return (), ()
    replayed_s = replay_job(graph).run_s
    several = range(placement.count) if placement.count >= _FEWEST_PAIRS else ()
    of_node = {node: [pair for pair in pairs if pair.connects(node)] for node in several}
    nodes, links = dict[int, SlowNode](), list[SlowLink]()
    for node, all_pairs in of_node.items():
        slow_pairs = [pair for pair in all_pairs if pair.is_slow]
        if len(slow_pairs) > max(_SLOW_SHARE * len(all_pairs), 1):
            nodes[node] = _describe_node(graph, placement.list_ranks(node), slow_pairs, replayed_s)
    for pair in slow:
        if any(pair.connects(node) for node in nodes):
            continue
        saved_s = replayed_s - _replay_healed(graph, [pair], pair.seconds)
        ends = {
            node: _describe_node(graph, placement.list_ranks(node), all_pairs, replayed_s)
            for node, all_pairs in of_node.items()
            if pair.connects(node)
        }
        worst = max(ends, key=lambda node: ends[node].saved_s, default=-1)
        if ends and ends[worst].saved_s > _MORE_SAVED * saved_s:
            nodes[worst] = ends[worst]
        else:
            sizes = len(pair.calls), pair.nbytes
            links.append(SlowLink(*sizes, pair.seconds, pair.usual_s, saved_s, pair.source, pair.dest))
    by_cost = sorted(nodes.values(), key=lambda node: -node.saved_s)
    return tuple(by_cost), tuple(sorted(links, key=lambda link: -link.saved_s))


def _describe_node(graph: CallGraph, ranks: tuple[int, ...], pairs: Sequence[_Pair], replayed_s: float) -> SlowNode:
    """Return the slow messages of `pairs`, those of the node of `ranks`; `replayed_s` is the replayed run time."""
    most = max((pair for pair in pairs if pair.is_slow), key=lambda pair: len(pair.calls))
    messages = sum(len(_find_slow_receives(graph, pair, most.seconds)) for pair in pairs)
    saved_s, host = replayed_s - _replay_healed(graph, pairs, most.seconds), graph.profile.ranks[ranks[0]].host
    return SlowNode(messages, most.nbytes, most.seconds, most.usual_s, saved_s, host, ranks)


def _list_pairs(graph: CallGraph, placement: Placement) -> list[_Pair]:
    """Return a `_Pair` for each pair of ranks and message size with at least four messages.

    Message sizes with fewer than three pairs are left out. Pairs within nodes are compared with pairs within nodes, and
    pairs between nodes with pairs between nodes.
    """
    need = graph.matches.needs[:, 0]
    received = np.flatnonzero((graph.matches.received >= 0) & (need >= 0))
    size, nodes = len(graph.start_s), placement.nodes
    source, dest = graph.rank[need[received]], graph.rank[received]
    number, nbytes, pairs = source * size + dest, graph.nbytes[need[received]], []
    is_within = np.array(nodes)[source] == np.array(nodes)[dest]
    for message_bytes, within in product(np.unique(nbytes).tolist(), (False, True)):
        same = (nbytes == message_bytes) & (is_within == within)
        calls = {divmod(pair, size): received[same & (number == pair)] for pair in np.unique(number[same]).tolist()}
        calls = {ends: its for ends, its in calls.items() if len(its) >= _FEWEST_MESSAGES}
        medians = {ends: float(np.median(graph.transfer_s[its])) for ends, its in calls.items()}
        for ends, seconds in medians.items() if len(medians) >= _FEWEST_PAIRS else ():
            others = [its_s for other, its_s in medians.items() if not {*other} & {*ends}]
            others = others or [min(its_s for other, its_s in medians.items() if other != ends)]
            places = nodes[ends[0]], nodes[ends[1]]
            values = places, message_bytes, calls[ends], seconds, float(np.median(others))
            pairs.append(_Pair(ends[0], ends[1], *values))
    return pairs


def _find_slow_receives(graph: CallGraph, pair: _Pair, slow_s: float) -> IntArray:
    """Return the calls that receive slow messages of a pair: all messages of a slow pair.

    Of another pair, messages are slow if the receive or the send takes more than half of `slow_s`, the usual time of a
    slow pair of the same node: while a rank sends slow messages, those that it receives arrive unnoticed, but their
    senders wait.
    """
    if pair.is_slow:
        return pair.calls
    sends = graph.matches.find_senders()[graph.matches.received[pair.calls]]
    return pair.calls[np.maximum(graph.transfer_s[pair.calls], graph.transfer_s[sends]) > slow_s / 2]


def _replay_healed(graph: CallGraph, pairs: Iterable[_Pair], slow_s: float) -> float:
    """Return the run time in seconds of a replay in which the slow messages of `pairs` take at most the usual time.

    `slow_s` is as in `_find_slow_receives`.
    """
    transfer_s, senders = graph.transfer_s.copy(), graph.matches.find_senders()
    for pair in pairs:
        receives = _find_slow_receives(graph, pair, slow_s)
        for calls in (receives, senders[graph.matches.received[receives]]):
            transfer_s[calls] = np.minimum(transfer_s[calls], pair.usual_s)
    return replay_job(graph, transfer_s=transfer_s).run_s
