"""The public API: collectives, messages and groups on NumPy, CuPy and torch arrays.

Names, argument order and in-place defaults follow torch.distributed: an operation whose result has the shape of its
input works in place unless `out` is given. Every collective passes through `Communicator._collective`.

The module of each algorithm states its cost in alpha (latency of a step), beta (time per byte sent) and gamma (time per
byte reduced). The second call on the same arrays prepares an executable, which later calls only run.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, Self

from numpy import ndarray

from hpccoll.algorithms import Algorithm
from hpccoll.errors import UsageError
from hpccoll.plan import Operation
from hpccoll.runtime import job
from hpccoll.runtime.agreement import wait_for_members, wait_for_ranks
from hpccoll.runtime.argument_check import ArgumentCheck, is_enabled
from hpccoll.runtime.arguments import SUM, check_call
from hpccoll.runtime.arrays import ArrayModule, Reduction
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.engine import Engine
from hpccoll.runtime.executable import Executable
from hpccoll.runtime.messages.point_to_point import PointToPoint
from hpccoll.runtime.node_memory.symmetric import as_torch_tensor
from hpccoll.runtime.progress import get_progress
from hpccoll.runtime.work import Work
from hpccoll.selection import MPI_LIBRARY

if TYPE_CHECKING:
    from mpi4py import MPI


class Communicator:
    """A group of MPI ranks whose messages are separate from those of other communicators.

    `rank` is the number of this rank, `size` the number of ranks, and `local_rank` the number of this rank among the
    communicator's ranks on its node.

    Args:
        comm: the MPI communicator, which the constructor duplicates (collective); None means MPI.COMM_WORLD.
        adopt: whether to use `comm` itself instead of a duplicate; `close` then frees `comm`.

    Raises:
        UnavailableError: mpi4py or the MPI library is not installed.
        LauncherError: the launcher belongs to another MPI library.
    """

    def __init__(self, comm: MPI.Intracomm | None = None, *, adopt: bool = False) -> None:
        base = job.get_world() if comm is None else comm
        wait_for_ranks(base, get_progress())
        comm = base if adopt else base.Dup()
        self._comm, self._message_comm = comm, comm.Dup()
        self._message_comm.Set_errhandler(job.load_mpi().ERRORS_RETURN)
        self.rank, self.size = comm.rank, comm.size
        self._engine = Engine(comm, _takes_device_memory)
        self.local_rank = self._engine.node.ranks.index(comm.rank)
        self._argument_check = ArgumentCheck(comm, self._engine.progress) if is_enabled() else None
        self._messages = PointToPoint(self._message_comm, self._engine.progress, self._engine.uses_pinned_memory)
        self._cache, self._process = self._engine.cache, os.getpid()
        self._cached_calls, self._by_kind = self._cache.by_array, self._cache.by_kind
        self._unbound, self._in_flight = self._engine.unbound, self._engine.progress.operations
        self._release = weakref.finalize(self, _release, self._engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        # After an error on one rank, `close` would wait forever for the other ranks, because it is collective.
        if error is None:
            self.close()

    def close(self) -> None:
        """Wait for operations in flight, then free requests, shared memory and the MPI communicators; collective.

        Without `close`, requests and shared memory are freed at exit, but the MPI communicators are not.
        """
        if self._release.alive:
            self._engine.finish()
            wait_for_ranks(self._comm, self._engine.progress)
            self._release()
            if self._argument_check is not None:
                self._argument_check.free()
            self._message_comm.Free()
            self._comm.Free()

    def all_reduce(self, x: Any, op: str | Reduction = SUM, **how: Any) -> Any:
        """Reduce every rank's `x` by `op` and return the result on all ranks; in place unless `out` is given.

        Args:
            x: array of any shape; shape and dtype must be the same on all ranks.
            op: sum, prod, min, max, avg, band, bor, bxor, or `hpccoll.premul_sum(factor)`.
            how: `out` (array like x), `algorithm` (a name, "auto" by default), `async_op` (return a Work).

        Returns:
            The result array, or a Work whose `wait` returns it.

        Raises:
            BufferError, ReductionError, UnknownNameError: an argument is invalid.
        """
        cached = self._cached_calls.get(id(x))
        if cached is not None and op is SUM and not how:
            executable, (dtype, storage, _), _ = cached
            if x.dtype is dtype and executable.live and (storage is None or storage == (x.data_ptr(), x.nbytes)):
                executable()
                return x
        return self._collective(Operation.ALL_REDUCE, x, op=op, **how)

    def reduce(self, x: Any, root: int = 0, op: str | Reduction = SUM, **how: Any) -> Any:
        """Reduce every rank's `x` by `op` into the root's `out`, or its `x` without `out`; others keep theirs."""
        return self._collective(Operation.REDUCE, x, op=op, root=root, **how)

    def broadcast(self, x: Any, root: int = 0, **how: Any) -> Any:
        """Copy the root's `x` into every rank's `x`, and return `x`."""
        return self._collective(Operation.BROADCAST, x, root=root, **how)

    def reduce_scatter(self, x: Any, op: str | Reduction = SUM, **how: Any) -> Any:
        """Reduce the arrays `x` of all n ranks by `op`, and return block r of the result on rank r.

        The first dim of `x` is divided into n blocks. The result is `out`, or a new array: of shape x.shape[1:] if the
        first dim is n, else of x.shape with the first dim divided by n.
        """
        return self._collective(Operation.REDUCE_SCATTER, x, op=op, **how)

    def all_gather(self, x: Any, **how: Any) -> Any:
        """Collect the `x` of all n ranks on all ranks, in rank order; return `out` or a new array (n, *x.shape)."""
        return self._collective(Operation.ALL_GATHER, x, **how)

    def gather(self, x: Any, root: int = 0, **how: Any) -> Any:
        """Collect every rank's `x` at the root; return `out` or a new array (n, *x.shape) there, None elsewhere."""
        return self._collective(Operation.GATHER, x, root=root, **how)

    def scatter(self, x: Any, root: int = 0, **how: Any) -> Any:
        """Send block r of the root's `x` (n blocks along its first dim) to rank r; return the received block.

        Ranks other than the root pass x=None, and an `out` with the shape and dtype of a block.
        """
        return self._collective(Operation.SCATTER, x, root=root, **how)

    def all_to_all(self, x: Any, **how: Any) -> Any:
        """Send block j of `x` (n blocks along its first dim) to each rank j; return `out` or a new array like x."""
        return self._collective(Operation.ALL_TO_ALL, x, **how)

    def barrier(self, **how: Any) -> Any:
        """Block until every rank has called `barrier`; with `async_op`, return a Work instead."""
        return self._collective(Operation.BARRIER, None, **how)

    def all_reduce_init(self, x: Any, op: str | Reduction = SUM, **how: Any) -> Executable:
        """Prepare an all_reduce of `x` that can run many times: `run = comm.all_reduce_init(x); run()`. Collective."""
        return self.prepare(Operation.ALL_REDUCE, x, op=op, **how)

    def prepare(
        self,
        operation: Operation,
        x: Any,
        *,
        out: Any = None,
        op: str | Reduction = SUM,
        root: int = 0,
        algorithm: str | Algorithm = "auto",
    ) -> Executable:
        """Prepare a collective on `x` and `out` without running it; return an executable that can run many times.

        The executable is freed by its method `free` or by closing the communicator. Collective.
        """
        return self._engine.prepare(self._check("prepare", operation, x, out, op, root, algorithm))

    def send(self, x: Any, dest: int, tag: int = 0) -> None:
        """Send `x` to rank `dest`; block until `x` may be reused. Raise UsageError if `dest` is this rank."""
        if dest == self.rank:
            raise UsageError(f"rank {dest} would wait for itself in send; use isend, then recv")
        self.isend(x, dest, tag).wait()

    def recv(self, x: Any, source: int, tag: int = 0) -> Any:
        """Receive a message from rank `source` into `x`, and return `x`; `x` must have exactly the message's size."""
        return self.irecv(x, source, tag).wait()

    def isend(self, x: Any, dest: int, tag: int = 0) -> Work:
        """Start sending `x` to rank `dest`; `x` must not change until the Work is done."""
        self._require_open()
        return self._messages.isend(x, dest, tag)

    def irecv(self, x: Any, source: int, tag: int = 0) -> Work:
        """Start receiving from rank `source` into `x`, which must not be accessed until the Work is done."""
        self._require_open()
        return self._messages.irecv(x, source, tag)

    def new_group(self, ranks: list[int]) -> Communicator | None:
        """Return a communicator of the given ranks, in their order; collective over the given ranks.

        On a rank that is not in `ranks`, the call is optional and returns None.

        Raises:
            UsageError: `ranks` is empty, has a rank twice, or has a rank that is not in this communicator.
        """
        self._require_open()
        if len(set(ranks)) != len(ranks) or not all(0 <= rank < self.size for rank in ranks) or not ranks:
            raise UsageError(f"ranks {ranks} are not distinct ranks of 0..{self.size - 1}; name each member once")
        if self.rank not in ranks:
            return None
        wait_for_members(self._comm, ranks, self._engine.progress)
        group = self._comm.group.Incl(ranks)
        communicator = Communicator(self._comm.Create_group(group), adopt=True)
        group.Free()
        return communicator

    def empty(self, shape: int | tuple[int, ...], dtype: Any = "float32") -> Any:
        """Return an uninitialised NumPy array in memory that all ranks of the node can address; collective.

        Collectives access such an array (a symmetric buffer) in place; pass symmetric buffers on all ranks or on none.
        The memory of all ranks of the node is released when no array on any of these ranks uses it.

        Raises:
            UsageError: any rank passed a negative extent or an unknown dtype.
            MismatchError: the ranks passed different shapes or dtypes.
            UnavailableError: any rank has too little memory, or the ranks cannot share memory.
        """
        self._require_open()
        return self._engine.node.symmetric.empty(shape, dtype)

    def cupy_empty(self, shape: int | tuple[int, ...], dtype: Any = "float32") -> Any:
        """Return an uninitialised CuPy array in device memory that all ranks of the node can address; collective."""
        from hpccoll.runtime.cuda.device import device_empty

        self._require_open()
        return device_empty(self._engine.node, shape, dtype)

    def torch_empty(self, shape: int | tuple[int, ...], dtype: Any = "float32", device: Any = "cpu") -> Any:
        """Return an uninitialised torch tensor that all ranks of the node can address; collective.

        `device` is cpu, cuda (the current device) or a device by number, such as cuda:1.
        """
        kind, _, index = str(device).partition(":")
        name = str(dtype).removeprefix("torch.")
        if kind != "cuda":
            return as_torch_tensor(self.empty(shape, name))
        from hpccoll.runtime.cuda.device import device_empty

        self._require_open()
        return as_torch_tensor(device_empty(self._engine.node, shape, name, int(index) if index else None))

    def free(self, x: Any) -> None:
        """Free a symmetric buffer and the executables bound to it on this rank; later use raises UsageError."""
        self._engine.node.symmetric.free(x)

    def stages(self, module: ArrayModule) -> bool:
        """Whether messages from an array module's memory pass through pinned host memory.

        For device memory, the first call starts probe processes and waits for them.
        """
        return self._engine.uses_pinned_memory(module)

    def _collective(
        self,
        operation: Operation,
        x: Any,
        *,
        out: Any = None,
        op: str | Reduction = SUM,
        root: int = 0,
        algorithm: str | Algorithm = "auto",
        async_op: bool = False,
    ) -> Any:
        """Run a collective by its cached executable, if any, or else by the engine; return the result or a Work."""
        if type(x) is ndarray and not async_op and not self._in_flight:
            found = self._by_kind.get((operation, x.dtype, x.nbytes, op, root, algorithm, out is None))
            if found is not None and found.is_direct(x, out):
                return found.direct(x, out)
        default_sum = operation is Operation.ALL_REDUCE and op is SUM and algorithm == "auto" and out is None
        key = id(x) if default_sum else (operation, id(x), id(out), op, root, algorithm)
        unbound = None
        if not async_op:
            executable = self._cache.find_by_array(key, x, out) if key in self._cached_calls else None
            if executable is not None:
                executable()
                return x if out is None else out
            unbound = self._unbound.find(operation, x, out, op, root, algorithm)
            if unbound is not None and not (unbound.output_given and self._cache.is_due(key) and not self._in_flight):
                return unbound(x, out)
        call = self._check("async" if async_op else "blocking", operation, x, out, op, root, algorithm)
        if async_op:
            operation_in_flight = self._engine.start(call)
            return Work(self.rank, self._engine.progress, operation_in_flight, call.value)
        executable = self._engine.run(call, again=unbound is not None)
        if self._argument_check is None:
            if executable is not None and call.output_given:
                self._cache.add_by_array(key, executable, x, out)
            if unbound is None:
                self._engine.remember(call, x, out, op, algorithm)
                self._cache.is_due(key)
        return call.value

    def _require_open(self) -> None:
        """Raise UsageError if the communicator is closed or this process is a fork of the communicator's process."""
        if os.getpid() != self._process:
            raise UsageError(
                f"this communicator belongs to process {self._process}, and MPI cannot be used after a fork; "
                "communicate in the parent, or start the child by multiprocessing's `spawn`"
            )
        if not self._release.alive:
            raise UsageError("this communicator was closed; use one that is open, or close it later")

    def _check(self, form: str, operation: Operation, *arguments: Any) -> CollectiveCall:
        """Return the checked call; with HPCCOLL_DEBUG=1, all ranks also compare its arguments and kind (`form`)."""
        self._require_open()
        x, out, op, root, algorithm = arguments
        if self._argument_check is None:
            return check_call(operation, x, out, self.rank, self.size, root, op, algorithm)
        with self._argument_check.compare(operation) as compared:
            call = check_call(operation, x, out, self.rank, self.size, root, op, algorithm)
            buffer = call.result or call.source
            name = call.algorithm.full_name if call.algorithm else MPI_LIBRARY if call.library else "auto"
            compared.update(shape=call.shape, dtype=buffer.dtype.name if buffer else "none", op=call.reduction.name)
            memory = self._engine.buffer_kind(call).value
            compared.update(root=call.root, algorithm=name, call=form, memory=memory)
        return call


def _takes_device_memory() -> bool:
    """Whether MPI accepts device memory; the first call on a host with a GPU starts probe processes."""
    from hpccoll.runtime.cuda.probe import is_mpi_cuda_aware

    return is_mpi_cuda_aware()


def _release(engine: Engine) -> None:
    """Free an engine (the runtime of a communicator), unless MPI is already finalized."""
    if not job.load_mpi().Is_finalized():
        engine.free()
