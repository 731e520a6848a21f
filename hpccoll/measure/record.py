"""The records of schema hpccoll/1: what a run was, and what each of its rows measured.

A record is written as one JSON object a line (journal.py), described by JSON Schema (schema.py), and read back for
tables, plots and --resume. What a run says about its machine is what it was handed field by field: nothing here reads
the environment, so nothing that happens to be in it can leak into a result that is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from hpccoll.errors import UsageError
from hpccoll.measure.bandwidth import compute_algbw, compute_busbw, find_timed_operation
from hpccoll.measure.statistics import TimeSummary, summarize
from hpccoll.measure.stopping import StopReason

SCHEMA = "hpccoll/1"
VERSIONS = ("hpccoll", "python", "numpy", "mpi4py", "mpi", "mpi_wheel", "torch", "cupy")
# What SLURM says about a job, by the name in the record; an allow-list like VERSIONS.
SLURM = {
    "job_id": "SLURM_JOB_ID",
    "job_name": "SLURM_JOB_NAME",
    "partition": "SLURM_JOB_PARTITION",
    "nodelist": "SLURM_JOB_NODELIST",
    "array_job_id": "SLURM_ARRAY_JOB_ID",
    "array_task_id": "SLURM_ARRAY_TASK_ID",
    "restarts": "SLURM_RESTART_COUNT",
}
Staging: TypeAlias = Literal["direct", "pinned"]


class CaseKey(NamedTuple):
    """What makes two rows the same measurement, for --resume."""

    op: str
    engine: str
    algorithm: str | None
    buffer: str
    in_place: bool
    nbytes: int
    dtype: str
    redop: str | None
    root: int | None
    ranks: int


@dataclass(frozen=True, slots=True)
class Row:
    """What is measured, in the record's order; `nbytes` is nccl-tests' S, `count` the elements a rank.

    `algorithm` is null where an engine does not say which it takes, `redop` where nothing is reduced, `root` where
    there is none.
    """

    op: str
    engine: str
    algorithm: str | None
    buffer: str
    in_place: bool
    nbytes: int
    count: int
    dtype: str
    redop: str | None
    root: int | None
    ranks: int
    nodes: int

    @property
    def key(self) -> CaseKey:
        """What --resume looks for; a row that was measured by another run counts as well."""
        return CaseKey(*(getattr(self, name) for name in CaseKey._fields))


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """A row and what came out.

    Args:
        row: what was measured.
        samples_us: each iteration's maximum over ranks, in microseconds, in the order measured; kept to nanoseconds.
        stop: why there are not more of them.
        wrong: elements found wrong; None where the results were not checked.
        bound_us: the model's lower bound, or None.
        staging: how device memory reached MPI: as it is, or through pinned host memory; None for host memory.
        stream_us: what events on the stream measured, as `samples_us`; empty for host memory.

    Raises:
        UsageError: no samples, impossible ones, or an unknown operation.
    """

    row: Row
    samples_us: tuple[float, ...]
    stop: StopReason
    wrong: int | None
    bound_us: float | None = None
    staging: Staging | None = None
    stream_us: tuple[float, ...] = ()
    time_us: TimeSummary = field(init=False)

    def __post_init__(self) -> None:
        # The summary is taken of what is written, so that whoever reads the samples finds the same numbers.
        rounded = tuple(round(float(sample), 3) for sample in self.samples_us)
        object.__setattr__(self, "samples_us", rounded)
        object.__setattr__(self, "stream_us", tuple(round(float(sample), 3) for sample in self.stream_us))
        object.__setattr__(self, "time_us", summarize(rounded))
        find_timed_operation(self.row.op)

    @property
    def algbw(self) -> float:
        """S over the median, in GB/s."""
        return compute_algbw(self.row.nbytes, self.time_us.p50 * 1e-6)

    @property
    def busbw(self) -> float:
        """Bus bandwidth at the median, in GB/s."""
        return compute_busbw(
            find_timed_operation(self.row.op), self.row.nbytes, self.time_us.p50 * 1e-6, self.row.ranks
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the record as it is written, in the order of the contract; `staging` and what follows extend it."""
        head: dict[str, Any] = {"schema": SCHEMA, "kind": "collective", **asdict(self.row)}
        return head | {
            "iterations": len(self.samples_us),
            "stop": str(self.stop),
            "time_us": asdict(self.time_us),
            "algbw_GBps": self.algbw,
            "busbw_GBps": self.busbw,
            "wrong": self.wrong,
            "bound_us": self.bound_us,
            "samples_us": list(self.samples_us),
            "staging": self.staging,
            "stream_us": list(self.stream_us),
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> CollectiveRecord:
        """Return the record that `as_dict` wrote; keys that are not known here are left out.

        Raises:
            UsageError: a key is missing, or a value is none that is ever written.
        """
        try:
            row = Row(**{known.name: found[known.name] for known in fields(Row)})
            rest = {name: found[name] for name in ("wrong", "bound_us")}
            rest |= {"staging": found.get("staging"), "stream_us": tuple(found.get("stream_us", ()))}
            return cls(row, tuple(found["samples_us"]), StopReason(found["stop"]), **rest)
        except KeyError as error:
            raise UsageError(f"a record of kind collective lacks {error}; see `hpccoll schema`") from error
        except (TypeError, ValueError) as error:
            raise UsageError(f"a record of kind collective is damaged: {error}; measure that row again") from error


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run was and where: the first record of its file.

    Args:
        command: the command line.
        versions: package to version or None, of the packages in VERSIONS and no others.
        hosts: host name of each rank.
        cores: cores that each rank may run on.
        ranks: how many.
        nodes: sets of ranks that can share memory.
        devices: names of the accelerators in use; empty where there are none.
        oversubscribed: whether some node has more ranks than cores.
        commit: of the source that ran, or None where it is not known.
        start_time: when the run began, with its time zone.
        clock_residual_us: how far the ranks' clocks were apart after they were aligned; None where they were not.
        slurm: the job's id, nodes and partition, by the names in SLURM; empty outside SLURM.

    Raises:
        UsageError: a version of something that is not in VERSIONS, or a start time without a zone.
    """

    command: str
    versions: Mapping[str, str | None]
    hosts: tuple[str, ...]
    cores: tuple[int, ...]
    ranks: int
    nodes: int
    devices: tuple[str, ...]
    oversubscribed: bool
    commit: str | None
    start_time: datetime
    clock_residual_us: float | None = None
    slurm: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.versions) - set(VERSIONS))
        if unknown:
            raise UsageError(f"a run record takes no version of {', '.join(unknown)}; only of {', '.join(VERSIONS)}")
        if self.start_time.tzinfo is None:
            raise UsageError(f"start time {self.start_time.isoformat()} has no time zone; pass datetime.now(UTC)")

    def as_dict(self) -> dict[str, Any]:
        """Return the record as it is written."""
        return {
            "schema": SCHEMA,
            "kind": "run",
            "command": self.command,
            "versions": {name: self.versions.get(name) for name in VERSIONS},
            "hosts": list(self.hosts),
            "cores": list(self.cores),
            "ranks": self.ranks,
            "nodes": self.nodes,
            "devices": list(self.devices),
            "oversubscribed": self.oversubscribed,
            "clock_residual_us": self.clock_residual_us,
            "slurm": {name: self.slurm.get(name) for name in SLURM} if self.slurm else None,
            "commit": self.commit,
            "start_time": self.start_time.astimezone(UTC).isoformat(timespec="seconds"),
        }
