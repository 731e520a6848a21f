"""Opens and closes communicators, and runs every collective by `CommunicatorBase._collective`."""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from functools import partial
from inspect import isfunction, unwrap
from operator import index
from typing import TYPE_CHECKING, Any, Final, Self, cast

import numpy as np

from hpccoll.arrays import normalize_reduction
from hpccoll.communicator.adapted_arguments import adapt_arguments
from hpccoll.communicator.array_types import AlgorithmLike, OnFailure
from hpccoll.communicator.scalars import SCALARS, encode_dtype, find_common_dtype
from hpccoll.errors import BufferError, CommunicationError, UsageError
from hpccoll.failures.endings import get_endings
from hpccoll.failures.fault_tolerance import require_fault_tolerance
from hpccoll.failures.rank_losses import LossWatch, read_fault
from hpccoll.failures.surviving_creation import make_on_living_ranks, make_or_revoke
from hpccoll.plan import Operation
from hpccoll.runtime import job
from hpccoll.runtime.agreement import wait_for_ranks
from hpccoll.runtime.argument_check import EXCHANGED, ArgumentCheck, is_enabled
from hpccoll.runtime.arguments import SUM, check_call
from hpccoll.runtime.backoff import settle
from hpccoll.runtime.call_cache import Request
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.engine import Engine
from hpccoll.runtime.messages.objects import MessageObjects, ObjectCollectives
from hpccoll.runtime.messages.point_to_point import PointToPoint
from hpccoll.runtime.progress import get_progress
from hpccoll.runtime.work import Work
from hpccoll.selection import MPI_LIBRARY

if TYPE_CHECKING:
    from mpi4py import MPI


_UNFREED: Final[list[Engine]] = []
_SCATTER: Final = Operation.SCATTER  # a look-up in an Enum takes 50 ns longer than a global name
_GATHER: Final = Operation.GATHER


