"""Collectives of Python objects, pickled by mpi4py; they fail on all ranks if one object cannot be sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from mpi4py import MPI

from hpccoll.errors import DEBUG_HINT, CommunicationError, UsageError
from hpccoll.runtime.progress import Progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.work import name_mpi_error

ResultT = TypeVar("ResultT")
OBJECT_TAG: Final = 8188  # below that of notices (failures/departures.py), above those of asynchronous operations
Pickled: TypeAlias = tuple[bytes, str]  # the pickled object and "", or b"" and the reason why it cannot be pickled


class MessageObjects:
    """Collectives of Python objects over messages to and from a root, for communicators that survive deaths.

    The collectives of Open MPI may return wrong data without an error when a rank dies; messages raise an error.

    Args:
        comm: the MPI communicator; other messages on it must not have OBJECT_TAG.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm, self.rank, self.size, self.Ibarrier = comm, comm.rank, comm.size, comm.Ibarrier

    def bcast(self, obj: Any, root: int) -> Any:
        """Return the root's object."""
        return self.scatter([obj] * self.size, root)

    def allgather(self, obj: Any) -> list[Any]:
        """Return the objects of all ranks, in rank order."""
        gathered: list[Any] = self.bcast(self.gather(obj, 0), 0)
        return gathered

    def gather(self, obj: Any, root: int) -> list[Any] | None:
        """Return the objects of all ranks at the root, in rank order, and None on other ranks."""
        if self.rank != root:
            self._comm.send(obj, root, OBJECT_TAG)
            return None
        return [obj if rank == root else self._comm.recv(source=rank, tag=OBJECT_TAG) for rank in range(self.size)]

    def scatter(self, objs: Sequence[Any] | None, root: int) -> Any:
        """Return element r of the root's sequence on each rank r."""
        if self.rank != root or objs is None:
            return self._comm.recv(source=root, tag=OBJECT_TAG)
        requests = [self._comm.isend(obj, rank, OBJECT_TAG) for rank, obj in enumerate(objs) if rank != root]
        for request in requests:
            request.wait()
        return objs[root]


class ObjectCollectives:
    """Collectives of Python objects on `comm`; operations in flight advance while a collective blocks.

    The methods raise UsageError on all ranks if an object cannot be pickled, and CommunicationError if MPI fails.
    With `oversubscribed`, where ranks share cores, a rank sleeps until all ranks have called the collective.
    """

    def __init__(
        self, comm: MPI.Intracomm | MessageObjects, progress: Progress, state: CallRecorder, *, oversubscribed: bool
    ) -> None:
        self._comm, self._progress, self._state, self._oversubscribed = comm, progress, state, oversubscribed

    def broadcast(self, obj: Any, root: int) -> Any:
        """Return the root's object; the objects of other ranks are ignored."""
        at_root = self._comm.rank == root
        own = pickle_object(obj) if at_root else None
        payload, reason = self._call("broadcast_object", lambda: self._comm.bcast(own, root))
        _require_pickled("broadcast_object", {root: reason})
        return obj if at_root else unpickle_object(payload)

    def all_gather(self, obj: Any) -> list[Any]:
        """Return the objects of all ranks, in rank order."""
        own = pickle_object(obj)
        gathered = self._call("all_gather_object", lambda: self._comm.allgather(own))
        _require_pickled("all_gather_object", {rank: reason for rank, (_, reason) in enumerate(gathered)})
        return [unpickle_object(payload) for payload, _ in gathered]

    def gather(self, obj: Any, root: int) -> list[Any] | None:
        """Return the objects of all ranks at the root, in rank order, and None on other ranks."""
        payload, reason = pickle_object(obj)
        reasons = self._call("gather_object", lambda: self._comm.allgather(reason))
        _require_pickled("gather_object", dict(enumerate(reasons)))
        gathered = self._call("gather_object", lambda: self._comm.gather(payload, root))
        return None if gathered is None else [unpickle_object(each) for each in gathered]

    def scatter(self, objs: Sequence[Any] | None, root: int) -> Any:
        """Return element r of the root's sequence on each rank r; the sequences of other ranks are ignored."""
        size, rows = self._comm.size, None
        if self._comm.rank == root:
            rows = [pickle_object(each) for each in objs or ()]
            reason = next((reason for _, reason in rows if reason), "")
            if len(rows) != size:
                reason = f"{len(rows)} objects are not one for each of {size} ranks"
            if reason:
                rows = [(b"", reason)] * size
        payload, reason = self._call("scatter_object", lambda: self._comm.scatter(rows, root))
        _require_pickled("scatter_object", {root: reason})
        return unpickle_object(payload)

    def _call(self, name: str, function: Callable[[], ResultT]) -> ResultT:
        """Record a call that blocks in MPI, and return its result; if ranks share cores, first sleep until all call."""
        try:
            with self._state.call(name):
                if self._oversubscribed:
                    self._progress.sleep_until(self._comm.Ibarrier().Test)
                return self._progress.call(function)
        except MPI.Exception as error:
            raise CommunicationError(
                f"{name} failed on rank {self._comm.rank}: {name_mpi_error(error)}; {DEBUG_HINT}"
            ) from error


def pickle_object(obj: Any) -> Pickled:
    """Return an object's pickle and an empty string; if the object cannot be pickled, no bytes and the reason."""
    try:
        return MPI.pickle.dumps(obj), ""
    except Exception as error:  # noqa: BLE001 - a class may raise any error when its objects are pickled
        return b"", f"{type(obj).__name__} cannot be pickled ({type(error).__name__}: {error})"


def unpickle_object(payload: bytes) -> Any:
    """Return the object that `pickle_object` turned into bytes."""
    return MPI.pickle.loads(payload)


def _require_pickled(name: str, reasons: dict[int, str]) -> None:
    """Raise UsageError if `reasons` (by rank) has a reason why the object of a rank cannot be sent."""
    for rank, reason in reasons.items():
        if reason:
            raise UsageError(f"{name}: the object of rank {rank} cannot be sent: {reason}; pass picklable data")
