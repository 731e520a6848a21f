"""With HPCCOLL_TIMEOUT, records the collectives that the MPI library carries out, so that missing ranks are reported.

Without HPCCOLL_TIMEOUT, the collectives that hpccoll does not replace are mpi4py's own methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Final

from mpi4py import MPI

from hpccoll.failures.time_limit import read_timeout
from hpccoll.mpi4py.acceleration import find_acceleration

_STEMS: Final = """allgather allgatherv allreduce alltoall alltoallv alltoallw barrier bcast exscan gather gatherv
neighbor_allgather neighbor_allgatherv neighbor_alltoall neighbor_alltoallv neighbor_alltoallw reduce reduce_scatter
reduce_scatter_block scan scatter scatterv"""
COLLECTIVES: Final = frozenset(_STEMS.split())  # in lower case


def find_method(name: str) -> Callable[..., Any]:
    """Return mpi4py's own method `name` of MPI.Intracomm; with HPCCOLL_TIMEOUT, a wrapper that records its calls."""
    method: Callable[..., Any] = getattr(MPI.Intracomm, name)
    return method if read_timeout() is None else _watch(name, method)


def watch_inherited_methods(classes: Iterable[type]) -> None:
    """Wrap the blocking collectives that classes of communicators inherit from mpi4py, so that calls are recorded.

    Without HPCCOLL_TIMEOUT, this function does nothing.
    """
    if read_timeout() is None:
        return
    for cls in classes:
        mpi_class = next(base for base in cls.__mro__ if base.__module__ == "mpi4py.MPI")
        for name in filter(lambda name: name.lower() in COLLECTIVES, dir(mpi_class)):
            method = getattr(cls, name)
            if method is getattr(mpi_class, name):
                setattr(cls, name, _watch(name, method))


def _watch(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls `method`, mpi4py's collective `name`, and records the call in the flight recorder."""

    @wraps(method)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the method and record the call; the first recorded call makes the hpccoll communicator. Collective."""
        state = None if self == MPI.COMM_NULL else find_acceleration(self)
        if state is not None and state.communicator is None and not state.is_refused:
            state.open()
        if state is None or state.communicator is None or state.communicator._state.current is not None:
            return method(self, *args, **kwargs)
        state.watched += 1
        with state.communicator._state.call(f"MPI's {name}"):
            return method(self, *args, **kwargs)

    return watched
