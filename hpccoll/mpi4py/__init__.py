"""Unmodified mpi4py programs over hpccoll: `mpirun -n 4 python -m hpccoll.mpi4py script.py`.

With `from hpccoll.mpi4py import MPI`, a program's collectives run over hpccoll; with `wrap(comm)`, those of `comm`.
Start reading in `communicators`, then `buffer_collectives` and `object_collectives`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpccoll.mpi4py.configuration import configure

if TYPE_CHECKING:
    from mpi4py import MPI as MPI

__all__ = ["MPI", "configure", "wrap"]


def wrap(comm: Any) -> Any:
    """Return a communicator of the same ranks and handle as mpi4py's `comm`, whose collectives run over hpccoll.

    All ranks of `comm` must use the returned communicator for their collectives, or none. With HPCCOLL_MPI4PY=off the
    result is `comm` itself.

    Example:
        >>> from mpi4py import MPI
        >>> from hpccoll.mpi4py import wrap
        >>> isinstance(wrap(MPI.COMM_WORLD), MPI.Intracomm)
        True
    """
    from hpccoll.mpi4py.call_summary import count_calls, is_counting
    from hpccoll.mpi4py.communicators import accelerate, list_intracommunicator_classes
    from hpccoll.mpi4py.configuration import get_configuration

    if not get_configuration().runs_collectives:
        return comm
    if is_counting():
        count_calls(list_intracommunicator_classes())
    return accelerate(comm)


def __getattr__(name: str) -> Any:
    """Import mpi4py's MPI at its first use, because the import initializes MPI."""
    if name == "MPI":
        from hpccoll.mpi4py.installation import load_accelerated_mpi

        return load_accelerated_mpi()
    raise AttributeError(f"module 'hpccoll.mpi4py' has no attribute {name!r}")
