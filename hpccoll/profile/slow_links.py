"""Finds pairs of ranks, and nodes, whose messages take longer than messages of equal size between other ranks.

The cost of slow messages is the run time that the job saves in a simulation in which these messages take the usual
time. The usual time of a pair of ranks is the median time of the pairs that include neither of these ranks. If all
other pairs include one of these ranks, the usual time is the shortest time of the other pairs. If most of a node's
pairs with other nodes are slow, the slow messages of all of its pairs are one finding. So they are if the job saves
clearly more without them than without the slow pairs between this node and one other: while a rank sends over its slow
link, the messages that it receives arrive unnoticed, but their senders wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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
# A node is also slow if its messages cost more than this multiple of the cost of its slow pairs with one other node,
# and more by this share of the run time.
_MORE_SAVED, _LEAST_MORE_SAVED = 1.1, 0.01


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
    one simulation of the unchanged job, one per element of both tuples, and up to three per two nodes with a slow pair.
    """
    placement = Placement.read(graph.profile)
    pairs = _list_pairs(graph, placement)
    slow = [pair for pair in pairs if pair.is_slow]
    if not slow:
        return (), ()
    replayed_s = replay_job(graph).run_s
    several = range(placement.count) if placement.count >= _FEWEST_PAIRS else ()
    of_node = {node: [pair for pair in pairs if pair.connects(node)] for node in several}

    @cache
    def describe(node: int) -> SlowNode:
        """Return the slow messages of a node."""
        return _describe_node(graph, placement.list_ranks(node), of_node[node], replayed_s)

    slow_nodes = _find_slow_nodes(graph, slow, of_node, describe, replayed_s)
    nodes, links = [describe(node) for node in slow_nodes], list[SlowLink]()
    for pair in slow:
        if not any(pair.connects(node) for node in slow_nodes):
            saved_s = replayed_s - _replay_healed(graph, [(pair.calls, pair.usual_s)])
            sizes = len(pair.calls), pair.nbytes
            links.append(SlowLink(*sizes, pair.seconds, pair.usual_s, saved_s, pair.source, pair.dest))
    return tuple(sorted(nodes, key=_negative_cost)), tuple(sorted(links, key=_negative_cost))


def _find_slow_nodes(
    graph: CallGraph,
    slow: Sequence[_Pair],
    of_node: Mapping[int, Sequence[_Pair]],
    describe: Callable[[int], SlowNode],
    replayed_s: float,
) -> set[int]:
    """Return the numbers of the slow nodes.

    Args:
        slow: the slow pairs of ranks.
        of_node: the pairs between each node and the others.
        describe: returns the slow messages of a node.
        replayed_s: the replayed run time in seconds.
    """
    slow_nodes = set[int]()
    for node, all_pairs in of_node.items():
        if sum(pair.is_slow for pair in all_pairs) > max(_SLOW_SHARE * len(all_pairs), 1):
            slow_nodes.add(node)
    for nodes in dict.fromkeys(frozenset(pair.nodes) for pair in slow if pair.nodes[0] != pair.nodes[1]):
        if of_node and not slow_nodes & nodes:
            worst = max(sorted(nodes), key=lambda node: describe(node).saved_s)
            link = [(pair.calls, pair.usual_s) for pair in slow if {*pair.nodes} == nodes]
            more_s = describe(worst).saved_s - _MORE_SAVED * (replayed_s - _replay_healed(graph, link))
            if more_s > _LEAST_MORE_SAVED * replayed_s:
                slow_nodes.add(worst)
    return slow_nodes


def _negative_cost(messages: SlowMessages) -> float:
    """Return a key by which the most costly messages come first."""
    return -messages.saved_s


def _describe_node(graph: CallGraph, ranks: tuple[int, ...], pairs: Sequence[_Pair], replayed_s: float) -> SlowNode:
    """Return the slow messages of `pairs`, those of the node of `ranks`; `replayed_s` is the replayed run time."""
    slow = [pair for pair in pairs if pair.is_slow]
    most, senders = max(slow, key=lambda pair: len(pair.calls)), graph.matches.find_senders()
    healed = [(_find_slow_receives(graph, pair, slow, senders), pair.usual_s) for pair in pairs]
    saved_s, host = replayed_s - _replay_healed(graph, healed), graph.profile.ranks[ranks[0]].host
    messages = sum(len(receives) for receives, _ in healed)
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


def _find_slow_receives(graph: CallGraph, pair: _Pair, slow: Sequence[_Pair], senders: IntArray) -> IntArray:
    """Return the calls that receive slow messages of a pair: all messages of a slow pair.

    Of another pair, messages are slow if the receive or the send takes more than half as long as the messages of a slow
    pair of the same node, which `slow` lists, with the same size. `senders` has the sending call of each message.
    """
    if pair.is_slow:
        return pair.calls
    slow_s = [other.seconds for other in slow if other.nbytes == pair.nbytes]
    if not slow_s or not pair.usual_s:
        return pair.calls[:0]
    longest_s = np.maximum(graph.transfer_s[pair.calls], graph.transfer_s[senders[graph.matches.received[pair.calls]]])
    return pair.calls[longest_s > max(min(slow_s) / 2, SLOWER * pair.usual_s)]


def _replay_healed(graph: CallGraph, healed: Iterable[tuple[IntArray, float]]) -> float:
    """Return the run time in seconds of a replay in which some messages take at most the usual time.

    `healed` has arrays of the calls that receive these messages, each with the usual time in seconds.
    """
    transfer_s, senders = graph.transfer_s.copy(), graph.matches.find_senders()
    for receives, usual_s in healed:
        for calls in (receives, senders[graph.matches.received[receives]]):
            transfer_s[calls] = np.minimum(transfer_s[calls], usual_s)
    return replay_job(graph, transfer_s=transfer_s).run_s