class CommunicatorBase:
    """The base class of `Communicator`: the constructor, `close`, and the code that all collectives share."""

    def __init_subclass__(cls) -> None:
        """Let Python's own error messages name methods as users know them: `Communicator.all_reduce`."""
        for name, method in vars(cls).items():
            if isfunction(unwrap(method)):
                method.__qualname__ = unwrap(method).__qualname__ = f"Communicator.{name}"

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        *,
        adopt: bool = False,
        abort_on_error: bool = True,
        mixed_forms: bool = False,
        compare_arguments: bool | None = None,
        name: str = "",
        on_failure: OnFailure = "end",
    ) -> None:
        _check_on_failure(on_failure)
        base, progress = job.get_world() if comm is None else _require_one_group(comm), get_progress()
        progress.release_garbage()
        self._abort_on_error, self._on_failure, self._mixed_forms = abort_on_error, on_failure, mixed_forms
        compares = is_enabled() if compare_arguments is None else compare_arguments
        open_on = partial(self._open, compares=compares, name=name)
        if on_failure == "end":
            wait_for_ranks(base, progress)
            open_on(base if adopt else base.Dup())
        elif adopt:
            make_or_revoke(base, open_on)
        else:
            make_on_living_ranks(base, open_on)

    def _open(self, comm: MPI.Intracomm, *, compares: bool, name: str) -> Self:
        """Prepare collectives and messages of this object on the MPI communicator `comm`; return `self`. Collective.

        `compares` is whether all ranks compare their arguments, and `name` is the communicator's name in recordings.
        """
        progress = get_progress()
        self._comm, self._message_comm = comm, comm.Dup()
        self._message_comm.Set_errhandler(job.load_mpi().ERRORS_RETURN)
        self.rank, self.size = comm.rank, comm.size
        self._engine = Engine(comm, _takes_device_memory, mixed_forms=self._mixed_forms, name=name)
        node, self.node_count = self._engine.node, len(self._engine.nodes)
        self.local_rank = node.ranks.index(comm.rank)
        self.maps_memory_of_peers = node.readable is not None and len(node.ranks) > 1  # see `empty_in_file`
        self._argument_check = ArgumentCheck(comm, progress) if compares else None
        state, uses_pinned = self._engine.state, self._engine.uses_pinned_memory
        self._messages = PointToPoint(self._message_comm, progress, state, uses_pinned, compares_dtypes=compares)
        self._exchange = self._messages.messenger.exchange
        self._object_comm = self._message_comm if self._on_failure == "end" else MessageObjects(comm)
        self._objects = ObjectCollectives(self._object_comm, progress, state, oversubscribed=node.oversubscribed)
        self._cache, self._process = self._engine.cache, os.getpid()
        self._table, self._find_start = self._cache.blocking, self._cache.asynchronous.find
        self._release = weakref.finalize(self, progress.discard, partial(_release, self._engine, self._process))
        self._engine.get_owner = weakref.ref(self)
        self._state = state
        self._watch()
        return self

    def _watch(self) -> None:
        """Start to watch for the death of other ranks, until `_stop_watch` is called.

        A death ends the job or, with `on_failure="raise"`, makes calls of this communicator raise RankLostError.
        """
        survives, state, processes = self._on_failure == "raise", self._state, self._engine.processes
        self._control = self._comm.Dup() if survives else None  # is never revoked
        self._losses: LossWatch | None = None
        if survives:
            others = [] if self._argument_check is None else [self._argument_check.comm]
            state.survives = True
            self._losses = LossWatch([self._comm, self._message_comm, *others], state, self._engine.hosts)
        state.kill_at = read_fault(job.load_mpi().COMM_WORLD.rank)
        comm = self._comm if self._control is None else self._control
        self._stop_watch = get_endings().open(
            comm, state, processes, abort_on_error=self._abort_on_error, losses=self._losses
        )
        # `is_block`: whether the loop `survivors` yielded this object. `is_done`: whether the loop's block has ended.
        self.is_block, self.is_done = False, True

    def close(self) -> None:
        """Wait for operations in flight, then free requests, shared memory and the MPI communicators; collective.

        `close` also waits for messages of `isend` and `irecv`, forever if the other rank never receives or sends them.
        On a communicator that an interruption has made unusable, `close` waits for no other rank, and the memory is
        kept until the program ends, because MPI may still write to it.

        Example:
            >>> own = hpccoll.Communicator()
            >>> own.close()
            >>> own  # doctest: +ELLIPSIS
            <hpccoll.Communicator: rank ..., closed>
        """
        if self._release.alive:
            self._require_open()
            if not self._wait_to_close():
                self._messages.messenger.close()
                self._release()
                return
            self._stop_watch()
            self._messages.messenger.close()
            self._release()
            self._engine.progress.release_garbage()
            if self._argument_check is not None:
                self._argument_check.comm.Free()
            if self._control is not None:
                self._control.Free()
            self._message_comm.Free()
            self._comm.Free()

    def discard(self) -> None:
        """Close the communicator without waiting for other ranks, and free its memory.

        The MPI communicators are not freed, because Open MPI would give their numbers to new ones, and late messages of
        other survivors, or a late revocation, would then reach the new ones.

        Example:
            >>> comm.discard()  # doctest: +SKIP
        """
        if self._release.detach() is not None:
            self._stop_watch()
            self._messages.messenger.close()
            self._engine.free()
            self._engine.progress.release_garbage()

    def _wait_to_close(self) -> bool:
        """Wait for operations in flight and for all ranks; return False if the communicator is unusable."""
        if not self._state.is_unusable:
            try:
                with self._state.call("close"):
                    self._engine.finish()
                    self._messages.finish()
                    self._state.is_closing = True
                    wait_for_ranks(self._comm, self._engine.progress)
            except CommunicationError:
                if not self._state.is_unusable:
                    raise
        return not self._state.is_unusable

    def explain_wait(self, work: Work[Any] | None = None) -> str:
        """Return a description of the ranks that this rank waits for and of their last operations.

        Args:
            work: the asynchronous operation that this rank waits for; None for its latest blocking collective.

        Cost: reads the recorder files of this node; up to 1.6 s if ranks of other nodes do not answer.

        Example:
            >>> work = comm.all_reduce(np.ones(2), async_op=True)
            >>> answer = comm.explain_wait(work)  # such as: rank 1 has not called it: rank 1 after call 3 (barrier)
            >>> work.wait() / comm.size
            array([1., 1.])
        """
        reason = None if work is None else work.awaited
        awaited = (self._state.count, ()) if reason is None else (reason.number, reason.peers)
        return get_endings().explain_wait(self._state, awaited)

    def _collective(
        self,
        operation: Operation,
        x: Any,
        out: Any,
        op: Any,
        root: Any,
        algorithm: AlgorithmLike,
        async_op: bool,
        counts: Any = None,
        out_counts: Any = None,
    ) -> Any:
        """Run a collective and return its result, or with `async_op` start it and return a Work. Collective.

        The arguments are those of the collective's public method; `counts` and `out_counts`, the sizes of blocks, are
        None for equal blocks. The C extension carries out calls of a kind that ran before (call_cache.py).
        """
        if op is not SUM and type(op) is not str:
            op = normalize_reduction(op)
        rows = None if counts is None and out_counts is None else self._cache.intern_counts(counts, out_counts)
        if async_op:
            return self._start(operation, x, out, op, root, algorithm, rows)
        first, second = x, out
        if root != self.rank and (operation is _GATHER or operation is _SCATTER):  # see `_make_request`
            first, second = x if operation is _GATHER else out, None
        result = self._table.run(operation, first, second, op, root, algorithm, rows)
        return self._run(operation, x, out, op, root, algorithm, rows) if result is NotImplemented else result

    def _make_request(self, operation: Operation, x: Any, out: Any, *others: Any) -> Request:
        """Return the arguments of a collective call as a key, for the cache of earlier calls."""
        has_input = operation is not _SCATTER or self.rank == others[1]
        result = None if operation is _GATHER and self.rank != others[1] else out
        # On a rank without input, the key has the output in place of the input.
        arrays = (x, result) if has_input else (result, None)
        return self._cache.intern((operation, *arrays, *others))

    def _run(
        self, operation: Operation, x: Any, out: Any, op: Any, root: Any, algorithm: AlgorithmLike, rows: Any = None
    ) -> Any:
        """Check and run a blocking collective; return its result. Later calls of the same kind skip the checks.

        `op` is a reduction or its name; `rows` is the pair of `counts` and `out_counts`, or None for equal blocks.
        """
        request = self._make_request(operation, x, out, op, root, algorithm, rows)
        result = self._table.run(*request)
        if result is NotImplemented and self._cache.add_similar(request):
            result = self._table.run(*request)
        if result is not NotImplemented:
            return result
        if operation.reduces and isinstance(x, SCALARS):
            return self._reduce_scalar(operation, x, out, op, root, algorithm, False)
        call = self._cache.count(self._check("blocking", operation, x, out, op, root, algorithm, rows))
        self._engine.run(call, request if call.finish is None and self._argument_check is None else None)
        return call.value if call.finish is None else call.finish(call.value)

    def _start(self, *arguments: Any) -> Work[Any]:
        """Start an asynchronous collective by `_start_work`, and return its Work.

        If an exception, such as KeyboardInterrupt, stops the start halfway, the communicator becomes unusable.
        """
        before = self._state.count
        try:
            return self._start_work(*arguments)
        except BaseException as error:
            if self._state.count != before:  # a part of the collective may have started, and the user gets no Work
                self._state.take_exception(arguments[0].value, error)
                if self._state.is_unusable:
                    settle([self._engine.progress.poll_mpi])  # lets an operation end whose start was interrupted
            raise

    def _start_work(self, *arguments: Any) -> Work[Any]:
        """Start an asynchronous collective and return its Work; skip the checks for a known kind of call.

        `arguments` are those of `_run`.
        """
        engine, cache, request = self._engine, self._cache, arguments
        known = self._find_start(*request)
        if known is None:
            request = self._make_request(*arguments)
            known = self._find_start(*request)
        if known is None and cache.add_similar(request, asynchronous=True):
            known = self._find_start(*request)
        if known is not None:
            cached, result, value = known
            begin = partial(cached.start, request[1], result)
            return Work(self.rank, engine.progress, engine.launch(cached.name, cached.description, begin), value)
        operation, x, out, op, root, algorithm, _ = arguments
        if operation.reduces and isinstance(x, SCALARS):
            return cast("Work[Any]", self._reduce_scalar(operation, x, out, op, root, algorithm, True))
        call = cache.count(self._check("async", *arguments))
        started = engine.start(call, request if call.finish is None and self._argument_check is None else None)
        return Work(self.rank, engine.progress, started, call.value, call.finish)

    def _require_open(self) -> None:
        """Raise UsageError if the communicator is closed or this process is a fork of the communicator's process."""
        if os.getpid() != self._process:
            raise UsageError(
                f"this communicator belongs to process {self._process}, and MPI cannot be used after a fork; "
                "communicate in the parent, or start the child by multiprocessing's `spawn`"
            )
        if not self._release.alive:
            raise UsageError("this communicator was closed; use one that is open, or close it later")

    def _require_rank(self, role: str, rank: Any) -> int:
        """Return `rank` as an integer; raise UsageError about the argument named `role` unless it is a rank."""
        if not hasattr(rank, "__index__") or not 0 <= rank < self.size:
            raise UsageError(f"{role} {rank} is not a rank of 0..{self.size - 1}")
        return index(rank)

    def _check(self, form: str, operation: Operation, *arguments: Any) -> CollectiveCall:
        """Check the arguments of a collective on this rank, and return them as a `CollectiveCall`.

        With HPCCOLL_DEBUG=1, this method is collective: all ranks compare their arguments and `form` (blocking, async,
        prepare).
        """
        self._require_open()
        self._engine.progress.release_garbage()
        if self._argument_check is None:
            return self._check_here(form, operation, *arguments)
        reason = self._state.wait(operation.value, self._state.count + 1)
        with reason, self._argument_check.compare(operation.value) as compared:
            call = self._check_here(form, operation, *arguments)
            buffer = call.result or call.source
            name = call.algorithm.full_name if call.algorithm else MPI_LIBRARY if call.library else "auto"
            compared.update(shape=call.shape, dtype=buffer.dtype.name if buffer else "none", op=call.reduction.name)
            memory = self._engine.selector.buffer_kind(call).value
            compared.update(root=call.root, algorithm=name, memory=memory)
            if not self._mixed_forms:
                compared.update(call=form)
            if isinstance(call.count, tuple):
                compared[EXCHANGED if call.is_uneven_exchange else "counts"] = call.count
        return call

    def _check_here(self, form: str, operation: Operation, x: Any, out: Any, op: Any, *others: Any) -> CollectiveCall:
        """Check the arguments of a collective without communication, and return them as a `CollectiveCall`.

        Lists and arrays of other libraries are replaced by arrays that the runtime accepts.
        """
        root, algorithm, *rest = others
        counts = rest[0] if rest else None
        adapted = adapt_arguments(operation, x, out, self.rank, self.size, root, algorithm, counts)
        if adapted is None:
            return check_call(operation, x, out, self.rank, self.size, root, op, algorithm, counts)
        if form == "prepare":
            raise BufferError(
                f"{operation.value}: prepared collectives are bound to their arrays; pass arrays of NumPy, CuPy or "
                "torch, no lists"
            )
        arrays = adapted.x, adapted.out
        call = check_call(operation, *arrays, self.rank, self.size, root, op, algorithm, adapted.counts)
        return replace(call, finish=adapted.finish)

    def _reduce_scalar(
        self, operation: Operation, x: Any, out: Any, op: Any, root: Any, algorithm: AlgorithmLike, async_op: bool
    ) -> Any:
        """Reduce one number `x` per rank by an all_reduce or a reduce; return a Python or NumPy number like `x`.

        The ranks first agree on the element type that represents all their numbers. Cost: an all-gather and the
        reduction. Raises UsageError if `async_op` or `out` is given. Collective.
        """
        if async_op or out is not None:
            raise UsageError(f"{operation.value}: a number is reduced by a blocking call without out; pass an array")
        numbers = self._collective(Operation.ALL_GATHER, encode_dtype(x), None, SUM, 0, "auto", False)
        value = np.array(x, find_common_dtype(numbers.reshape(-1)))
        result = self._collective(operation, value, None, op, root, algorithm, False)
        if operation is Operation.REDUCE and self.rank != root:
            return x
        return result[()] if isinstance(x, np.generic) else result.item()


