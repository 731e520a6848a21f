"""Pairs of ranks, and nodes, whose messages take longer than messages of the same size between other ranks.

The cost of a slow link is the run time that the replay saves if its messages take the median time of the pairs that
have neither of the two ranks, or the shortest time of the other pairs if there are no such pairs. The slow pairs of a
node with other nodes are one finding if they are most of the node's pairs with other nodes.
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

SLOWER: Final = 3.0  # a pair is slow above this multiple of the median of other pairs
_FEWEST_MESSAGES, _FEWEST_PAIRS = 4, 3
_SLOW_SHARE: Final = 0.5  # a node is slow if more than this share of its pairs, and at least two, are slow


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A pair of ranks whose messages take `seconds`, and those between other ranks `usual_s`, as medians."""

    source: int
    dest: int
    messages: int
    nbytes: int
    seconds: float
    usual_s: float
    saved_s: float


@dataclass(frozen=True, slots=True)
class SlowNode:
    """A node whose messages to and from other nodes take `seconds`, and those between other nodes `usual_s`.

    The times are medians of the slow pair of ranks with the most messages, which have `nbytes` each. `messages` counts
    the messages of all slow pairs.
    """

    host: str
    ranks: tuple[int, ...]
    messages: int
    nbytes: int
    seconds: float
    usual_s: float
    saved_s: float


@dataclass(frozen=True, slots=True)
class _Pair:
    """The messages of one size from one rank to another one.

    `calls` are the calls that receive them, `seconds` is their median transfer, and `usual_s` that of other pairs.
    """

    source: int
    dest: int
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


def find_slow_nodes(graph: CallGraph) -> list[SlowNode]:
    """Return the nodes whose messages to and from other nodes are slow, the most costly first."""
    placement = Placement.read(graph.profile)
    if placement.count < _FEWEST_PAIRS:
        return []
    pairs, nodes = _list_pairs(graph), placement.nodes
    slow = []
    for node in range(placement.count):
        own = [pair for pair in pairs if nodes[pair.source] != nodes[pair.dest] and node in _list_nodes(pair, nodes)]
        slow_pairs = [pair for pair in own if pair.is_slow]
        if len(slow_pairs) > max(_SLOW_SHARE * len(own), 1):
            most = max(slow_pairs, key=lambda pair: len(pair.calls))
            ranks, messages = placement.list_ranks(node), sum(len(pair.calls) for pair in slow_pairs)
            host, saved_s = graph.profile.ranks[ranks[0]].host, _compute_saving(graph, slow_pairs)
            slow.append(SlowNode(host, ranks, messages, most.nbytes, most.seconds, most.usual_s, saved_s))
    return sorted(slow, key=lambda node: -node.saved_s)


def find_slow_links(graph: CallGraph, nodes: Sequence[SlowNode] = ()) -> list[SlowLink]:
    """Return the slow pairs without a rank on one of the slow `nodes`, the most costly first."""
    excluded = {rank for node in nodes for rank in node.ranks}
    slow = [
        SlowLink(
            pair.source,
            pair.dest,
            len(pair.calls),
            pair.nbytes,
            pair.seconds,
            pair.usual_s,
            _compute_saving(graph, [pair]),
        )
        for pair in _list_pairs(graph)
        if pair.is_slow and not excluded & {pair.source, pair.dest}
    ]
    return sorted(slow, key=lambda link: -link.saved_s)


def _list_nodes(pair: _Pair, nodes: Sequence[int]) -> tuple[int, int]:
    """Return the nodes of a pair's ranks."""
    return nodes[pair.source], nodes[pair.dest]


def _list_pairs(graph: CallGraph) -> list[_Pair]:
    """Return the pairs of ranks with enough messages of one size, of sizes that enough pairs have.

    Pairs within nodes are compared with each other, and so are pairs between nodes.
    """
    need = graph.matches.needs[:, 0]
    received = np.flatnonzero((graph.matches.received >= 0) & (need >= 0))
    size = len(graph.start_s)
    number = graph.rank[need[received]] * size + graph.rank[received]
    nodes, nbytes, pairs = np.array(Placement.read(graph.profile).nodes), graph.nbytes[need[received]], []
    is_within = nodes[graph.rank[need[received]]] == nodes[graph.rank[received]]
    for message_bytes, within in product(np.unique(nbytes).tolist(), (False, True)):
        same = (nbytes == message_bytes) & (is_within == within)
        calls = {divmod(each, size): received[same & (number == each)] for each in np.unique(number[same]).tolist()}
        calls = {ends: its for ends, its in calls.items() if len(its) >= _FEWEST_MESSAGES}
        medians = {ends: float(np.median(graph.transfer_s[its])) for ends, its in calls.items()}
        for ends, seconds in medians.items() if len(medians) >= _FEWEST_PAIRS else ():
            others = [its_s for other, its_s in medians.items() if not {*other} & {*ends}]
            others = others or [min(its_s for other, its_s in medians.items() if other != ends)]
            pairs.append(_Pair(ends[0], ends[1], message_bytes, calls[ends], seconds, float(np.median(others))))
    return pairs


def _compute_saving(graph: CallGraph, pairs: Iterable[_Pair]) -> float:
    """Return the run time that is saved if the messages of some pairs take at most the usual time."""
    transfer_s, senders = graph.transfer_s.copy(), graph.matches.find_senders()
    for pair in pairs:
        for calls in (pair.calls, senders[graph.matches.received[pair.calls]]):
            transfer_s[calls] = np.minimum(transfer_s[calls], pair.usual_s)
    return replay_job(graph).run_s - replay_job(graph, transfer_s=transfer_s).run_s
