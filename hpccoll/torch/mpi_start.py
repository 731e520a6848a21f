"""Initializes MPI within a timeout; imports no module that imports mpi4py.MPI."""

from __future__ import annotations

import platform
from datetime import timedelta
from typing import Final

from hpccoll.processes.start_limit import kill_after
from hpccoll.runtime import job

INIT: Final = "init_process_group"
LAUNCHER: Final = "python -m hpccoll.torch"
REMEDIES: Final = {
    INIT: "call init_process_group or new_group on every rank of the group",
    LAUNCHER: f"start every rank with {LAUNCHER}, or allow more time with --timeout SECONDS",
}


def initialize_mpi(timeout: timedelta, caller: str = INIT) -> None:
    """Initialize MPI unless it is initialized; if this takes longer than `timeout`, kill this process with a message.

    MPI_Init waits for all ranks of the MPI job, and cannot be interrupted. `caller` is the function that the user has
    called, a key of `REMEDIES`, for the message.
    """
    if job.is_mpi_initialized():
        return
    message = (
        f"{caller} on {platform.node()}: MPI_Init has not connected the ranks of the MPI job within a "
        f"timeout of {timeout.total_seconds():g} s; {REMEDIES[caller]}"
    )
    with kill_after(timeout.total_seconds(), message):
        job.load_mpi()
