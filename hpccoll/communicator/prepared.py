"""Collectives that are prepared once and run many times."""

from __future__ import annotations

from hpccoll.communicator.array_types import AlgorithmLike, Array, Rank, ReduceOp, RowCounts
from hpccoll.communicator.base import CommunicatorBase
from hpccoll.errors import BufferError
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import SUM
from hpccoll.runtime.executable import Executable


class PreparedMethods(CommunicatorBase):
    """The methods of a communicator that bind a collective to arrays, to run it many times."""

    def all_reduce_init(
        self, x: Array, op: ReduceOp = SUM, *, out: Array | None = None, algorithm: AlgorithmLike = "auto"
    ) -> Executable:
        """Prepare an all_reduce of `x` that can run many times: `run = comm.all_reduce_init(x); run()`. Collective.

        Example:
            >>> x = np.ones(3)
            >>> run = comm.all_reduce_init(x)
            >>> run()
            >>> x / comm.size
            array([1., 1., 1.])
            >>> run.free()
        """
        return self.prepare(Operation.ALL_REDUCE, x, out=out, op=op, algorithm=algorithm)

    def prepare(
        self,
        operation: Operation,
        x: Array | None,
        *,
        out: Array | None = None,
        op: ReduceOp = SUM,
        root: Rank = 0,
        algorithm: AlgorithmLike = "auto",
        counts: RowCounts | None = None,
        out_counts: RowCounts | None = None,
    ) -> Executable:
        """Prepare a collective on `x` and `out` without running it; return an object whose calls run it. Collective.

        The arguments are those of the blocking method of this operation; `out` None means `x` itself for operations
        that work in place, else a new array. The returned executable is freed by its method `free` or by closing the
        communicator.

        Raises:
            BufferError: `x` is not contiguous; every run of the executable reads `x` itself.

        Example:
            >>> from hpccoll.plan import Operation
            >>> x = np.array([comm.rank + 5])
            >>> run = comm.prepare(Operation.BROADCAST, x, root=0)
            >>> run()
            >>> x
            array([5])
        """
        rows = None if counts is None and out_counts is None else (counts, out_counts)
        call = self._check("prepare", operation, x, out, op, root, algorithm, rows)
        if call.source is not None and call.source.copied:
            raise BufferError(
                f"a prepared {operation.value} reads x of shape {call.source.shape} in place, and x is not a "
                "C-contiguous array of NumPy, CuPy or torch; pass a contiguous copy"
            )
        with self._state.call("prepare"):
            return self._engine.prepare(call)
