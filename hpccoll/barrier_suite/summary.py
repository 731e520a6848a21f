"""Makes the record of kind `barrier_summary` from the rows of the suite and the straggler report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpccoll.barrier_suite.arrival_patterns import ArrivalPattern
from hpccoll.barrier_suite.straggler import StragglerReport
from hpccoll.records import BarrierCost, BarrierRecord, BarrierSummaryRecord, NodeLateness, RankLateness


def name_nodes(hosts: Sequence[str], node: Sequence[int]) -> tuple[str, ...]:
    """Return the name of each rank's node: the host name, with a number if several nodes are emulated on one host.

    Args:
        hosts: the host name of each rank.
        node: the number of each rank's node.
    """
    nodes_of: dict[str, set[int]] = {}
    for host, number in zip(hosts, node, strict=True):
        nodes_of.setdefault(host, set()).add(number)
    return tuple(
        host if len(nodes_of[host]) == 1 else f"{host}:{number}" for host, number in zip(hosts, node, strict=True)
    )


def make_summary(
    rows: Sequence[BarrierRecord],
    report: StragglerReport,
    nodes: Sequence[str],
    common_start_us: float | None,
    **conditions: Any,
) -> BarrierSummaryRecord:
    """Return the record of kind `barrier_summary`, the last one of a run of `hpccoll barrier`.

    Args:
        rows: the records of all barriers and patterns.
        report: the straggler report, which names the late rank, if any.
        nodes: the name of each rank's node.
        common_start_us: the median time of an all-reduce that all ranks start together; None if it was not measured.
        conditions: the fields of the record that state how the run was made, such as `clock` and `inject_delay`.
    """
    even = [row for row in rows if row.pattern == ArrivalPattern.NONE]
    return BarrierSummaryRecord(
        straggler=report.straggler,
        straggler_node=find_late_node(report, nodes),
        reason=report.reason,
        ranks=len(nodes),
        nodes=len(set(nodes)),
        rounds=report.rounds,
        noise_us=_to_us(report.noise_s),
        threshold_us=_to_us(report.threshold_s),
        lateness=summarize_ranks(report, nodes),
        node_lateness=summarize_nodes(report, nodes),
        fastest=min(even, key=lambda row: row.completion_us.p50).name if even else None,
        most_even=min(even, key=lambda row: row.exit_skew_us.p50).name if even else None,
        barriers=tuple(make_cost(row, rows, common_start_us) for row in even),
        all_reduce_us=common_start_us,
        **conditions,
    )


def make_cost(even: BarrierRecord, rows: Sequence[BarrierRecord], common_start_us: float | None) -> BarrierCost:
    """Return the cost of one barrier: its time, exit skew, absorbed delay and effect on a timed all-reduce.

    Args:
        even: the barrier's record with the pattern `none` (all ranks enter together).
        rows: the records of all barriers and patterns.
        common_start_us: the median time of an all-reduce that all ranks start together; None if it was not measured.
    """
    own = [row for row in rows if row.name == even.name]
    one_late = next((row for row in own if row.pattern == ArrivalPattern.ONE_LATE), None)
    after_us = None if even.all_reduce_us is None else even.all_reduce_us.p50
    bias = after_us / common_start_us - 1 if after_us is not None and common_start_us else None
    return BarrierCost(
        engine=even.engine,
        algorithm=even.algorithm,
        completion_us=even.completion_us.p50,
        exit_skew_us=even.exit_skew_us.p50,
        absorbed=None if one_late is None else one_late.absorbed,
        unsafe=sum(row.unsafe for row in own),
        all_reduce_us=after_us,
        bias=None if bias is None else round(bias, 4),
    )


def summarize_ranks(report: StragglerReport, nodes: Sequence[str]) -> tuple[RankLateness, ...]:
    """Return how late each rank is, in the form of a `barrier_summary` record; `nodes` names each rank's node."""
    return tuple(
        RankLateness(
            rank=rank.rank,
            node=nodes[rank.rank],
            last_arrivals=rank.last_arrivals,
            excess_us=_to_us(rank.excess_s),
            wait_us=_to_us(rank.wait_s),
            wait_deficit_us=_to_us(rank.wait_deficit_s),
            caused_us=_to_us(rank.caused_s / max(report.rounds, 1)),
        )
        for rank in report.ranks
    )


def summarize_nodes(report: StragglerReport, nodes: Sequence[str]) -> tuple[NodeLateness, ...]:
    """Return, per node, how late its ranks are: a count of rounds, and medians over the ranks of the node.

    The count is the number of rounds in which a rank of the node was last. The medians are those of the ranks' lateness
    beyond that of other ranks, and of the time by which they waited less than other ranks. `nodes` has the name of each
    rank's node; a node without ranks in the report is left out.
    """
    entries = []
    for node in dict.fromkeys(nodes):
        own = [rank for rank in report.ranks if nodes[rank.rank] == node]
        if own:
            excess = float(np.median([evidence.excess_s for evidence in own]))
            deficit = float(np.median([evidence.wait_deficit_s for evidence in own]))
            last = sum(evidence.last_arrivals for evidence in own)
            entries.append(NodeLateness(node, len(own), last, _to_us(excess), _to_us(deficit)))
    return tuple(entries)


def find_late_node(report: StragglerReport, nodes: Sequence[str]) -> str | None:
    """Return the name of the late rank's node if it has several ranks, and all of them, but no others, are late.

    The result is None if there is no such node. `nodes` has the name of each rank's node.
    """
    if report.straggler is None:
        return None
    node = nodes[report.straggler]
    late = {rank_evidence.rank for rank_evidence in report.ranks if rank_evidence.excess_s > report.threshold_s}
    members = {rank for rank, name in enumerate(nodes) if name == node}
    return node if late == members and len(members) > 1 else None


def _to_us(seconds: float) -> float:
    """Return a time in microseconds, rounded to nanoseconds."""
    return round(seconds * 1e6, 3)
