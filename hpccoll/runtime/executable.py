"""The base class of executables, which carry out a collective on given buffers.

Six modules define a kind of executable each: `messages.executable` (messages in device memory),
`messages.native_executable` (messages), `shared_memory.executable` (shared memory within a node),
`two_level.executable` (shared memory and messages), `cuda.executable` (device memory) and `messages.mpi_collectives`
(the MPI library's own collectives).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from hpccoll.arrays import BoundCall
from hpccoll.errors import UsageError

if TYPE_CHECKING:
    from hpccoll.plan import Plan


class Executable(ABC):
    """A collective on fixed buffers: it can run any number of times, and must be freed before MPI is finalized.

    `live` tells whether the executable can still run: neither the executable nor a symmetric buffer that it accesses
    was freed, and this process is not a forked child.
    """

    __slots__ = ("__weakref__", "live")

    def __init__(self) -> None:
        self.live = True

    @property
    def plan(self) -> Plan | None:
        """The plan that a run executes; None for the MPI library's own collectives."""
        return None

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The functions that a run calls, for timing one by one; only this executable if they overlap in time."""
        return (self,)

    @abstractmethod
    def run(self) -> None:
        """Run the collective once, and block until this rank's part of it is complete."""

    def __call__(self) -> None:
        """Run the collective once."""
        self.run()

    def free(self) -> None:
        """Release the requests and memory of the executable; a later run raises UsageError."""
        self.live = False

    def _require_live(self) -> None:
        """Raise UsageError if the executable was freed."""
        if not self.live:
            raise UsageError(
                "this prepared operation was freed, its communicator was closed, or this process is a fork, where MPI "
                "cannot be used; prepare it again while the communicator is open, in the communicator's own process"
            )
