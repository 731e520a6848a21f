"""Makes and closes the communicators of groups of torch.distributed."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

from hpccoll.communicator import Communicator
from hpccoll.runtime import job
from hpccoll.runtime.agreement import wait_for_members
from hpccoll.runtime.backoff import Backoff
from hpccoll.runtime.progress import get_progress

if TYPE_CHECKING:
    from mpi4py import MPI

MOST_TAGS: Final = 32768  # MPI guarantees tags up to 32767
CLOSE_LIMIT_S: Final = 10.0


def open_communicator(ranks: Sequence[int], name: str) -> Communicator:
    """Return a communicator of some ranks of the MPI job, in their order; collective over these ranks.

    The first call of a process must have all ranks of the job. Operations in flight advance while this waits.

    Args:
        ranks: ranks of MPI.COMM_WORLD.
        name: torch's name of the group, equal on all its ranks.
    """
    own_world = get_own_world()
    wait_for_members(own_world, ranks, get_progress())
    group = own_world.group.Incl(ranks)
    comm = own_world.Create_group(group, tag=zlib.crc32(name.encode()) % MOST_TAGS)
    group.Free()
    return Communicator(comm, adopt=True, mixed_forms=True)


def close_communicator(comm: Communicator) -> None:
    """Free a communicator if all its ranks call this within 10 seconds; collective.

    If a rank does not call this in time, or if an operation of the communicator is still in flight, the communicator
    stays open until the process ends. A program that destroys its groups on some ranks only therefore ends.
    """
    meeting = comm.mpi.Ibarrier()
    deadline, backoff, progress = time.monotonic() + CLOSE_LIMIT_S, Backoff(spins=True, sleeps=False), get_progress()
    while not meeting.Test():
        if time.monotonic() > deadline:
            return
        progress.advance()
        backoff.pause()
    comm.close()


@cache
def get_own_world() -> MPI.Intracomm:
    """Return this process's duplicate of MPI.COMM_WORLD for messages of this package; the first call is collective."""
    return job.get_world().Dup()
