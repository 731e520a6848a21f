"""Formats the analysis of a recorded job as one screen of text."""

from __future__ import annotations

from typing import Final

from hpccoll.profile.explanation import Explanation
from hpccoll.profile.findings import list_findings
from hpccoll.units import format_count, format_size

GOOD: Final = 0.8
MOST_FINDINGS, MOST_SITES = 5, 8


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
    findings = list_findings(explanation)
    lines += [f"{number}. {finding.found}" for number, finding in enumerate(findings[:MOST_FINDINGS], 1)]
    if not findings:
        lines.append("No rank and no call site costs more than 1 % of the run time.")
    lines += ["", f"{'call site':<28} {'operation':<14} {'calls':>9} {'bytes':>8} {'waiting':>8} {'transfer':>8}"]
    for cost in explanation.sites[:MOST_SITES]:
        site = str(cost.site)[-28:]
        nbytes = format_size(cost.nbytes) if cost.nbytes >= 0 else "?"
        shares = f"{cost.wait_s / run_s:>8.1%} {cost.transfer_s / run_s:>8.1%}"
        lines.append(f"{site:<28} {cost.op:<14} {cost.calls:>9,} {nbytes:>8} {shares}")
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
