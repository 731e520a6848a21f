"""Opens and closes communicators, and runs every collective by `CommunicatorBase._collective`."""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from functools import partial
from inspect import isfunction
from operator import index
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpccoll.communicator.adapted_arguments import adapt_arguments
from hpccoll.communicator.array_types import AlgorithmLike
from hpccoll.communicator.scalars import SCALARS, encode_dtype, find_common_dtype
from hpccoll.errors import BufferError, CommunicationError, UsageError
from hpccoll.plan import Operation
from hpccoll.runtime import job
from hpccoll.runtime.agreement import wait_for_ranks
from hpccoll.runtime.argument_check import EXCHANGED, ArgumentCheck, is_enabled
from hpccoll.runtime.arguments import SUM, check_call
from hpccoll.runtime.arrays import normalize_reduction
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.engine import Engine
from hpccoll.runtime.failure_detection.endings import get_endings
from hpccoll.runtime.messages.objects import ObjectCollectives
from hpccoll.runtime.messages.point_to_point import PointToPoint
from hpccoll.runtime.progress import get_progress, settle
from hpccoll.runtime.unbound import ASYNCHRONOUS
from hpccoll.runtime.work import MpiTransfer, Work
from hpccoll.selection import MPI_LIBRARY

if TYPE_CHECKING:
    from mpi4py import MPI


_UNFREED: Final[list[Engine]] = []
_SCATTER: Final = Operation.SCATTER  # a look-up in an Enum takes 50 ns longer than a global name
_GATHER: Final = Operation.GATHER


