"""Formats the analysis of a recorded job as one screen of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from hpccoll.profile.calls_in_a_row import CallsInARow
from hpccoll.profile.explanation import Explanation
from hpccoll.profile.lateness import Lateness, LateRank
from hpccoll.profile.slow_links import SlowLink, SlowNode
from hpccoll.units import format_count, format_ranges, format_size

GOOD: Final = 0.8
MOST_FINDINGS, MOST_SITES = 5, 8
LEAST_SHARE: Final = 0.01  # findings that cost a smaller share of the run time are left out

Cause: TypeAlias = Lateness | CallsInARow | SlowNode | SlowLink


@dataclass(frozen=True, slots=True)
class ProfileFinding:
    """One cause of lost time, such as a late rank, and a sentence about it."""

    cause: Cause
    text: str


def format_screen(explanation: Explanation) -> str:
    """Return the efficiencies, findings and call sites of a recorded job as text of several lines."""
    profile, efficiencies = explanation.profile, explanation.efficiencies
    run_s = efficiencies.run_s
    lines = [
        f"{' '.join(profile.argv)}: {format_count(profile.size, 'rank')}, {run_s:.3g} s, {profile.calls:,} calls"
        + (f" (and {profile.folded_calls:,} older ones, in statistics only)" if profile.folded_calls else ""),
        "",
        *_format_efficiencies(explanation),
        "",
    ]
    findings = [finding.text for finding in list_findings(explanation)]
    lines += [f"{number}. {text}" for number, text in enumerate(findings[:MOST_FINDINGS], 1)]
    if not findings:
        lines.append("No rank and no call site costs more than 1 % of the run time.")
    lines += ["", f"{'call site':<28} {'operation':<14} {'calls':>9} {'bytes':>8} {'waiting':>8} {'transfer':>8}"]
    for cost in explanation.sites[:MOST_SITES]:
        site = str(profile.sites[cost.site])[-28:]
        nbytes = format_size(cost.nbytes) if cost.nbytes >= 0 else "?"
        shares = f"{cost.wait_s / run_s:>8.1%} {cost.transfer_s / run_s:>8.1%}"
        lines.append(f"{site:<28} {cost.operation:<14} {cost.calls:>9,} {nbytes:>8} {shares}")
    lines += [f"# {problem}" for problem in profile.problems]
    return "\n".join(lines)


def _format_efficiencies(explanation: Explanation) -> list[str]:
    """Return the efficiencies of a job, and the shares of its time, as lines of text."""
    eff = explanation.efficiencies
    verdict = "good" if eff.parallel >= GOOD else "below 0.8: worth a change"
    shares = [float(values.mean()) / eff.run_s for values in (eff.useful_s, eff.wait_s, eff.transfer_s)]
    return [
        f"parallel efficiency  {eff.parallel:.2f}  ({verdict})",
        f"  load balance       {eff.load_balance:.2f}  useful time: mean / maximum of the ranks",
        f"  serialisation      {eff.serialisation:.2f}  dependencies between ranks",
        f"  transfer           {eff.transfer:.2f}  time of messages",
        f"useful {shares[0]:.0%}, waiting for late ranks {shares[1]:.0%}, transfer {shares[2]:.0%}",
    ]


def list_findings(explanation: Explanation) -> list[ProfileFinding]:
    """Return the causes that cost at least 1 % of the run time, with sentences, the most costly first."""
    lates = (*explanation.late, *explanation.late_nodes)
    findings = [
        *(ProfileFinding(late, _describe_late(explanation, late)) for late in lates),
        *(ProfileFinding(calls, _describe_calls(explanation, calls)) for calls in explanation.calls_in_a_row),
        *(ProfileFinding(node, _describe_slow_node(explanation, node)) for node in explanation.slow_nodes),
        *(ProfileFinding(link, _describe_link(explanation, link)) for link in explanation.links),
    ]
    least_s = LEAST_SHARE * explanation.efficiencies.run_s
    costly = [finding for finding in findings if finding.cause.saved_s >= least_s]
    return sorted(costly, key=lambda finding: -finding.cause.saved_s)


def _describe_late(explanation: Explanation, late: Lateness) -> str:
    """Return a sentence about a late rank or node."""
    site = explanation.profile.sites[late.site] if late.site >= 0 else "the end of the program"
    share = late.saved_s / explanation.efficiencies.run_s
    who = f"rank {late.rank} ({late.host})" if isinstance(late, LateRank) else _name_node(late.host, late.ranks)
    what = f"{who} arrives last in {late.last_share:.0%} of the {late.calls:,} {late.operation}"
    return f"{what} calls of {site} and costs {share:.0%} of the job ({late.saved_s:.3g} s; {late.kind.value})"


def _name_node(host: str, ranks: Sequence[int]) -> str:
    """Return the host name of a node and its ranks in words, such as `node slow (ranks 2-3)`."""
    return f"node {host} (rank{'s' * (len(ranks) > 1)} {format_ranges(ranks)})"


def _describe_slow_node(explanation: Explanation, node: SlowNode) -> str:
    """Return a sentence about a node whose messages to and from other nodes are slow."""
    share = node.saved_s / explanation.efficiencies.run_s
    return (
        f"messages of {format_size(node.nbytes)} from and to {_name_node(node.host, node.ranks)} take "
        f"{node.seconds / node.usual_s:.0f} times as long as between other nodes, and cost {share:.0%} of the job "
        f"({node.saved_s:.3g} s)"
    )


def _describe_link(explanation: Explanation, link: SlowLink) -> str:
    """Return a sentence about two ranks whose messages are slow."""
    hosts = [explanation.profile.ranks[rank].host for rank in (link.source, link.dest)]
    share = link.saved_s / explanation.efficiencies.run_s
    return (
        f"messages of {format_size(link.nbytes)} from rank {link.source} ({hosts[0]}) to rank {link.dest} ({hosts[1]}) "
        f"take {link.seconds / link.usual_s:.0f} times as long as between other ranks, and cost {share:.0%} of the job "
        f"({link.saved_s:.3g} s)"
    )


def _describe_calls(explanation: Explanation, joined: CallsInARow) -> str:
    """Return a sentence about a line of the program whose calls could be joined into one."""
    site = explanation.profile.sites[joined.site]
    share = joined.saved_s / explanation.efficiencies.run_s
    return (
        f"{site} calls {joined.operation} {joined.calls / joined.rows:.0f} times in a row, with "
        f"{format_size(joined.nbytes)} each, and costs {share:.0%} of the job ({joined.saved_s:.3g} s); one call with "
        "all values would do"
    )
