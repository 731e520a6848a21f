"""Lists the causes of lost time in a recorded job as records, each with a sentence and the cost in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hpccoll.profile.calls_in_a_row import CallsInARow
from hpccoll.profile.explanation import Explanation
from hpccoll.profile.lateness import Lateness
from hpccoll.profile.slow_links import SlowLink, SlowNode
from hpccoll.records import ProfileFindingRecord
from hpccoll.units import format_ranges, format_size

LEAST_SHARE: Final = 0.01  # findings that cost a smaller share of the run time are left out


def list_findings(explanation: Explanation) -> list[ProfileFindingRecord]:
    """Return a record of each cause of lost time that costs at least 1 % of the run time, the most costly first."""
    slow_messages: tuple[SlowNode | SlowLink, ...] = (*explanation.slow_nodes, *explanation.links)
    findings = [
        *(_describe_late(explanation, late) for late in (*explanation.late, *explanation.late_nodes)),
        *(_describe_calls(explanation, calls) for calls in explanation.calls_in_a_row),
        *(_describe_slow_messages(explanation, slow) for slow in slow_messages),
    ]
    costly = [finding for finding in findings if finding.share >= LEAST_SHARE]
    return sorted(costly, key=lambda finding: -finding.saved_s)


def _describe_late(explanation: Explanation, late: Lateness) -> ProfileFindingRecord:
    """Return the record of a late rank or node."""
    site = explanation.profile.sites[late.site] if late.site >= 0 else None
    is_node, share = late.rank is None, late.saved_s / explanation.efficiencies.run_s
    name = _name_node(late.host, late.ranks) if is_node else f"rank {late.rank} ({late.host})"
    kind: Any = late.kind.name.lower()
    return ProfileFindingRecord(
        cause="late_node" if is_node else "late_rank",
        found=f"{name} arrives last in {late.last_share:.0%} of the {late.calls:,} {late.operation} calls of "
        f"{site or 'the end of the program'} and costs {share:.0%} of the job ({late.saved_s:.3g} s; "
        f"{late.kind.value})",
        saved_s=late.saved_s, share=share, rank=late.rank, node=late.host, node_ranks=late.ranks if is_node else None,
        lateness=kind, last_share=late.last_share, calls=late.calls, op=late.operation, site=site,
    )  # fmt: skip


def _name_node(host: str, ranks: Sequence[int]) -> str:
    """Return the host name of a node and its ranks in words, such as `node slow (ranks 2-3)`."""
    return f"node {host} (rank{'s' * (len(ranks) > 1)} {format_ranges(ranks)})"


def _describe_slow_messages(explanation: Explanation, slow: SlowNode | SlowLink) -> ProfileFindingRecord:
    """Return the record of a node or of two ranks whose messages are slow."""
    fields: dict[str, Any]
    if isinstance(slow, SlowNode):
        ends, others = f"from and to {_name_node(slow.host, slow.ranks)}", "nodes"
        fields = {"node": slow.host, "node_ranks": slow.ranks}
    else:
        node, dest_node = (explanation.profile.ranks[rank].host for rank in (slow.source, slow.dest))
        ends, others = f"from rank {slow.source} ({node}) to rank {slow.dest} ({dest_node})", "ranks"
        fields = {"rank": slow.source, "node": node, "dest": slow.dest, "dest_node": dest_node}
    share = slow.saved_s / explanation.efficiencies.run_s
    return ProfileFindingRecord(
        cause="slow_link",
        found=f"messages of {format_size(slow.nbytes)} {ends} take {slow.seconds / slow.usual_s:.0f} times as long as "
        f"between other {others}, and cost {share:.0%} of the job ({slow.saved_s:.3g} s)",
        saved_s=slow.saved_s, share=share, calls=slow.messages, nbytes=slow.nbytes, **fields,
    )  # fmt: skip


def _describe_calls(explanation: Explanation, joined: CallsInARow) -> ProfileFindingRecord:
    """Return the record of a line of the program whose calls could be joined into one call."""
    site = explanation.profile.sites[joined.site]
    share = joined.saved_s / explanation.efficiencies.run_s
    return ProfileFindingRecord(
        cause="calls_in_a_row",
        found=f"{site} calls {joined.operation} {joined.calls / joined.rows:.0f} times in a row, with "
        f"{format_size(joined.nbytes)} each, and costs {share:.0%} of the job ({joined.saved_s:.3g} s); one call with "
        "all values would do",
        saved_s=joined.saved_s, share=share, op=joined.operation, site=site, calls=joined.calls, nbytes=joined.nbytes,
    )  # fmt: skip
