"""The record of kind `run`: the command, the software and the ranks of one run.

A `run` record contains only the fields that this module declares. This module does not read the environment, so no
undeclared environment variable can leak into a result file.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from hpccoll.errors import UsageError
from hpccoll.records.record import Amount, Natural, Positive, Record, about


class Versions(Struct, frozen=True, forbid_unknown_fields=True):
    """The versions of hpccoll, Python and the packages that affect a run; None for packages that are not installed."""

    hpccoll: str | None
    python: str | None
    numpy: str | None
    mpi4py: str | None
    mpi: str | None
    mpi_wheel: str | None
    torch: str | None
    cupy: str | None

    @classmethod
    def make(cls, versions: Mapping[str, str | None]) -> Versions:
        """Return `versions`, a mapping from package names to versions, as an object; missing packages have None.

        Raises UsageError if the mapping names a package that is no field of this class.
        """
        names = cls.__struct_fields__
        unknown = sorted(set(versions) - set(names))
        if unknown:
            raise UsageError(f"a run record has no version of {', '.join(unknown)}; it has those of {', '.join(names)}")
        return cls(**{name: versions.get(name) for name in names})


class SlurmJob(Struct, frozen=True):
    """The SLURM job that a run belongs to: number, name, partition, nodes, array, array task and count of restarts.

    A field is None where SLURM sets no value.
    """

    job_id: str | None = None
    job_name: str | None = None
    partition: str | None = None
    nodelist: str | None = None
    array_job_id: str | None = None
    array_task_id: str | None = None
    restarts: str | None = None


class RunRecord(Record, frozen=True, kw_only=True):
    """Command, software and ranks of a run, written before its measurements; a resumed run has several such records."""

    kind: ClassVar[str] = "run"

    command: str
    versions: Versions
    hosts: Annotated[tuple[str, ...], about("Host name of each rank.")]
    cores: Annotated[tuple[Positive, ...], about("Cores that each rank may run on.")]
    ranks: Positive
    nodes: Annotated[Positive, about("Number of nodes: sets of ranks that can share memory.")]
    devices: Annotated[tuple[str, ...], about("Names of the accelerators that the ranks can use.")]
    oversubscribed: bool
    core_share: Annotated[
        Amount | None,
        about("Least share of a core that a rank got while all ranks computed; null if it was not measured."),
    ] = None
    clock_residual_us: Annotated[
        Amount | None,
        about("Largest measured error of any rank's clock after synchronizing; null if clocks were not aligned."),
    ]
    clock_bound_us: Annotated[
        Amount | None, about("The most that any rank's clock can be wrong by, however unevenly messages travel.")
    ] = None
    clock: Annotated[str | None, about("Synchronization scheme of the clocks, as in `--clock`.")] = None
    clock_sync_s: Annotated[Amount | None, about("Time that synchronizing the clocks took.")] = None
    slurm: Annotated[SlurmJob | None, about("null outside SLURM.")] = None  # optional: older files lack the field
    sizes: Annotated[tuple[Natural, ...] | None, about("Message sizes asked for, in bytes; null without sizes.")] = None
    limit_us: Annotated[
        Amount | None,
        about("Shortest time in which the ranks of one node all copied limit_nbytes bytes, or nodes exchanged them."),
    ] = None
    limit_nbytes: Annotated[Natural | None, about("null if no limit was measured.")] = None
    limit_unequal: Annotated[
        bool | None, about("Whether some nodes exchanged limit_nbytes bytes much faster; null if unknown.")
    ] = None
    commit: str | None
    start_time: Annotated[str, Meta(extra_json_schema={"format": "date-time"})]

    @classmethod
    def make(
        cls,
        *,
        versions: Mapping[str, str | None],
        start_time: datetime,
        slurm: Mapping[str, str] | None = None,
        clock_residual_us: float | None = None,
        **fields: Any,
    ) -> RunRecord:
        """Return the record of a run.

        Args:
            versions: versions by package; packages that are not named count as not installed.
            start_time: start of the run, with a time zone; stored in UTC.
            slurm: fields of `SlurmJob`; None or empty outside SLURM.
            clock_residual_us: the field of this name; None if clocks were not aligned.
            fields: the other fields, with the types that this class declares.

        Raises:
            UsageError: a package is unknown, or the start time has no time zone.
        """
        if start_time.tzinfo is None:
            raise UsageError(f"start time {start_time.isoformat()} has no time zone; pass datetime.now(UTC)")
        return cls(
            versions=Versions.make(versions),
            clock_residual_us=clock_residual_us,
            slurm=SlurmJob(**slurm) if slurm else None,
            start_time=start_time.astimezone(UTC).isoformat(timespec="seconds"),
            **fields,
        )
