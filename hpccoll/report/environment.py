"""The table of environments: what each run was, where, and in what runs differ from one another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpccoll.report.load import Run

_MOST_HOSTS = 12
NOTHING = "-"


@dataclass(frozen=True, slots=True)
class EnvironmentFact:
    """A line of the table: a name, one value a run, and whether they differ."""

    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether runs differ in it."""
        return len(set(self.values)) > 1


def collect_environment_facts(runs: Sequence[Run]) -> list[EnvironmentFact]:
    """Return what the run records say, a line a fact; versions that no run has are left out."""
    versions = dict.fromkeys(name for run in runs for name in run.versions)
    found = [
        EnvironmentFact("file", tuple(Path(run.file).name for run in runs)),
        EnvironmentFact("command", tuple(run.command or NOTHING for run in runs)),
        EnvironmentFact(
            "started", tuple(str(run.record.get("start_time") or NOTHING).replace("T", " ") for run in runs)
        ),
        EnvironmentFact("ranks", tuple(_format_field(run, "ranks") for run in runs)),
        EnvironmentFact("nodes", tuple(_format_field(run, "nodes") for run in runs)),
        EnvironmentFact("hosts", tuple(_format_hosts(run) for run in runs)),
        *(
            EnvironmentFact(f"SLURM {name.replace('_', ' ')}", tuple(_format_slurm_value(run, name) for run in runs))
            for name in _list_slurm_keys(runs)
        ),
        EnvironmentFact("cores a rank", tuple(_format_cores(run) for run in runs)),
        EnvironmentFact("more ranks than cores", tuple(_format_flag(run, "oversubscribed") for run in runs)),
        EnvironmentFact("devices", tuple(_format_devices(run) for run in runs)),
        *(EnvironmentFact(name, tuple(str(run.versions.get(name) or NOTHING) for run in runs)) for name in versions),
        EnvironmentFact("commit", tuple(_format_field(run, "commit") for run in runs)),
    ]
    return [fact for fact in found if any(value != NOTHING for value in fact.values)]


def _list_slurm_keys(runs: Sequence[Run]) -> list[str]:
    """Return what some run says of its SLURM job."""
    return list(dict.fromkeys(name for run in runs for name in _get_slurm_job(run)))


def _get_slurm_job(run: Run) -> Mapping[str, Any]:
    found = run.record.get("slurm")
    return found if isinstance(found, Mapping) else {}


def _format_slurm_value(run: Run, name: str) -> str:
    value = _get_slurm_job(run).get(name)
    return NOTHING if value is None else str(value)


def _format_field(run: Run, key: str) -> str:
    value = run.record.get(key)
    return NOTHING if value is None else str(value)


def _format_flag(run: Run, key: str) -> str:
    value = run.record.get(key)
    return NOTHING if value is None else "yes" if value else "no"


def _format_hosts(run: Run) -> str:
    """Return the hosts with the number of their ranks: `node1 (2), node2 (2)`."""
    found = [f"{host} ({ranks})" for host, ranks in Counter(run.hosts).items()]
    more = len(found) - _MOST_HOSTS
    return ", ".join(found[:_MOST_HOSTS]) + (f" and {more} more" if more > 0 else "") or NOTHING


def _format_cores(run: Run) -> str:
    counts = Counter(run.cores)
    if len(counts) == 1:
        return str(next(iter(counts)))
    return (
        ", ".join(f"{cores} on {ranks} rank{'s' * (ranks > 1)}" for cores, ranks in sorted(counts.items())) or NOTHING
    )


def _format_devices(run: Run) -> str:
    found = run.record.get("devices")
    names = Counter(str(name) for name in found) if isinstance(found, list) else Counter()
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in names.items()) or NOTHING
