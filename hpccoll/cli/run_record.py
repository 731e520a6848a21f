"""Makes the record of kind `run` (command, versions, hosts), the first line of a result file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hpccoll.cli.output import open_json_lines

if TYPE_CHECKING:
    from hpccoll.measure.hardware_limit import HardwareLimit
    from hpccoll.measure.results.result_file import RecordWriter
    from hpccoll.records import Record

# Maps fields of `SlurmJob` to SLURM variables; no other SLURM variable is recorded.
SLURM_VARIABLES = {
    "job_id": "SLURM_JOB_ID",
    "job_name": "SLURM_JOB_NAME",
    "partition": "SLURM_JOB_PARTITION",
    "nodelist": "SLURM_JOB_NODELIST",
    "array_job_id": "SLURM_ARRAY_JOB_ID",
    "array_task_id": "SLURM_ARRAY_TASK_ID",
    "restarts": "SLURM_RESTART_COUNT",
}


def make_run_record(
    world: Any,
    devices: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
    limit: HardwareLimit | None = None,
    fields: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the record of kind `run` as a dict: command, versions, hosts. Collective over the communicator `world`.

    `devices` are the names of the accelerators; if `devices` is None, this function asks the CUDA driver. `sizes` are
    the message sizes to measure, in bytes, and `limit` the measured speed of memory or of links between nodes. `fields`
    are further fields of the record, such as those that describe the global clock.
    """
    from hpccoll.runtime import job
    from hpccoll.runtime.cuda import probe as cuda_probe

    layout = job.detect_layout(world)
    return _make_record(
        versions=job.collect_versions(),
        hosts=layout.hosts,
        cores=layout.cores,
        ranks=layout.ranks,
        nodes=layout.nodes,
        devices=cuda_probe.list_device_names() if devices is None else devices,
        oversubscribed=layout.oversubscribed,
        sizes=None if sizes is None else tuple(sizes),
        limit_us=None if limit is None else round(limit.us, 3),
        limit_nbytes=None if limit is None else limit.nbytes,
        limit_unequal=None if limit is None else limit.unequal,
        commit=job.find_commit(),
        **(fields or {}),
    )


def make_serial_run_record() -> dict[str, Any]:
    """Return the record of kind `run`, as a dict, of a command that runs in one process; does not load MPI."""
    import platform

    import numpy as np

    from hpccoll import __version__

    versions = {"hpccoll": __version__, "python": platform.python_version(), "numpy": np.__version__}
    hosts, cores = (platform.node(),), (len(os.sched_getaffinity(0)),)
    fields: dict[str, Any] = {"ranks": 1, "nodes": 1, "devices": (), "oversubscribed": False, "commit": None}
    return _make_record(versions=versions, hosts=hosts, cores=cores, **fields)


@contextmanager
def open_serial_output(json_file: str | None) -> Iterator[RecordWriter]:
    """Open the file of --json for a command that runs in one process, and write the record of kind `run` first.

    Yields the writer of further records. If `json_file` is None, nothing is written.
    """
    with open_json_lines(json_file) as lines:
        if json_file is not None:
            lines.write(make_serial_run_record())
        yield lines


def write_serial_records(json_file: str | None, records: Iterable[Record]) -> None:
    """Write the record of kind `run`, then `records`, to the file of --json; nothing if `json_file` is None.

    The function is for commands that run in one process, without MPI.
    """
    with open_serial_output(json_file) as lines:
        for record in records:
            lines.write(record.as_dict())


def _make_record(**fields: Any) -> dict[str, Any]:
    """Return the record of kind `run`, as a dict, with `fields`, command line, current time and SLURM job."""
    from hpccoll.records import RunRecord

    command = " ".join(["hpccoll", *sys.argv[1:]])
    slurm = {name: os.environ[variable] for name, variable in SLURM_VARIABLES.items() if variable in os.environ}
    return RunRecord.make(command=command, start_time=datetime.now(UTC), slurm=slurm, **fields).as_dict()
