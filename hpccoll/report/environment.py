"""The report's table of environments: host names, versions and settings, with one column per run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpccoll.report.load import RecordedRun
from hpccoll.report.number_format import format_seconds
from hpccoll.units import format_list, format_size

_MAX_HOSTS = 12
MISSING = "-"


@dataclass(frozen=True, slots=True)
class EnvironmentRow:
    """A row of the report's table of environments: the name of a setting, and its value in each run."""

    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether the value differs between runs."""
        return len(set(self.values)) > 1


def list_environment_rows(runs: Sequence[RecordedRun]) -> list[EnvironmentRow]:
    """Return the rows of the report's table of environments, with one value per run; empty rows are left out."""
    flags = defaultdict(lambda: MISSING, {"True": "yes", "False": "no"})
    versions = dict.fromkeys(name for run in runs for name in run.versions)
    slurm_keys = dict.fromkeys(key for run in runs for key in _get_slurm_job(run))
    columns = {
        "file": [Path(run.file).name for run in runs],
        "command": [run.command or MISSING for run in runs],
        "started": [str(run.record.get("start_time") or MISSING).replace("T", " ") for run in runs],
        "ranks": [_format_field(run.record, "ranks") for run in runs],
        "nodes": [_format_field(run.record, "nodes") for run in runs],
        "hosts": [_format_hosts(run) for run in runs],
    }
    columns |= {
        f"SLURM {key.replace('_', ' ')}": [_format_field(_get_slurm_job(run), key) for run in runs]
        for key in slurm_keys
    }
    columns |= {
        "cores per rank": [_format_cores(run) for run in runs],
        "more ranks than cores": [flags[_format_field(run.record, "oversubscribed")] for run in runs],
        "measured limit": [_format_limit(run.record) for run in runs],
        "devices": [_format_devices(run) for run in runs],
    }
    columns |= {name: [str(run.versions.get(name) or MISSING) for run in runs] for name in versions}
    columns["commit"] = [_format_field(run.record, "commit") for run in runs]
    rows = [EnvironmentRow(name, tuple(values)) for name, values in columns.items()]
    return [row for row in rows if any(value != MISSING for value in row.values)]


def _get_slurm_job(run: RecordedRun) -> Mapping[str, Any]:
    """Return the fields of the run's SLURM job, such as `job_id`; empty if the run did not use SLURM."""
    job = run.record.get("slurm")
    return job if isinstance(job, Mapping) else {}


def _format_field(record: Mapping[str, Any], key: str) -> str:
    """Return the value of a record's field `key` as a string; `-` if the field is missing or null."""
    value = record.get(key)
    return MISSING if value is None else str(value)


def _format_hosts(run: RecordedRun) -> str:
    """Return the hosts with their numbers of ranks, such as `node1 (2), node2 (2)`."""
    hosts = [f"{host} ({ranks})" for host, ranks in Counter(run.hosts).items()]
    return format_list(hosts, _MAX_HOSTS) or MISSING


def _format_cores(run: RecordedRun) -> str:
    """Return the number of cores per rank, such as `2`, or `1 on 3 ranks, 2 on 1 rank` if ranks differ."""
    counts = Counter(run.cores)
    if len(counts) == 1:
        return str(next(iter(counts)))
    parts = [f"{cores} on {ranks} rank{'s' * (ranks > 1)}" for cores, ranks in sorted(counts.items())]
    return ", ".join(parts) or MISSING


def _format_limit(record: Mapping[str, Any]) -> str:
    """Return the measured limit of memory or links, such as `64 MiB copied by each rank in 6.5 ms`."""
    us, nbytes = record.get("limit_us"), record.get("limit_nbytes")
    if us is None or nbytes is None:
        return MISSING
    action = "copied by each rank" if record.get("nodes") == 1 else "exchanged by each node"
    return f"{format_size(int(nbytes))} {action} in {format_seconds(float(us) * 1e-6)}"


def _format_devices(run: RecordedRun) -> str:
    """Return the GPUs' names with their counts, such as `2 x NVIDIA H100`."""
    devices = run.record.get("devices")
    names = Counter(str(name) for name in devices) if isinstance(devices, list) else Counter()
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in names.items()) or MISSING
