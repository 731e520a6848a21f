"""Collectives and messages of Python objects, which travel pickled."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hpccoll.communicator.array_types import Rank
from hpccoll.communicator.messages import MessageMethods
from hpccoll.errors import UsageError
from hpccoll.runtime.messages.objects import pickle_object, unpickle_object
from hpccoll.runtime.messages.point_to_point import PROC_NULL

if TYPE_CHECKING:
    from mpi4py import MPI

ObjectT = TypeVar("ObjectT")


class ObjectMethods(MessageMethods):
    """The methods of a communicator for collectives and messages of any Python object that can be pickled."""

    def broadcast_object(self, obj: ObjectT, root: Rank = 0) -> ObjectT:
        """Return the root's `obj` on all ranks; `obj` of other ranks is ignored. Collective.

        Raises:
            UsageError: on all ranks, if the root's object cannot be pickled.

        Example:
            >>> comm.broadcast_object({"step": comm.rank}, root=0)
            {'step': 0}
        """
        result: ObjectT = self._objects.broadcast(obj, self._check_call("broadcast_object", root))
        return result

    def all_gather_object(self, obj: ObjectT) -> list[ObjectT]:
        """Return the objects of all ranks on all ranks, in rank order. Collective.

        Raises:
            UsageError: on all ranks, if an object cannot be pickled.

        Example:
            >>> comm.all_gather_object(comm.rank) == list(range(comm.size))
            True
        """
        self._check_call("all_gather_object")
        return self._objects.all_gather(obj)

    def gather_object(self, obj: ObjectT, root: Rank = 0) -> list[ObjectT] | None:
        """Return the objects of all ranks at the root, in rank order, and None on other ranks. Collective.

        Raises:
            UsageError: on all ranks, if an object cannot be pickled.

        Example:
            >>> names = comm.gather_object(f"rank {comm.rank}", root=0)
            >>> comm.rank != 0 or names[0] == "rank 0"
            True
        """
        return self._objects.gather(obj, self._check_call("gather_object", root))

    def scatter_object(self, objs: Sequence[ObjectT] | None, root: Rank = 0) -> ObjectT:
        """Return element r of the root's sequence `objs` on each rank r; other ranks pass None. Collective.

        Raises:
            UsageError: on all ranks, if the root's `objs` does not have one element per rank, or cannot be pickled.

        Example:
            >>> jobs = [f"job {r}" for r in range(comm.size)] if comm.rank == 0 else None
            >>> comm.scatter_object(jobs, root=0) == f"job {comm.rank}"
            True
        """
        result: ObjectT = self._objects.scatter(objs, self._check_call("scatter_object", root))
        return result

    def send_object(self, obj: Any, dest: Rank | None, tag: int = 0) -> None:
        """Send a Python object to rank `dest`, which calls `recv_object`; block until the message is on its way.

        `dest` None or hpccoll.PROC_NULL sends nothing.

        Raises:
            UsageError: the object cannot be pickled, or `dest` is this rank.

        Example:
            >>> if comm.size > 1 and comm.rank == 0:
            ...     comm.send_object({"lr": 0.1}, dest=1)
            >>> if comm.rank == 1:
            ...     assert comm.recv_object(source=0) == {"lr": 0.1}
        """
        payload, reason = pickle_object(obj)
        if reason:
            raise UsageError(f"send_object: {reason}; pass picklable data")
        self.send(np.array([len(payload)], np.int64), dest, tag)
        self.send(np.frombuffer(payload, np.uint8), dest, tag)

    def recv_object(self, source: Rank | None = None, tag: int = 0, *, status: MPI.Status | None = None) -> Any:
        """Return a Python object that rank `source` sent by `send_object`; block until it has arrived.

        Args:
            source: rank of the sender. hpccoll.ANY_SOURCE (or None, the default) receives from any rank; from
                hpccoll.PROC_NULL, the call returns None.
            tag: the `tag` that the sender passed to `send_object`.
            status: gets the rank of the sender and the tag, as with mpi4py's `recv`.

        Example:
            >>> if comm.size > 1 and comm.rank == 0:
            ...     comm.send_object("done", dest=1)
            >>> if comm.rank == 1:
            ...     assert comm.recv_object() == "done"
        """
        size = np.empty(1, np.int64)
        work = self.irecv(size, source, tag)
        work.wait()
        if work.source is None:  # `source` is PROC_NULL
            self.recv(size, PROC_NULL, tag, status=status)
            return None
        payload = np.empty(int(size[0]), np.uint8)
        self.recv(payload, work.source, tag, status=status)
        return unpickle_object(payload.tobytes())

    def _check_call(self, name: str, root: Rank = 0) -> int:
        """Raise UsageError if the communicator is closed or `root` is no rank; return `root` as an integer.

        With HPCCOLL_DEBUG=1, the call is collective: all ranks compare their roots and `name`, the called method.
        """
        self._require_open()
        if self._argument_check is None:
            return self._require_rank("root", root)
        with self._state.call(name), self._argument_check.compare(name) as compared:
            compared.update(root=self._require_rank("root", root))
        return index(root)
