"""The interface of executables, which carry out a collective on given buffers.

Six modules define a kind of executable each: `messages.executable` (messages in device memory),
`messages.native_executable` (messages), `shared_memory.executable` (shared
memory within a node), `hierarchical.executable` (shared memory and messages), `cuda.executable` (device memory) and
`messages.mpi_collectives` (the MPI library's own collectives).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, Protocol

from hpccoll.errors import UsageError
from hpccoll.runtime.arrays import BoundCall

if TYPE_CHECKING:
    from hpccoll.plan import Plan


class Executable(Protocol):
    """A collective on fixed buffers: it can run any number of times, and must be freed before MPI is finalized."""

    @property
    def plan(self) -> Plan | None:
        """The plan that a call runs; None for the MPI library's own collectives."""

    @property
    def live(self) -> bool:
        """Whether the executable can still run: neither it nor a symmetric buffer that it accesses was freed."""

    def __call__(self) -> object:
        """Run the collective once; block until this rank's part of it is complete."""

    @property
    def run(self) -> Callable[[], object]:
        """The function that a call of the executable calls now; calling the function takes 0.05 us less."""

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """A tuple of the functions that a run calls, for timing one by one; empty before the first binding.

        If the functions of a run overlap in time, the only item of the tuple is the executable itself.
        """

    def free(self) -> None:
        """Release the requests and memory of the executable, which cannot run afterwards."""

    def abandon(self) -> None:
        """Refuse later runs and release nothing; for a forked child process, in which MPI cannot be used."""


def raise_freed() -> NoReturn:
    """Raise the UsageError for a call of an executable that was freed."""
    raise UsageError(
        "this prepared operation was freed, its communicator was closed, or this process is a fork, where MPI cannot "
        "be used; prepare it again while the communicator is open, in the communicator's own process"
    )
