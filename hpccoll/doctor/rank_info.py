"""What one rank of a job says of itself, and whether the ranks agree."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import format_list, ranges

AREA = "versions"


@dataclass(frozen=True, slots=True)
class Rank:
    """Facts of one rank: its place, the cores that it may run on, and the versions that it loaded."""

    rank: int
    host: str
    cores: tuple[int, ...]
    versions: Mapping[str, str | None]


def describe_this_rank(rank: int, versions: Mapping[str, str | None]) -> Rank:
    """Return the facts of this process."""
    return Rank(rank, platform.node(), tuple(sorted(os.sched_getaffinity(0))), dict(versions))


def check_versions(ranks: Sequence[Rank]) -> list[Finding]:
    """Return a finding for each package of which the ranks have different versions."""
    found = []
    for name in dict.fromkeys(name for rank in ranks for name in rank.versions):
        owners: dict[str, list[Rank]] = {}
        for rank in ranks:
            owners.setdefault(rank.versions.get(name) or "not installed", []).append(rank)
        if len(owners) == 1:
            continue
        told = "; ".join(
            f"{version}: ranks {ranges([rank.rank for rank in those])} on "
            f"{format_list(list(dict.fromkeys(rank.host for rank in those)))}"
            for version, those in owners.items()
        )
        remedy = (
            "use one environment on all hosts: on a shared file system, or installed alike and loaded in the script"
        )
        found.append(Finding(AREA, Severity.PROBLEM, f"the ranks have different versions of {name}", told, remedy))
    if not found and len(ranks) > 1:
        names = [name for name, version in ranks[0].versions.items() if version]
        hosts = len({rank.host for rank in ranks})
        told = f"{len(ranks)} ranks on {hosts} host{'s' * (hosts > 1)} have the same versions"
        found.append(Finding(AREA, Severity.OK, told, f"compared: {', '.join(names)}"))
    return found