def _check_on_failure(on_failure: OnFailure) -> None:
    """Raise UsageError unless `on_failure` is "end" or "raise".

    Raises UnavailableError if `on_failure` is "raise", but this MPI library or launcher ends the job when a rank dies.
    """
    if on_failure not in ("end", "raise"):
        raise UsageError(f'on_failure={on_failure!r} is neither "end" nor "raise"; pass one of them')
    if on_failure == "raise":
        job.load_mpi()
        require_fault_tolerance()


def _require_one_group(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return `comm` as an object of class Intracomm itself, no subclass; raise UsageError for an intercommunicator."""
    if comm.Is_inter():
        raise UsageError(
            "this MPI communicator is an intercommunicator, which joins two groups of ranks; hpccoll needs one group: "
            "pass comm.Merge()"
        )
    plain: MPI.Intracomm = job.load_mpi().Intracomm(comm)
    return plain


def _takes_device_memory() -> bool:
    """Whether MPI accepts GPU memory; the first call on a host with a GPU starts processes that test this."""
    from hpccoll.runtime.cuda.probe import is_mpi_cuda_aware

    return is_mpi_cuda_aware()


def _release(engine: Engine, process: int) -> None:
    """Free the memory and requests of a communicator, unless MPI is finalized or this process is a fork of `process`.

    The memory and requests of an unusable communicator are kept, because MPI may still write to the memory.
    """
    if engine.state.interruption is not None:
        _UNFREED.append(engine)
    elif os.getpid() == process and not job.load_mpi().Is_finalized():
        engine.free()
