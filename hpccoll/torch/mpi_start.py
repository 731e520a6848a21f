"""Initializes MPI within the timeout of `init_process_group`; imports no module that imports mpi4py.MPI."""

from __future__ import annotations

import platform
from datetime import timedelta
from typing import Final

from hpccoll.runtime import job
from hpccoll.runtime.start_limit import kill_after

REMEDY: Final = "call init_process_group or new_group on every rank of the group"


def initialize_mpi(timeout: timedelta) -> None:
    """Initialize MPI unless this was done before; kill this process with a message if it takes too long.

    MPI_Init waits for all ranks of the MPI job, and cannot be interrupted.
    """
    if job.is_mpi_initialized():
        return
    message = (
        f"init_process_group on {platform.node()}: MPI_Init has not connected the ranks of the MPI job within a "
        f"timeout of {timeout.total_seconds():g} s; {REMEDY}"
    )
    with kill_after(timeout.total_seconds(), message):
        job.load_mpi()
