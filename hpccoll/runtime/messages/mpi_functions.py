"""Looks up, by name and without mpi.h, the functions of the loaded MPI library that native code calls."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NoReturn

from mpi4py import MPI

from hpccoll.errors import DEBUG_HINT, CommunicationError, UnavailableError
from hpccoll.native import MpiFunctions
from hpccoll.runtime.backoff import POLLED_TAG
from hpccoll.runtime.work import explain_mpi_error

_NAMES: Final = "MPI_Isend", "MPI_Irecv", "MPI_Isend_c", "MPI_Irecv_c", "MPI_Test", "MPI_Iprobe", "MPI_Get_count"
_SHORT_MESSAGE: Final = -1  # SHORT_MESSAGE of native/messages.h


def _raise_error(name: str, code: int) -> NoReturn:
    """Raise the error for a failed collective; `code` is MPI's error code, or _SHORT_MESSAGE."""
    if code == _SHORT_MESSAGE:
        raise CommunicationError(
            f"{name} failed: a message of another rank is shorter than expected; do the sizes agree on all ranks? "
            f"{DEBUG_HINT}"
        )
    raise explain_mpi_error(MPI.Exception(code), name) from None


@cache
def get_mpi_functions(raise_error: Callable[[str, int], object] = _raise_error) -> MpiFunctions:
    """Return the functions of the MPI library that mpi4py has loaded, as the extension's `MpiFunctions`.

    Args:
        raise_error: raises the error for the name of a collective and an error code of MPI.

    Raises:
        UnavailableError: the MPI library does not export the functions.
    """
    library = ctypes.CDLL(MPI.__file__)  # its symbols include those of the MPI library
    addresses = [_find_address(library, name) for name in _NAMES]
    if not all(addresses[:2] + addresses[4:]):
        raise UnavailableError("the MPI library that mpi4py uses exports no MPI_Isend; install mpi4py again")
    return MpiFunctions(
        addresses,
        get_handle(MPI.BYTE),
        get_handle(MPI.COMM_WORLD),
        MPI.ANY_SOURCE,
        POLLED_TAG,
        _find_source_offset(),
        MPI._sizeof(MPI.Comm) == ctypes.sizeof(ctypes.c_void_p),  # noqa: SLF001 - documented by mpi4py
        MPI.Query_thread() >= MPI.THREAD_MULTIPLE,
        raise_error,
    )


@cache
def find_function(name: str) -> int:
    """Return the address of a function of the MPI library, such as "MPI_Bcast"; 0 if the library lacks it."""
    return _find_address(ctypes.CDLL(MPI.__file__), name)


def _find_source_offset() -> int:
    """Return the byte offset of the sender's rank in this MPI library's MPI_Status."""
    rank, status = 0x12345678, MPI.Status()
    status.Set_source(rank)
    content = ctypes.string_at(MPI._addressof(status), MPI._sizeof(status))  # noqa: SLF001 - documented by mpi4py
    return content.index(rank.to_bytes(4, sys.byteorder))


def get_handle(mpi_object: Any) -> int:
    """Return the handle of an object of mpi4py: four bytes in MPICH, the bits of a pointer in Open MPI."""
    return int(MPI._handleof(mpi_object)) % 2**64  # noqa: SLF001 - documented by mpi4py


def _find_address(library: ctypes.CDLL, name: str) -> int:
    """Return the address of a function; 0 if the library lacks it."""
    function = getattr(library, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0
