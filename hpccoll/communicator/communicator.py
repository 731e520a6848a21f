"""`Communicator`, the public class: a group of MPI ranks with collectives, messages, groups and symmetric buffers.

Names, argument order and in-place defaults follow torch.distributed: an operation whose result has the shape of its
input works in place unless `out` is given.

The module of each algorithm states its cost in alpha (latency of a step), beta (time per byte sent) and gamma (time per
byte reduced).
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Self, SupportsIndex

import numpy as np

from hpccoll.communicator.data_movement import DataMovementMethods
from hpccoll.communicator.messages import MessageMethods
from hpccoll.communicator.prepared import PreparedMethods
from hpccoll.communicator.reductions import ReductionMethods
from hpccoll.communicator.scans import ScanMethods
from hpccoll.communicator.symmetric_buffers import SymmetricBufferMethods
from hpccoll.errors import UsageError
from hpccoll.runtime.agreement import wait_for_members
from hpccoll.runtime.call_state import WaitReason


class Communicator(
    ReductionMethods, ScanMethods, DataMovementMethods, PreparedMethods, MessageMethods, SymmetricBufferMethods
):
    """A group of MPI ranks whose messages are separate from those of other communicators.

    `rank` is the number of this rank, `size` the number of ranks, and `local_rank` the number of this rank among the
    communicator's ranks on its node.

    Args:
        comm: the MPI communicator, which the constructor duplicates (collective); None means MPI.COMM_WORLD.
        adopt: whether to use `comm` itself instead of a duplicate; `close` then frees `comm`.
        abort_on_error: whether all ranks of the job end if, while the communicator is open, this rank has an uncaught
            exception, or ends its program although other ranks wait for it.

    Raises:
        UnavailableError: mpi4py or the MPI library is not installed.
        LauncherError: the launcher belongs to another MPI library.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        # After an error on one rank, `close` would wait forever for the other ranks, because it is collective.
        if error is None:
            self.close()

    def new_group(self, ranks: Iterable[SupportsIndex]) -> Self | None:
        """Return a communicator of the given ranks, in their order; collective over the given ranks.

        On a rank that is not in `ranks`, the call is optional and returns None.

        Raises:
            UsageError: `ranks` is empty, has a rank twice, or has a rank that is not in this communicator.
        """
        self._require_open()
        members = _as_ranks(ranks, self.size)
        if self.rank not in members:
            return None
        with WaitReason(self._state, "new_group", peers=tuple(rank for rank in members if rank != self.rank)):
            wait_for_members(self._comm, members, self._engine.progress)
        group = self._comm.group.Incl(members)
        comm = self._comm.Create_group(group)
        communicator = type(self)(comm, adopt=True, abort_on_error=self._abort_on_error)
        group.Free()
        return communicator


def _as_ranks(ranks: Iterable[SupportsIndex], size: int) -> list[int]:
    """Return the ranks of a new group as a list; raise UsageError unless they are distinct ranks below `size`."""
    given = list(ranks)
    numbers = [hasattr(rank, "__index__") and not isinstance(rank, bool | np.bool_) for rank in given]
    members = [index(rank) if number else -1 for rank, number in zip(given, numbers, strict=True)]
    if len(set(members)) != len(members) or not all(0 <= rank < size for rank in members) or not members:
        raise UsageError(f"ranks {given} are not distinct ranks of 0..{size - 1}; name each member once")
    return members