class CommunicatorBase:
    """The base of `Communicator`: the constructor, `close`, and the code that all collectives share."""

    def __init_subclass__(cls) -> None:
        """Let Python's own error messages name methods as users know them: `Communicator.all_reduce`."""
        for name, method in vars(cls).items():
            if isfunction(method):
                method.__qualname__ = f"Communicator.{name}"

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        *,
        adopt: bool = False,
        abort_on_error: bool = True,
        mixed_forms: bool = False,
        compare_arguments: bool | None = None,
        name: str = "",
    ) -> None:
        base, progress = job.get_world() if comm is None else _require_one_group(comm), get_progress()
        progress.release_garbage()
        wait_for_ranks(base, progress)
        comm = base if adopt else base.Dup()
        self._comm, self._message_comm = comm, comm.Dup()
        self._message_comm.Set_errhandler(job.load_mpi().ERRORS_RETURN)
        self.rank, self.size = comm.rank, comm.size
        self._engine = Engine(comm, _takes_device_memory, mixed_forms=mixed_forms, name=name)
        node, self.node_count = self._engine.node, len(self._engine.nodes)
        self.local_rank = node.ranks.index(comm.rank)
        self.maps_memory_of_peers = node.remote is not None and len(node.ranks) > 1  # see `empty_in_file`
        compares = is_enabled() if compare_arguments is None else compare_arguments
        self._argument_check = ArgumentCheck(comm, self._engine.progress) if compares else None
        self._mixed_forms = mixed_forms
        state, uses_pinned = self._engine.state, self._engine.uses_pinned_memory
        self._messages = PointToPoint(self._message_comm, progress, state, uses_pinned)
        self._exchange = self._messages.messenger.exchange
        self._objects = ObjectCollectives(self._message_comm, progress, state, oversubscribed=node.oversubscribed)
        self._cache, self._process = self._engine.cache, os.getpid()
        self._cached_calls, self._run_in_table = self._cache.by_array, self._cache.table.run
        self._unbound = self._engine.unbound
        release = partial(_release, self._engine, self._process)
        self._release = weakref.finalize(self, progress.discard, release)
        self._engine.get_owner = weakref.ref(self)
        self._state, self._abort_on_error = self._engine.state, abort_on_error
        self._stop_watch = get_endings().open(comm, self._state, self._engine.processes, abort_on_error=abort_on_error)

    def close(self) -> None:
        """Wait for operations in flight, then free requests, shared memory and the MPI communicators; collective.

        The operations include messages of `isend` and `irecv`; `close` waits forever for a message that no rank
        receives or sends. Without `close`, requests and shared memory are freed at exit, but the MPI communicators
        are not. On a communicator that an interruption has made unusable, `close` does not wait for other ranks; its
        memory is then kept until the program ends, because MPI may still write to it.

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
                self._argument_check.free()
            self._message_comm.Free()
            self._comm.Free()

    def _wait_to_close(self) -> bool:
        """Wait for operations in flight and for all ranks; return False if the communicator is unusable."""
        if not self._state.is_unusable:
            try:
                with self._state.call("close"):
                    self._engine.finish()
                    self._messages.finish()
                    wait_for_ranks(self._comm, self._engine.progress)
            except CommunicationError:
                if not self._state.is_unusable:
                    raise
        return not self._state.is_unusable

    def explain_wait(self, work: Work[Any] | None = None) -> str:
        """Return the ranks that this rank waits for, and the last operations of these ranks.

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
        """Run a collective and return its result, or a Work; a call of a kind that ran before is one native call.

        `counts` and `out_counts` are the sizes of blocks, as in `all_to_all`; both are None for equal blocks.
        """
        if op is not SUM and type(op) is not str:
            op = normalize_reduction(op)
        if counts is None and out_counts is None and not async_op:
            result = self._run_in_table(operation, x, out, op, root, algorithm)
            if result is not NotImplemented:
                return result
        if counts is None and out_counts is None:
            return self._run_even(operation, x, out, op, root, algorithm, async_op)
        rows = _freeze_counts(counts, out_counts)
        key = None if rows is None else (operation, id(x), id(out), op, root, algorithm, rows)
        return self._run((operation, x, out, op, root, algorithm, rows or (counts, out_counts)), async_op, key)

    def _run_even(
        self, operation: Operation, x: Any, out: Any, op: Any, root: Any, algorithm: AlgorithmLike, async_op: bool
    ) -> Any:
        """Run a collective of equal blocks that is not in the table; `op` is a reduction or its name."""
        key = operation, id(x), id(out), op, root, algorithm, None
        return self._run((operation, x, out, op, root, algorithm, None), async_op, key)

    def _run(self, request: Any, async_op: bool, key: Any) -> Any:
        """Run a collective by its cached executable, by the `UnboundCollective` of its kind, or by the engine.

        Args:
            request: operation, `x`, `out`, reduction, root, algorithm, and the pair of `counts` and `out_counts`, or
                None for equal blocks.
            key: the key of the call in the call cache; None if the counts are wrong, which `_check` explains.
        """
        operation, x, out, op, root, algorithm, rows = request
        has_input = operation is not _SCATTER or self.rank == root
        source, result = x if has_input else None, None if operation is _GATHER and self.rank != root else out
        # With counts, a rank without input has its output in the place of the input.
        arrays: tuple[Any, Any] = (x, result) if has_input or rows is None else (result, None)
        if not async_op:
            executable = self._cache.find_by_array(key, source, result) if key in self._cached_calls else None
            if executable is not None:
                executable.run()
                return result if result is not None else None if operation is _GATHER else x
            unbound = None if key is None else self._unbound.find(operation, *arrays, op, root, algorithm, rows)
            if unbound is not None:
                return unbound(*arrays)
        if operation.reduces and isinstance(x, SCALARS):
            return self._reduce_scalar(operation, x, out, op, root, algorithm, async_op)
        if async_op:
            return self._start(request, arrays, key and (ASYNCHRONOUS, key))
        call = self._check("blocking", *request)
        executable = self._engine.run(call)
        if call.finish is not None:
            return call.finish(call.value)
        if self._argument_check is None and key is not None:
            if executable is not None and call.can_be_cached:
                self._cache.add_by_array(key, executable, source, result)
            self._engine.remember(call, *arrays, op, algorithm, rows)
        return call.value

    def _start(self, request: Any, arrays: tuple[Any, Any], key: Any) -> Work[Any]:
        """Start an asynchronous collective as `_start_work` does; an interruption makes the communicator unusable."""
        before = self._state.count
        try:
            return self._start_work(request, arrays, key)
        except BaseException as error:
            if self._state.count != before:  # part of it may have started, and the user gets no Work
                self._state.take_exception(request[0].value, error)
                if self._state.is_unusable:
                    settle([self._engine.progress.poll_mpi])  # lets an operation end whose start was interrupted
            raise

    def _start_work(self, request: Any, arrays: tuple[Any, Any], key: Any) -> Work[Any]:
        """Start an asynchronous collective, without most checks if a call of its kind has started before.

        Args:
            request: the arguments of `_check`.
            arrays: the input and output for `UnboundCollectives.find`.
            key: the key of the call in the call cache; None if the counts are wrong.
        """
        operation, x, out, op, root, algorithm, rows = request
        engine, cache = self._engine, self._cache
        repeated: Any = cache.find_by_array(key, x, out) if rows is None else None
        if repeated is not None:
            value = out if out is not None or operation is _GATHER else x
            return Work(self.rank, engine.progress, engine.start_again(repeated, arrays), value)
        kind = op, root, (ASYNCHRONOUS, algorithm), rows
        unbound: Any = None if key is None else self._unbound.find(operation, *arrays, *kind)
        if unbound is not None:
            return Work(self.rank, engine.progress, *engine.start_unbound(unbound, *arrays))
        call = self._check("async", *request)
        started = engine.start(call)
        if key is not None and call.finish is None and self._argument_check is None:
            if isinstance(started, MpiTransfer):
                engine.remember(call, *arrays, op, kind[2], rows)
            elif rows is None and call.can_be_cached:
                engine.cache_start(call, key, x, out)
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
        """Return a rank as an integer; raise UsageError unless it is one. `role` names the argument."""
        if not hasattr(rank, "__index__") or not 0 <= rank < self.size:
            raise UsageError(f"{role} {rank} is not a rank of 0..{self.size - 1}")
        return index(rank)

    def _check(self, form: str, operation: Operation, *arguments: Any) -> CollectiveCall:
        """Return the checked call; with HPCCOLL_DEBUG=1, all ranks also compare its arguments and kind (`form`)."""
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
            memory = self._engine.buffer_kind(call).value
            compared.update(root=call.root, algorithm=name, memory=memory)
            if not self._mixed_forms:
                compared.update(call=form)
            if isinstance(call.count, tuple):
                compared[EXCHANGED if call.is_uneven_exchange else "counts"] = call.count
        return call

    def _check_here(self, form: str, operation: Operation, x: Any, out: Any, op: Any, *others: Any) -> CollectiveCall:
        """Return the checked call, with adapted arguments if the runtime does not accept the user's arrays."""
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
        """Reduce one number per rank; return a number of Python or NumPy, as `x` is.

        The ranks first agree on the element type that represents all their numbers. Cost: one more all-gather.
        """
        if async_op or out is not None:
            raise UsageError(f"{operation.value}: a number is reduced by a blocking call without out; pass an array")
        numbers = self._collective(Operation.ALL_GATHER, encode_dtype(x), None, SUM, 0, "auto", False)
        value = np.array(x, find_common_dtype(numbers.reshape(-1)))
        result = self._collective(operation, value, None, op, root, algorithm, False)
        if operation is Operation.REDUCE and self.rank != root:
            return x
        return result[()] if isinstance(x, np.generic) else result.item()


