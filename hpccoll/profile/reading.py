"""Reads the recording of a job, or a trace of another tool, as a profile."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hpccoll.errors import UsageError
from hpccoll.profile import layout
from hpccoll.profile.allprof_trace import is_allprof
from hpccoll.profile.load import JobProfile, read_profile

TRACES: Final = {".goal": "a GOAL schedule", ".et": "Chakra execution traces, NAME.RANK.et"}


def is_readable(path: str) -> bool:
    """Whether a path is the directory of a recording, has the suffix of a trace (TRACES), or is one of liballprof."""
    file = Path(path)
    if file.is_dir():
        return any(file.glob(f"rank-*{layout.NAMES_SUFFIX}"))
    return file.suffix in TRACES or is_allprof(file)


def read_recording(path: str) -> JobProfile:
    """Return a job as a profile; `path` is the directory of its recording, or a trace of another tool.

    Traces are known by the suffixes of TRACES, and those of liballprof by their first lines.

    Raises:
        UsageError: there is no recording, or the trace cannot be read.
    """
    file = Path(path)
    if file.suffix == ".goal" and not file.is_dir():
        from hpccoll.profile.goal_reader import read_goal

        return read_goal(file)
    if file.suffix == ".et" and not file.is_dir():
        from hpccoll.profile.chakra_reader import read_chakra

        return read_chakra(file)
    if is_allprof(file):
        from hpccoll.profile.allprof_reader import read_allprof

        return read_allprof(file)
    if file.is_file():
        valid = ", ".join(f"{suffix} ({what})" for suffix, what in TRACES.items())
        raise UsageError(
            f"{path}: is neither a recording nor a trace of a known format; the formats are {valid}, and "
            "text of liballprof, MPI_NAME:BEGIN:ARGUMENTS:END"
        )
    return read_profile(path)
