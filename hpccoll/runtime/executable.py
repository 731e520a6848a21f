"""The interface of executables, which carry out a collective on given buffers.

There are five kinds: messages (`messages.executable`), shared memory within a node (`shared_memory.executable`), shared
memory and messages (`hierarchical.executable`), device memory (`cuda.executable`) and the MPI library's own collectives
(`messages.mpi_collectives`).
"""

from __future__ import annotations

from typing import NoReturn, Protocol

from hpccoll.errors import UsageError
from hpccoll.plan import Plan
from hpccoll.runtime.arrays import BoundCall
from hpccoll.runtime.progress import InFlight


class Executable(Protocol):
    """A collective bound to buffers: it can be called any number of times, and must be freed before MPI is finalized.

    `plan` is None for the MPI library's own collectives; `live` is false once the executable, or one of the symmetric
    buffers that it accesses, was freed.
    """

    @property
    def plan(self) -> Plan | None:
        """The plan that runs."""

    @property
    def live(self) -> bool:
        """Whether the executable can still run."""

    def __call__(self) -> object:
        """Run the collective once; block until this rank's part is complete."""

    def start(self) -> InFlight | None:
        """Begin the collective and return the operation in flight; None if it is complete or on a device's stream."""

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The calls of a run, to time one by one; only the executable if its calls overlap, none before it is bound."""

    def free(self) -> None:
        """Release requests and memory; afterwards the executable cannot run."""


def raise_freed() -> NoReturn:
    """Raise UsageError: an executable was called after it was freed."""
    raise UsageError("this prepared operation was freed, or its communicator closed; prepare it again")
