"""Finds ranks and nodes for which other ranks wait, and how much run time each of them costs.

To find the cost of a late rank, the job is simulated with shorter computing times of this rank: at most the median of
the other ranks before the same call. The run time that the job saves in this simulation is the cost of the late rank. A
node is late if all of its ranks are late compared with the ranks of other nodes; its cost is found with shorter
computing times of all its ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from hpccoll.plan import Floats, IntArray
from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.placement import Placement
from hpccoll.profile.replay import replay_job

_LONGER: Final = 1.1  # computing counts as longer above this multiple of the expected time
_LASTING_SHARE: Final = 0.6  # lateness is an imbalance if this share of the expected computing takes longer
_BLOCKED_SHARE: Final = 0.5  # lateness is OUTSIDE if this share of the excess time is spent without a core
_MOST_RANKS: Final = 8  # the most ranks, and the most nodes, whose cost is found by a replay
_EVEN_SHARE: Final = 0.5  # each rank of a late node exceeds by at least this share of the node's largest excess


class LatenessKind(Enum):
    """Names the likely reason why a rank or node is late: more work, waits outside of communication, or noise."""

    IMBALANCE = "in most iterations: more work than the others, or a slow core"
    OUTSIDE = "after waits outside of communication, such as input and output"
    NOISE = "now and then: noise of the system, or work that varies"


@dataclass(frozen=True, slots=True)
class Lateness:
    """A rank, or a node with several ranks, for which other ranks wait, and the line at which they wait the most.

    Args:
        ranks: the late rank, or all ranks of the late node.
        host: the host name of the node.
        site: index of the line in the profile's `sites`; -1 for the end of the program.
        operation: the operation of the calls at this line, such as `all_reduce`.
        calls: the number of collectives from this line, plus the number of messages received there from late ranks.
        last_share: the share of `calls`, from 0 to 1, in which a late rank was the last to arrive.
        saved_s: the run time that the job would save if the late ranks computed no longer than the others.
        kind: the likely kind of lateness.
    """

    ranks: tuple[int, ...]
    host: str
    site: int
    operation: str
    calls: int
    last_share: float
    saved_s: float
    kind: LatenessKind

    @property
    def rank(self) -> int | None:
        """The late rank; None for a late node with several ranks."""
        return self.ranks[0] if len(self.ranks) == 1 else None


def find_late_ranks(graph: CallGraph) -> list[Lateness]:
    """Return a `Lateness` per rank that computes longer than other ranks and makes them wait, the most costly first.

    Only the eight ranks with the most computing beyond that of other ranks are examined. Cost: one simulation of the
    job per examined rank, and one of the unchanged job.
    """
    expected = expect_gaps(graph)
    excess = graph.sum_by_rank(np.maximum(graph.gap_s - expected, 0.0))
    ranks = [(rank,) for rank in np.argsort(-excess)[:_MOST_RANKS].tolist()]
    return _list_late(graph, ranks, expected)


def find_late_nodes(graph: CallGraph) -> list[Lateness]:
    """Return a `Lateness` per node whose ranks all compute longer than those of other nodes, the most costly first.

    Nodes with a single rank are left out. At most eight nodes are examined. Cost: one simulation of the job per
    examined node, and one of the unchanged job.
    """
    placement = Placement.read(graph.profile)
    if placement.count == 1:
        return []
    expected = expect_gaps(graph, placement.nodes)
    excess = graph.sum_by_rank(np.maximum(graph.gap_s - expected, 0.0))
    by_least = []
    for ranks in map(placement.list_ranks, range(placement.count)):
        own = excess[list(ranks)]
        if len(ranks) > 1 and own.min() >= _EVEN_SHARE * own.max():
            by_least.append((-float(own.min()), ranks))
    return _list_late(graph, [ranks for _, ranks in sorted(by_least)[:_MOST_RANKS]], expected)


def _list_late(graph: CallGraph, candidates: Sequence[tuple[int, ...]], expected: Floats) -> list[Lateness]:
    """Return a `Lateness` per candidate that makes other ranks wait and lengthens the job, the most costly first.

    Args:
        graph: the recorded calls.
        candidates: the ranks of each candidate, which is a rank or a node.
        expected: for each call, the seconds for which the rank should compute before the call.
    """
    base_s = replay_job(graph).run_s
    cause = np.where(graph.last_needed >= 0, graph.rank[graph.last_needed], -1)
    late = []
    for ranks in candidates:
        waiting = np.isin(cause, ranks) & ~np.isin(graph.rank, ranks) & (graph.wait_s > 0)
        saved_s = base_s - replay_job(graph, heal_ranks(graph, ranks, expected)).run_s
        if waiting.any() and saved_s > 0:
            site, op = _find_costliest(graph, waiting)
            last_share, calls = _count_last(graph, ranks, site, op)
            host, kind = graph.profile.ranks[ranks[0]].host, _classify(graph, ranks, expected)
            late.append(Lateness(ranks, host, site, graph.operations[op], calls, last_share, saved_s, kind))
    return sorted(late, key=lambda lateness: -lateness.saved_s)


def _classify(graph: CallGraph, ranks: tuple[int, ...], expected: Floats) -> LatenessKind:
    """Return the likely kind of lateness of `ranks`.

    `expected` are, for each call, the seconds for which the rank should compute before the call.
    """
    own, excess = np.isin(graph.rank, ranks), np.maximum(graph.gap_s - expected, 0.0)
    longer = own & (graph.gap_s > _LONGER * expected)
    if expected[longer].sum() >= _LASTING_SHARE * expected[own].sum():
        return LatenessKind.IMBALANCE
    if excess[own & graph.is_blocked].sum() >= _BLOCKED_SHARE * excess[own].sum():
        return LatenessKind.OUTSIDE
    return LatenessKind.NOISE


def _find_costliest(graph: CallGraph, waiting: np.ndarray) -> tuple[int, int]:
    """Return the line and the operation, as indices, whose calls together wait the longest.

    Only calls whose element of `waiting`, shape (calls,), is true are taken into account.
    """
    keys = graph.site[waiting] * len(graph.operations) + canonical_operations(graph)[waiting]
    pairs, place = np.unique(keys, return_inverse=True)
    key = int(pairs[np.argmax(np.bincount(place, graph.wait_s[waiting]))])
    return key // len(graph.operations), key % len(graph.operations)


def canonical_operations(graph: CallGraph) -> IntArray:
    """Return, for each call, the first index of its operation's name in `graph.operations`.

    Unlike `graph.op`, this index is equal for all calls of one operation, even if its name is in `operations` twice.
    """
    first = {name: index for index, name in reversed(list(enumerate(graph.operations)))}
    canonical = np.array([first[name] for name in graph.operations])
    return canonical[graph.op]


def _count_last(graph: CallGraph, ranks: tuple[int, ...], site: int, op: int) -> tuple[float, int]:
    """Return the share (0 to 1) of a line's counted calls that waited for one of `ranks`, and how many were counted.

    A collective in which a rank waits for all ranks is counted once, and waited for the rank that entered it last.
    Another call (a message, a broadcast, a scatter) is counted on each rank that needs a call of one of `ranks`.

    Args:
        graph: the recorded calls.
        ranks: the late ranks.
        site: index of the line.
        op: index of the operation, as `canonical_operations` returns it.
    """
    at_site = (graph.site == site) & (canonical_operations(graph) == op) & (graph.last_needed >= 0)
    groups = graph.matches.group
    _, first = np.unique(groups[at_site & (groups >= 0)], return_index=True)
    collectives = np.flatnonzero(at_site & (groups >= 0))[first]
    last = np.isin(graph.rank[graph.last_needed[collectives]], ranks)
    messages = at_site & (groups < 0) & np.isin(graph.rank[graph.last_needed], ranks)
    late = np.concatenate([last, graph.wait_s[messages] > 0])
    return (float(late.mean()), len(late)) if len(late) else (0.0, 0)


def expect_gaps(graph: CallGraph, nodes: Sequence[int] | None = None) -> Floats:
    """Return, for each call, the median of the seconds for which other ranks compute before the same call.

    The k-th calls of one operation from one line are the same call on different ranks. If fewer than two other ranks
    make the call, the rank's own computing time is returned; in a job of two ranks, one other rank is enough.

    Args:
        graph: the recorded calls.
        nodes: the node of each rank, to compare ranks of different nodes only; None to compare all ranks.
    """
    ranks, row = len(graph.start_s), _number_same_calls(graph)
    table = np.full((row.max() + 1, ranks), np.nan)
    table[row, graph.rank] = graph.gap_s
    expected, groups = graph.gap_s.copy(), np.arange(ranks) if nodes is None else np.array(nodes)
    for rank in range(ranks):
        own, is_other = graph.rank == rank, groups != groups[rank]
        others = table[:, is_other][row[own]]
        known = np.count_nonzero(~np.isnan(others), axis=1) >= min(2, int(is_other.sum()))
        if others.shape[1] and known.any():
            medians = np.nanmedian(others[known], axis=1)
            expected[np.flatnonzero(own)[known]] = medians
    return expected


def _number_same_calls(graph: CallGraph) -> IntArray:
    """Return a number per call, the same for the k-th calls of one operation from one line on different ranks."""
    order = np.lexsort((np.arange(len(graph.rank)), graph.rank, graph.op, graph.site))
    keys = np.stack([graph.site, graph.op, graph.rank])[:, order]
    starts = np.flatnonzero(np.append(True, np.any(keys[:, 1:] != keys[:, :-1], axis=0)))
    ordinal = np.empty(len(order), np.int64)
    ordinal[order] = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    return np.unique(np.stack([graph.site, graph.op, ordinal]), axis=1, return_inverse=True)[1].reshape(-1)


def heal_ranks(graph: CallGraph, ranks: Sequence[int], expected: Floats) -> Floats:
    """Return the computing times before all calls in seconds, if `ranks` computed for at most `expected` seconds.

    `expected` has one element per call, as `expect_gaps` returns it.
    """
    return np.where(np.isin(graph.rank, ranks), np.minimum(graph.gap_s, expected), graph.gap_s)


def balance_gaps(graph: CallGraph) -> Floats:
    """Return the computing times before all calls in seconds, if all ranks computed equally long before the same call.

    The k-th calls of one operation from one line of the program count as the same call on all ranks that make it. Each
    returned time is the mean over these ranks.
    """
    row = _number_same_calls(graph)
    return (np.bincount(row, graph.gap_s) / np.bincount(row))[row]
