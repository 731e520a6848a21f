"""Finds pairs of ranks, and nodes, whose messages take longer than messages of equal size between other ranks.

The cost of slow messages is the run time that the job saves in a simulation in which these messages take the usual
time. The usual time of a pair of ranks is the median time of the pairs that include neither of these ranks. If all
other pairs include one of these ranks, the usual time is the shortest time of the other pairs. If most of a node's
pairs with other nodes are slow, these slow pairs are one finding.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    nodes = []
    for node in range(placement.count) if placement.count >= _FEWEST_PAIRS else ():
        of_node = [pair for pair in slow if pair.connects(node)]
        if len(of_node) > max(_SLOW_SHARE * sum(pair.connects(node) for pair in pairs), 1):
            most, ranks = max(of_node, key=lambda pair: len(pair.calls)), placement.list_ranks(node)
            saved_s = replayed_s - _replay_healed(graph, of_node)
            host, messages = graph.profile.ranks[ranks[0]].host, sum(len(pair.calls) for pair in of_node)
            nodes.append((node, SlowNode(messages, most.nbytes, most.seconds, most.usual_s, saved_s, host, ranks)))
    links = []
    for pair in slow:
        if not any(pair.connects(node) for node, _ in nodes):
            saved_s = replayed_s - _replay_healed(graph, [pair])
            sizes = len(pair.calls), pair.nbytes
            links.append(SlowLink(*sizes, pair.seconds, pair.usual_s, saved_s, pair.source, pair.dest))
    by_cost = sorted((node for _, node in nodes), key=lambda node: -node.saved_s)
    return tuple(by_cost), tuple(sorted(links, key=lambda link: -link.saved_s))


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


def _replay_healed(graph: CallGraph, pairs: Iterable[_Pair]) -> float:
    """Return the run time in seconds of a replay in which the messages of `pairs` take at most the usual time."""
    transfer_s, senders = graph.transfer_s.copy(), graph.matches.find_senders()
    for pair in pairs:
        for calls in (pair.calls, senders[graph.matches.received[pair.calls]]):
            transfer_s[calls] = np.minimum(transfer_s[calls], pair.usual_s)
    return replay_job(graph, transfer_s=transfer_s).run_s
