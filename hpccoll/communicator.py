"""The public face: collectives, messages and groups on NumPy, CuPy and torch arrays.

Names, argument order and in-place defaults follow torch.distributed; what is not given an `out` and has the shape of
its input works in place. Every collective passes through `Communicator._collective`, in the same order on all ranks.

Cost: that of the algorithm (see its file), in alpha (a step), beta (a byte sent) and gamma (a byte reduced); the
first call on a buffer lowers the plan, the second binds it, later ones only run it.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, Self

from hpccoll.algorithms.registry import Algorithm, get_algorithm
from hpccoll.errors import UsageError
from hpccoll.plan import Operation
from hpccoll.runtime import agreement, job
from hpccoll.runtime.arguments import CheckedArguments, check_arguments
from hpccoll.runtime.arrays import ArrayModule, Buffer, Reduction
from hpccoll.runtime.collective_call import CollectiveCall, is_in_place
from hpccoll.runtime.cuda.probe import is_mpi_cuda_aware
from hpccoll.runtime.decider import memory_of
from hpccoll.runtime.engine import Bound, Engine
from hpccoll.runtime.messages import point_to_point as messaging
from hpccoll.runtime.seen import Seen
from hpccoll.runtime.shared_memory.symmetric import tensor_on
from hpccoll.runtime.work import Work
from hpccoll.selection import MPI_LIBRARY

if TYPE_CHECKING:
    from mpi4py import MPI

_SUM = Reduction("sum")


class Communicator:
    """A group of MPI ranks with its own message space.

    Args:
        comm: the MPI communicator to duplicate; MPI.COMM_WORLD where it is None. Creating is collective over it.
        adopt: take `comm` over instead of duplicating it; `close` frees it.

    Raises:
        UnavailableError: there is no MPI here.
        LauncherError: the launcher and the MPI library do not belong together.
    """

    def __init__(self, comm: MPI.Intracomm | None = None, *, adopt: bool = False) -> None:
        given = job.get_world() if comm is None else comm
        comm = given if adopt else given.Dup()
        self._comm, self._pairs = comm, comm.Dup()
        self._pairs.Set_errhandler(job.load_mpi().ERRORS_RETURN)
        self.rank, self.size = comm.rank, comm.size
        self._engine = Engine(comm, is_mpi_cuda_aware)
        self._debug = agreement.Agreement(comm) if agreement.wanted() else None
        self._seen, self._process = Seen(), os.getpid()
        self._sums = self._seen.sums
        self._release = weakref.finalize(self, _release, self._engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        # Closing is collective: after an error on one rank it would wait for the others for ever.
        if error is None:
            self.close()

    def close(self) -> None:
        """Give everything back to MPI; collective. Without it requests are freed at exit, message spaces are not."""
        if self._release.alive:
            while self._engine.busy:
                self._engine.progress()
            self._release()
            if self._debug is not None:
                self._debug.free()
            self._pairs.Free()
            self._comm.Free()

    def all_reduce(self, x: Any, op: str | Reduction = _SUM, **how: Any) -> Any:
        """Combine every rank's `x` by `op` into the same result on all ranks; in place unless `out` is given.

        Args:
            x: array of any shape, alike on all ranks.
            op: sum, prod, min, max, avg, band, bor, bxor, or `hpccoll.premul_sum(factor)`.
            how: `out` (array like x), `algorithm` (a name, "auto" by default), `async_op` (return a Work).

        Returns:
            The result array, or a Work whose `wait` returns it.

        Raises:
            BufferError, ReductionError, UnknownNameError: x, out, op or algorithm do not fit.
        """
        seen = self._sums.get(id(x))
        if seen is not None and op is _SUM and not how:
            executable, dtype, kind, _ = seen
            if x.dtype is dtype and executable.live and (kind is None or kind == (x.data_ptr(), x.nbytes)):
                executable()
                return x
        return self._collective(Operation.ALL_REDUCE, x, op=op, **how)

    def reduce(self, x: Any, root: int = 0, op: str | Reduction = _SUM, **how: Any) -> Any:
        """Combine every rank's `x` into the root's (or the root's `out`); other ranks' arrays stay as they are."""
        return self._collective(Operation.REDUCE, x, op=op, root=root, **how)

    def broadcast(self, x: Any, root: int = 0, **how: Any) -> Any:
        """Copy the root's `x` into every rank's `x`."""
        return self._collective(Operation.BROADCAST, x, root=root, **how)

    def reduce_scatter(self, x: Any, op: str | Reduction = _SUM, **how: Any) -> Any:
        """Combine every rank's `x`, n blocks along its first dim; rank r gets block r.

        Returns `out`, or a new array: x.shape[1:] where x has n rows, else x.shape with the first dim divided by n.
        """
        return self._collective(Operation.REDUCE_SCATTER, x, op=op, **how)

    def all_gather(self, x: Any, **how: Any) -> Any:
        """Collect every rank's `x` on all ranks, in rank order; returns `out` or a new array (n, *x.shape)."""
        return self._collective(Operation.ALL_GATHER, x, **how)

    def gather(self, x: Any, root: int = 0, **how: Any) -> Any:
        """Collect every rank's `x` at the root: there `out` or a new array (n, *x.shape), None elsewhere."""
        return self._collective(Operation.GATHER, x, root=root, **how)

    def scatter(self, x: Any, root: int = 0, **how: Any) -> Any:
        """Hand block r of the root's `x` (n blocks along its first dim) to rank r, in its `out`.

        Ranks other than the root pass x=None, and `out`, which tells them shape and dtype.
        """
        return self._collective(Operation.SCATTER, x, root=root, **how)

    def all_to_all(self, x: Any, **how: Any) -> Any:
        """Send block j of `x` (n blocks along its first dim) to rank j; returns `out` or a new array like x."""
        return self._collective(Operation.ALL_TO_ALL, x, **how)

    def barrier(self, **how: Any) -> Any:
        """Return once every rank has called it."""
        return self._collective(Operation.BARRIER, None, **how)

    def all_reduce_init(self, x: Any, op: str | Reduction = _SUM, **how: Any) -> Bound:
        """Prepare an all_reduce of `x` to be run many times: `run = comm.all_reduce_init(x); run()`. Collective."""
        return self.prepare(Operation.ALL_REDUCE, x, op=op, **how)

    def prepare(
        self,
        operation: Operation,
        x: Any,
        *,
        out: Any = None,
        op: str | Reduction = _SUM,
        root: int = 0,
        algorithm: str | Algorithm = "auto",
    ) -> Bound:
        """Prepare any collective on these very arrays; collective. `free` it, or it is freed with the communicator."""
        return self._engine.prepare(self._agreed("prepare", operation, x, out, op, root, algorithm)[0])

    def send(self, x: Any, dest: int, tag: int = 0) -> None:
        """Send `x` to rank `dest`; returns when x may be reused."""
        if dest == self.rank:
            raise UsageError(f"rank {dest} would wait for itself in send; use isend, then recv")
        self.isend(x, dest, tag).wait()

    def recv(self, x: Any, source: int, tag: int = 0) -> Any:
        """Receive into `x`, as large as what rank `source` sends, and return it."""
        return self.irecv(x, source, tag).wait()

    def isend(self, x: Any, dest: int, tag: int = 0) -> Work:
        """Start sending `x`; it must not change until the Work is done."""
        self._require_open()
        return messaging.isend(self._engine, self._pairs, x, dest, tag)

    def irecv(self, x: Any, source: int, tag: int = 0) -> Work:
        """Start receiving into `x`; it must not be touched until the Work is done."""
        self._require_open()
        return messaging.irecv(self._engine, self._pairs, x, source, tag)

    def new_group(self, ranks: list[int]) -> Communicator | None:
        """Return a communicator of these ranks, in this order; only they need to call, others get None.

        Raises:
            UsageError: a rank that is not in this communicator, or one named twice.
        """
        self._require_open()
        if len(set(ranks)) != len(ranks) or not all(0 <= rank < self.size for rank in ranks) or not ranks:
            raise UsageError(f"ranks {ranks} are not distinct ranks of 0..{self.size - 1}; name each member once")
        if self.rank not in ranks:
            return None
        group = self._comm.group.Incl(ranks)
        made = Communicator(self._comm.Create_group(group), adopt=True)
        group.Free()
        return made

    def empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Any:
        """Return an uninitialised NumPy array in memory that all ranks of the node can address; collective.

        Collectives take it as any other array, and reach it where it is; a call takes symmetric buffers on all ranks or
        on none. Its memory goes when no array lies in it any
        more, on any rank, or by `free`.

        Raises:
            UsageError: a negative extent or an unknown dtype.
            MismatchError: ranks asked for different shapes or dtypes.
            UnavailableError: there is too little memory, or it cannot be shared.
        """
        self._require_open()
        return self._engine.node.symmetric.empty(shape, dtype)

    def cupy_empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Any:
        """Return an uninitialised CuPy array in device memory that all ranks of the node can address; collective."""
        self._require_open()
        return self._engine.node.device_empty(shape, dtype)

    def torch_empty(self, shape: int | tuple[int, ...], dtype: Any = "float32", device: Any = "cpu") -> Any:
        """Return such memory as a torch tensor on `device`, cpu or cuda; collective. `dtype` is torch's or a name."""
        make = self.cupy_empty if str(device).startswith("cuda") else self.empty
        return tensor_on(make(shape, str(dtype).removeprefix("torch.")))

    def free(self, x: Any) -> None:
        """Give a symmetric buffer back, each rank for itself; UsageError where it is none, or was freed before."""
        self._engine.node.symmetric.free(x)

    def stages(self, module: ArrayModule) -> bool:
        """Whether memory of this module reaches MPI through pinned host memory (a probe decides)."""
        return self._engine.stages(module)

    def _collective(
        self,
        operation: Operation,
        x: Any,
        *,
        out: Any = None,
        op: str | Reduction = _SUM,
        root: int = 0,
        algorithm: str | Algorithm = "auto",
        async_op: bool = False,
    ) -> Any:
        key = (operation, id(x), id(out), op, root, algorithm)
        known = None if async_op or self._engine.busy else self._seen.get(key, x, out)
        if known is not None:
            known()
            return x if out is None else out
        made, shaped = self._agreed("async" if async_op else "blocking", operation, x, out, op, root, algorithm)
        if async_op:
            return Work(self._engine, self._engine.start(made).advance, shaped.value, (x, out))
        executable = self._engine.run(made)
        if executable is not None and self._debug is None and shaped.given:
            self._seen.remember(key, executable, x, out)
            if operation is Operation.ALL_REDUCE and op is _SUM and algorithm == "auto" and out is None:
                self._seen.remember_sum(executable, x)
        return shaped.value

    def _require_open(self) -> None:
        if os.getpid() != self._process:
            raise UsageError(
                f"this communicator belongs to process {self._process}, and MPI cannot be used after a fork; "
                "communicate in the parent, or start the child by multiprocessing's `spawn`"
            )
        if not self._release.alive:
            raise UsageError("this communicator was closed; use one that is open, or close it later")

    def _checked(
        self, operation: Operation, x: Any, out: Any, op: str | Reduction, root: int, algorithm: str | Algorithm
    ) -> tuple[CollectiveCall, CheckedArguments]:
        """Turn the arguments of a call into a job; everything that is wrong with them on this rank alone shows here."""
        reduction = Reduction.parse(op)
        if not 0 <= root < self.size:
            raise UsageError(f"root {root} is not a rank of 0..{self.size - 1}")
        chosen = algorithm if isinstance(algorithm, Algorithm) else None
        if isinstance(algorithm, str) and algorithm not in ("auto", MPI_LIBRARY):
            chosen = get_algorithm(operation, algorithm)
        if chosen is not None and chosen.operation is not operation:
            raise UsageError(f"{chosen.full_name} is no algorithm for {operation.value}; name one of its own")
        shaped = check_arguments(operation, x, out, self.rank, self.size, root)
        buffer: Buffer | None = shaped.source or shaped.result
        if operation.reduces and buffer is not None:
            reduction.require(buffer.dtype, buffer.shape)
        made = CollectiveCall(
            operation, chosen, root, reduction, shaped.source, shaped.result, shaped.count, algorithm == MPI_LIBRARY
        )
        is_in_place(made, self.rank)
        return made, shaped

    def _agreed(self, way: str, operation: Operation, *arguments: Any) -> tuple[CollectiveCall, CheckedArguments]:
        """Check this rank's arguments and, under HPCCOLL_DEBUG=1, hold them against the other ranks'."""
        self._require_open()
        if self._debug is None:
            return self._checked(operation, *arguments)
        with self._debug.round(operation, self._engine.progress) as facts:
            made, shaped = self._checked(operation, *arguments)
            chosen = made.algorithm.full_name if made.algorithm else MPI_LIBRARY if made.library else "auto"
            facts.update(shape=shaped.shape, dtype=shaped.dtype, op=made.reduction.name, root=made.root)
            facts.update(algorithm=chosen, call=way, memory=memory_of(made, self._engine.node).value)
        return made, shaped


def _release(engine: Engine) -> None:
    if not job.load_mpi().Is_finalized():
        engine.free()