def _freeze_counts(counts: Any, out_counts: Any) -> tuple[Any, Any] | None:
    """Return `counts` and `out_counts` as tuples for a key; None if they are wrong, which `check_call` explains."""
    try:
        rows = tuple(counts) if counts is not None else None, tuple(out_counts) if out_counts is not None else None
        hash(rows)
    except TypeError:
        return None
    return rows


def _require_one_group(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return `comm` as an object of mpi4py's own class; raise UsageError if it is an intercommunicator."""
    if comm.Is_inter():
        raise UsageError(
            "this MPI communicator is an intercommunicator, which joins two groups of ranks; hpccoll needs one group: "
            "pass comm.Merge()"
        )
    plain: MPI.Intracomm = job.load_mpi().Intracomm(comm)
    return plain


def _takes_device_memory() -> bool:
    """Whether MPI accepts device memory; the first call on a host with a GPU starts probe processes."""
    from hpccoll.runtime.cuda.probe import is_mpi_cuda_aware

    return is_mpi_cuda_aware()


def _release(engine: Engine, process: int) -> None:
    """Free an engine (a communicator's runtime), unless MPI is finalized or `process` is not this process (a fork).

    The engine of an unusable communicator is kept, because MPI may still write to its memory.
    """
    if engine.state.interruption is not None:
        _UNFREED.append(engine)
    elif os.getpid() == process and not job.load_mpi().Is_finalized():
        engine.free()
