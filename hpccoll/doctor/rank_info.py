"""Host, cores and versions of each rank, and a check that all ranks have the same versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import format_list
from hpccoll.units import format_ranges

AREA = "versions"


@dataclass(frozen=True, slots=True)
class RankInfo:
    """A rank's number, its host, the cores it may run on, and its package versions (None: not installed)."""

    rank: int
    host: str
    cores: tuple[int, ...]
    versions: Mapping[str, str | None]


def describe_this_rank(rank: int, versions: Mapping[str, str | None]) -> RankInfo:
    """Return the RankInfo of this process, which is rank `rank`; no communication."""
    return RankInfo(rank, platform.node(), tuple(sorted(os.sched_getaffinity(0))), dict(versions))


def check_versions(ranks: Sequence[RankInfo]) -> list[Finding]:
    """Return a problem for each package whose version differs between ranks, or one OK finding."""
    findings = []
    for name in dict.fromkeys(name for rank in ranks for name in rank.versions):
        by_version: dict[str, list[RankInfo]] = {}
        for rank in ranks:
            by_version.setdefault(rank.versions.get(name) or "not installed", []).append(rank)
        if len(by_version) == 1:
            continue
        evidence = "; ".join(
            f"{version}: ranks {format_ranges([rank.rank for rank in group])} on "
            f"{format_list(list(dict.fromkeys(rank.host for rank in group)))}"
            for version, group in by_version.items()
        )
        found = f"the ranks have different versions of {name}"
        remedy = "use one environment on all hosts: put it on a shared file system, or install the same versions"
        findings.append(Finding(AREA, Severity.PROBLEM, found, evidence, remedy))
    if not findings and len(ranks) > 1:
        names = [name for name, version in ranks[0].versions.items() if version]
        hosts = len({rank.host for rank in ranks})
        found = f"{len(ranks)} ranks on {hosts} host{'s' * (hosts > 1)} have the same versions"
        findings.append(Finding(AREA, Severity.OK, found, f"compared: {', '.join(names)}"))
    return findings
