"""A rank's groups of ranks along one or more axes of a mesh, and the time spent in communication, including waits.

Communication is exposed while the rank does not compute, that is, while it is in a call of an `AxisGroup`. A collective
that was started without blocking also counts as communication while the rank computes.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from hpccoll.parallel.activity_log import ActivityKind, ActivityLog
from hpccoll.parallel.mesh import AXES, EXPERT_REPLICAS, REPLICAS, TOKEN_REPLICAS, Mesh
from hpccoll.runtime.job import load_mpi

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator
    from hpccoll.runtime.work import Work

# The least that each of n ranks sends in a collective, as a multiple of (n-1)/n of the whole message.
SENT_TIMES: Final = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
COPIES: Final = "copies"  # the name in records of the group `MeshGroups.copies`, if it is no other group
TIED: Final = "tied"  # the name in records of the group `MeshGroups.tied`
OPERATIONS: Final = (*SENT_TIMES, "all_to_all", "send")


class CommunicationTimer:
    """Counts the seconds since the last reset in which at least one operation of a rank was in flight, along any axis.

    `lock` lets one thread at a time call hpccoll: the main thread, or a `ProgressThread`. `log` records the
    operations while a profile is made.
    """

    def __init__(self) -> None:
        self.log = ActivityLog()
        self.lock = threading.Lock()
        self.seconds = 0.0
        self.exposed_seconds = 0.0  # the part of `seconds` that the rank spent in calls
        self._counter_lock = threading.Lock()
        self._operations, self._since = 0, 0.0

    def begin_operation(self) -> None:
        """Record that one more operation is in flight; the first one starts the timer."""
        with self._counter_lock:
            if not self._operations:
                self._since = time.perf_counter()
            self._operations += 1

    def end_operation(self) -> None:
        """Record that an operation in flight has ended; the last one stops the timer."""
        with self._counter_lock:
            self._operations -= 1
            if not self._operations:
                self.seconds += time.perf_counter() - self._since


class AxisGroup:
    """A group of ranks along one or several axes of a mesh, with collectives among them.

    In a group of one rank, blocking calls and sends return without communicating; other collectives and receives must
    not be started. The constructor is collective over `ranks`, the ranks of `comm` in the group, and creates their
    communicator. `axis` is the name of the axis, or of several axes, in a profile.

    `sent_bytes` counts bytes since the last reset, by the name of the operation. `sent_bytes` is not measured, but
    computed as the least that a rank can send in a collective over n ranks: 2 (n-1)/n of the message in an all_reduce,
    the rows for other ranks in an all_to_all, and (n-1)/n of the whole message in other collectives. Collectives within
    a node are counted in the same way, although they copy memory instead of sending.
    """

    def __init__(
        self, comm: Communicator, ranks: list[int], timer: CommunicationTimer | None = None, axis: str = "dp"
    ) -> None:
        self.ranks, self.index, self.size, self.axis = ranks, ranks.index(comm.rank), len(ranks), axis
        self._name = f"{axis} {','.join(map(str, ranks))}"
        self._collectives = 0  # number of collectives that this rank has called
        # The collectives in flight: by the id of each `Work`, the `Work`, operation, name and start time.
        self._started: dict[int, tuple[Work[Any], str, str, float]] = {}
        self.timer = timer or CommunicationTimer()
        self._group = comm.new_group(ranks) if len(ranks) > 1 else None
        self._pending_sends: list[Work[None]] = []
        self.exposed_seconds = 0.0  # seconds spent in calls since the last reset
        self.sent_bytes: dict[str, float] = defaultdict(float)
        self.nodes = self._group.node_count if self._group is not None else 1
        self._is_one_node, self.needs_thread = self.nodes == 1, _needs_thread(self.nodes)

    def reset_counts(self) -> None:
        """Set the group's `exposed_seconds` (time spent in calls) and `sent_bytes` to zero."""
        self.exposed_seconds = 0.0
        self.sent_bytes.clear()

    def empty(self, count: int, like: Any) -> Any:
        """Return a new tensor of `count` arbitrary values with the dtype and device of `like`; collective.

        On CPUs, the tensor is a symmetric buffer, which an all_reduce within a node accesses in place. On GPUs, the
        tensor is an ordinary one, because an asynchronous all_reduce of a symmetric buffer on a GPU may block.
        """
        if self._group is None or not like.is_cpu:
            return like.new_empty(count)
        return self._group.torch_empty(count, like.dtype)

    def all_reduce(self, x: Any, op: str = "sum") -> Any:
        """Reduce `x` over the group in place by `op`, such as `sum` or `max`, and return it; blocking, collective."""
        if self._group is not None:
            with self._timed("all_reduce", self._count_collective("all_reduce", x.nbytes)):
                self._group.all_reduce(x, op)
        return x

    def start_all_reduce(self, x: Any) -> Work[Any]:
        """Start summing `x` over the group in place, without blocking. Collective.

        Returns the `Work` to pass to `finish`.
        """
        return self._start("all_reduce", x.nbytes, lambda group: group.all_reduce(x, async_op=True))

    def start_all_gather(self, x: Any, out: Any) -> Work[Any]:
        """Start gathering the `x` (m elements) of all n ranks into `out` (n m elements), without blocking.

        Collective over the group. Returns the `Work` to pass to `finish`. Within a node, `x` should be a buffer that
        `empty` returned, and `x` may be this rank's part of `out`.
        """
        algorithm = self._get_node_algorithm(x)
        return self._start(
            "all_gather", out.nbytes, lambda group: group.all_gather(x, out=out, algorithm=algorithm, async_op=True)
        )

    def start_reduce_scatter(self, x: Any, out: Any) -> Work[Any]:
        """Start summing block r of all n ranks' `x` (n m elements) into `out` (m elements) on rank r, without blocking.

        Collective over the group. Returns the `Work` to pass to `finish`. Within a node, `x` should be a buffer that
        `empty` returned, and `out` may be this rank's part of `x`.
        """
        algorithm = self._get_node_algorithm(x)
        return self._start(
            "reduce_scatter",
            x.nbytes,
            lambda group: group.reduce_scatter(x, out=out, algorithm=algorithm, async_op=True),
        )

    def _get_node_algorithm(self, x: Any) -> str:
        """Return the algorithm `shared` if the ranks are on one node and `x` is in CPU memory, else `auto`."""
        return "shared" if x.is_cpu and self._is_one_node else "auto"

    def _start(self, operation: str, nbytes: int, call: Callable[[Communicator], Work[Any]]) -> Work[Any]:
        """Start a collective without blocking by `call`, record it as in flight, and return its `Work`; collective.

        `nbytes` is the size of the message in bytes, and `operation` the name of the collective.
        """
        assert self._group is not None  # noqa: S101 - a group of one rank has nothing to communicate
        begin, collective = time.perf_counter(), self._count_collective(operation, nbytes)
        with self._timed(f"start {operation}"):
            work = call(self._group)
            self._started[id(work)] = work, operation, collective, begin
            self.timer.begin_operation()
            if work.done:
                self._end(work)
            return work

    def advance_started(self) -> None:
        """Let all started collectives of this group make progress, without blocking; any thread may call this."""
        with self.timer.lock:
            for work in [work for work, *_ in self._started.values()]:
                if not work.test():  # `test` lets all operations of the process make progress
                    return
                self._end(work)

    def finish(self, work: Work[Any]) -> None:
        """Block until a started collective is complete; raise its error if it failed."""
        started = self._started.get(id(work))  # another thread may complete and remove `work`
        with self._timed(f"wait for {started[1] if started else 'collective'}", kind=ActivityKind.WAIT):
            try:
                work.wait()
            finally:
                self._end(work)

    def _end(self, work: Work[Any]) -> None:
        """Record that the started collective `work` is complete, and stop counting its time."""
        started = self._started.pop(id(work), None)
        if started is None:  # another thread has recorded the end
            return
        _, operation, collective, begin = started
        self.timer.end_operation()
        self.timer.log.add(
            ActivityKind.COMMUNICATION, f"{operation} {self.axis}", begin, collective, in_background=True
        )

    def all_gather(self, x: Any, counts: tuple[int, ...]) -> Any:
        """Return all ranks' `x`, of shape (counts[rank], ...), joined along the first dim; blocking, collective."""
        if self._group is None:
            return x
        nbytes = sum(counts) * x[:1].nbytes
        with self._timed("all_gather", self._count_collective("all_gather", nbytes)):
            return self._group.all_gather(x, counts=counts)

    def reduce_scatter(self, x: Any, counts: tuple[int, ...]) -> Any:
        """Return this rank's rows (counts[rank], ...) of the sum of all ranks' `x`; blocking, collective."""
        if self._group is None:
            return x
        with self._timed("reduce_scatter", self._count_collective("reduce_scatter", x.nbytes)):
            return self._group.reduce_scatter(x, counts=counts)

    def all_to_all(self, x: Any, counts: Sequence[int], out_counts: Sequence[int]) -> Any:
        """Send `counts[rank]` rows of `x` to each rank, and return the `out_counts[rank]` rows from each rank.

        Blocking, collective over the group. The rows of `x` and of the result are in the order of the ranks.
        """
        if self._group is None:
            return x
        nbytes = (len(x) - counts[self.index]) * x[:1].nbytes
        with self._timed("all_to_all", self._count_sent("all_to_all", nbytes)):
            return self._group.all_to_all(x, counts=counts, out_counts=out_counts)

    def start_send(self, x: Any, dest: int, tag: int) -> None:
        """Start sending `x` to the rank at index `dest` of the axis, without blocking.

        `tag` is the message's number, as in MPI. `x` must not change before `finish_sends`.
        """
        if self._group is not None:
            self.sent_bytes["send"] += x.nbytes
            with self._timed("start send"):
                # Dropping completed sends frees their buffers.
                self._pending_sends = [work for work in self._pending_sends if not work.test()]
                self._pending_sends.append(self._group.isend(x, dest, tag))

    def start_recv(self, x: Any, source: int, tag: int) -> Work[Any]:
        """Start receiving a message from the rank at index `source` of the axis into `x`; does not block.

        Returns the `Work` to pass to `wait`. `tag` is the number that the sender gave the message, as in MPI.
        """
        assert self._group is not None  # noqa: S101 - an axis of one rank has no other rank
        with self._timed("start receive"):
            return self._group.irecv(x, source, tag)

    def wait(self, work: Work[Any]) -> Any:
        """Block until the receive `work` of `start_recv` has completed, and return the received array."""
        with self._timed("wait for a message", kind=ActivityKind.WAIT):
            return work.wait()

    def finish_sends(self, *, keep: int = 0) -> None:
        """Block until all sends of this group have completed, except for the last `keep` ones."""
        if len(self._pending_sends) > keep:
            with self._timed("wait for sends", kind=ActivityKind.WAIT):
                while len(self._pending_sends) > keep:
                    self._pending_sends.pop(0).wait()

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Return the list of `obj` of all ranks of the group; blocking, collective over the group."""
        return [obj] if self._group is None else self._group.all_gather_object(obj)

    def close(self) -> None:
        """Free the group's communicator; collective over the group."""
        if self._group is not None:
            self._group.close()

    def abandon(self) -> None:
        """Make later calls of other ranks of the group raise an error, because this rank makes no more calls; local."""
        if self._group is not None:
            self._group.leave_loop()

    def discard(self) -> None:
        """Free the memory of the group's communicator without waiting for other ranks, after the death of a rank."""
        if self._group is not None:
            self._group.discard()

    @contextmanager
    def _timed(
        self, name: str, collective: str = "", *, kind: ActivityKind = ActivityKind.COMMUNICATION
    ) -> Iterator[None]:
        """Context manager that counts the time of its body as communication, of this group and in total.

        The body is logged as an activity with the given name, also if it raises an exception; `collective` is the name
        of the collective call, if the body is one.
        """
        self.timer.begin_operation()
        begin = time.perf_counter()
        try:
            with self.timer.lock:
                yield
        finally:
            seconds = time.perf_counter() - begin
            self.exposed_seconds += seconds
            self.timer.exposed_seconds += seconds
            self.timer.end_operation()
            self.timer.log.add(kind, f"{name} {self.axis}", begin, collective)

    def _count_collective(self, operation: str, nbytes: int) -> str:
        """Add the bytes that a rank sends in a collective to the group's counts; `nbytes` is the size of the message.

        Returns a name of this call that is the same on all ranks of the group.
        """
        return self._count_sent(operation, SENT_TIMES[operation] * (self.size - 1) / self.size * nbytes)

    def _count_sent(self, operation: str, nbytes: float) -> str:
        """Add `nbytes`, which this rank sends in a collective, to the group's counts.

        Returns a name of this call that is the same on all ranks of the group.
        """
        self.sent_bytes[operation] += nbytes
        self._collectives += 1
        return f"{self._name} #{self._collectives}"


def _needs_thread(nodes: int) -> bool:
    """Whether a group on `nodes` nodes needs a thread to advance operations while this process computes.

    Messages between nodes advance only inside MPI calls. Within a node, the ranks' cores copy the data themselves, so
    an additional thread saves no time. The thread also requires MPI_THREAD_MULTIPLE.
    """
    mpi = load_mpi()
    return nodes > 1 and mpi.Query_thread() >= mpi.THREAD_MULTIPLE


@dataclass(frozen=True, slots=True)
class MeshGroups:
    """This rank's groups of ranks: one along each axis of the mesh, and several of ranks that hold equal parameters.

    `replicas` are the ranks that hold the same shards of all parameters but experts, and `expert_replicas` those that
    hold the same experts. `token_replicas` are the ranks of `replicas` and of tp, which all hold the same norms; with
    sequence parallelism, they have different tokens. `tied` are the ranks of two pipeline stages with the same weight,
    if this rank is one of them. `copies` are the ranks that keep copies of each other's state: `replicas`, or all ranks
    if there are no replicas. Fields with the same ranks share one `AxisGroup`, except `tied`, and `copies` if it has
    all ranks.
    """

    dp: AxisGroup
    tp: AxisGroup
    pp: AxisGroup
    cp: AxisGroup
    ep: AxisGroup
    replicas: AxisGroup
    expert_replicas: AxisGroup
    token_replicas: AxisGroup
    tied: AxisGroup | None
    copies: AxisGroup | None

    @classmethod
    def create(
        cls, comm: Communicator, mesh: Mesh, tied: Sequence[int] = (), *, sends_copies: bool = False
    ) -> MeshGroups:
        """Create this rank's groups, with one communicator per set of ranks; collective over `comm`.

        `tied` has the ranks that share a tied weight with this rank, itself included; it is empty if there are none.
        `sends_copies` states whether ranks keep copies of each other's state.
        """
        timer, groups = CommunicationTimer(), dict[tuple[str, ...], AxisGroup]()
        of_fields: list[tuple[str, ...]] = [*((axis,) for axis in AXES), REPLICAS, EXPERT_REPLICAS, TOKEN_REPLICAS]
        for axes in of_fields:
            used = tuple(axis for axis in axes if getattr(mesh, axis) > 1) or axes[:1]
            if used not in groups:
                groups[used] = AxisGroup(comm, mesh.get_group_ranks(comm.rank, *used), timer, ",".join(used))
            groups[axes] = groups[used]
        values: list[Any] = [groups[axes] for axes in of_fields]
        values.append(AxisGroup(comm, list(tied), timer, TIED) if tied else None)
        values.append(groups[REPLICAS] if sends_copies else None)
        if sends_copies and groups[REPLICAS].size == 1:
            values[-1] = AxisGroup(comm, list(range(comm.size)), timer, COPIES)
        return cls(*values)

    @property
    def log(self) -> ActivityLog:
        """The log of this rank's activities (passes, communication and waits) along all axes."""
        return self.dp.timer.log

    def reset_counts(self) -> None:
        """Set `comm_seconds`, `exposed_seconds` and the bytes sent to zero, along all axes."""
        self.dp.timer.seconds = self.dp.timer.exposed_seconds = 0.0
        for group in self.list_groups():
            group.reset_counts()

    @property
    def comm_seconds(self) -> float:
        """The seconds since the last `reset_counts` during which communication along any axis was in flight."""
        return self.dp.timer.seconds

    @property
    def exposed_seconds(self) -> float:
        """The part of `comm_seconds` during which this rank computed nothing."""
        return self.dp.timer.exposed_seconds

    def close(self) -> None:
        """Free the communicators of all groups; collective over all ranks of the mesh."""
        for group in self.list_groups():
            group.close()

    def abandon(self) -> None:
        """Make later calls of other ranks of all groups raise an error, because this rank makes no more calls.

        Local.
        """
        for group in self.list_groups():
            group.abandon()

    def discard(self) -> None:
        """Free the memory of all groups' communicators without waiting for other ranks, after the death of a rank."""
        for group in self.list_groups():
            group.discard()

    def list_groups(self) -> list[AxisGroup]:
        """Return all groups of this rank; a group that several fields share appears once."""
        groups = (getattr(self, field.name) for field in fields(self))
        return list(dict.fromkeys(group for group in groups if group is not None))
