"""The collectives that reduce the arrays of all ranks: all_reduce, reduce and reduce_scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, overload

from hpccoll.communicator.array_types import AlgorithmLike, Array, ArrayT, Rank, ReduceOp, RowCounts, ValueT
from hpccoll.communicator.base import CommunicatorBase
from hpccoll.communicator.table_methods import run_known_calls
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import SUM
from hpccoll.runtime.work import Work

# Looking up a member of an Enum takes 50 ns longer than looking up a global name.
_REDUCE_SCATTER: Final = Operation.REDUCE_SCATTER


class ReductionMethods(CommunicatorBase):
    """The methods of a communicator for collectives that reduce the arrays of all ranks."""

    @overload
    def all_reduce(
        self,
        x: ValueT,
        op: ReduceOp = ...,
        *,
        out: Array | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[False] = ...,
    ) -> ValueT: ...
    @overload
    def all_reduce(
        self,
        x: ValueT,
        op: ReduceOp = ...,
        *,
        out: Array | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[True],
    ) -> Work[ValueT]: ...
    @overload
    def all_reduce(
        self, x: ValueT, op: ReduceOp = ..., *, out: Array | None = ..., algorithm: AlgorithmLike = ..., async_op: bool
    ) -> ValueT | Work[ValueT]: ...
    @run_known_calls(Operation.ALL_REDUCE)
    def all_reduce(
        self, x: Any, op: ReduceOp = SUM, *, out: Any = None, algorithm: AlgorithmLike = "auto", async_op: bool = False
    ) -> Any:
        """Reduce every rank's `x` by `op` and return the result on all ranks; in place without `out`. Collective.

        Args:
            x: array of one shape and dtype on all ranks, or a number of Python or NumPy.
            op: sum, prod, min, max, avg, band, bor, bxor, or `hpccoll.premul_sum(factor)`; `MPI.Op` and
                `torch.distributed.ReduceOp` are accepted, too.
            out: array like `x` for the result; None means `x` itself.
            algorithm: the name of an algorithm; "auto" selects one, "mpi" is the MPI library's own collective.
            async_op: whether to return a `Work` at once.

        Returns:
            The result array (`x` or `out`), or a `Work` whose `wait` returns it.

        Raises:
            BufferError, ReductionError, UnknownNameError: an argument is invalid.

        Example:
            >>> comm.all_reduce(np.full(3, 2.0)) / comm.size
            array([2., 2., 2.])
        """
        return self._collective(Operation.ALL_REDUCE, x, out, op, 0, algorithm, async_op)

    @overload
    def reduce(
        self,
        x: ValueT,
        root: Rank = ...,
        op: ReduceOp = ...,
        *,
        out: Array | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[False] = ...,
    ) -> ValueT: ...
    @overload
    def reduce(
        self,
        x: ValueT,
        root: Rank = ...,
        op: ReduceOp = ...,
        *,
        out: Array | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[True],
    ) -> Work[ValueT]: ...
    @overload
    def reduce(
        self,
        x: ValueT,
        root: Rank = ...,
        op: ReduceOp = ...,
        *,
        out: Array | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: bool,
    ) -> ValueT | Work[ValueT]: ...
    @run_known_calls(Operation.REDUCE)
    def reduce(
        self,
        x: Any,
        root: Rank = 0,
        op: ReduceOp = SUM,
        *,
        out: Any = None,
        algorithm: AlgorithmLike = "auto",
        async_op: bool = False,
    ) -> Any:
        """Reduce every rank's `x` by `op` into `out` of the root, or into `x` of the root without `out`. Collective.

        Args:
            x: array of one shape and dtype on all ranks, or a number of Python or NumPy.
            root: the rank that gets the result.
            op: see `all_reduce`.
            out: array like `x` for the root's result; None means `x` itself.
            algorithm: see `all_reduce`.
            async_op: whether to return a `Work` at once.

        Returns:
            The root's result; on other ranks, `x` or `out` unchanged; or a `Work` whose `wait` returns the same.

        Raises:
            BufferError, ReductionError, UnknownNameError, UsageError: an argument is invalid.

        Example:
            >>> total = comm.reduce(np.ones(1), root=0)
            >>> comm.rank != 0 or total.tolist() == [comm.size]
            True
        """
        return self._collective(Operation.REDUCE, x, out, op, root, algorithm, async_op)

    @overload
    def reduce_scatter(
        self,
        x: ArrayT | Sequence[ArrayT],
        op: ReduceOp = ...,
        *,
        counts: RowCounts | None = ...,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[False] = ...,
    ) -> ArrayT: ...
    @overload
    def reduce_scatter(
        self,
        x: ArrayT | Sequence[ArrayT],
        op: ReduceOp = ...,
        *,
        counts: RowCounts | None = ...,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[True],
    ) -> Work[ArrayT]: ...
    @overload
    def reduce_scatter(
        self,
        x: ArrayT | Sequence[ArrayT],
        op: ReduceOp = ...,
        *,
        counts: RowCounts | None = ...,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: bool,
    ) -> ArrayT | Work[ArrayT]: ...
    @run_known_calls(Operation.REDUCE_SCATTER)
    def reduce_scatter(
        self,
        x: Any,
        op: ReduceOp = SUM,
        *,
        counts: RowCounts | None = None,
        out: Any = None,
        algorithm: AlgorithmLike = "auto",
        async_op: bool = False,
    ) -> Any:
        """Reduce the arrays `x` of all n ranks by `op`, and return block r of the result on rank r. Collective.

        Args:
            x: array whose first dim is divided into n blocks, one per rank, of equal size or of the sizes `counts`; or
                a list of n arrays, whose shapes may differ but must be the same on all ranks.
            op: see `all_reduce`.
            counts: the number of rows (along the first dim) of each rank's block, if blocks differ in size; the same
                on all ranks.
            out: array for the block; None makes a new array with x.shape[0] // n or `counts[rank]` rows or, for a list
                `x`, with the shape of `x[rank]`.
            algorithm: see `all_reduce`.
            async_op: whether to return a `Work` at once.

        Returns:
            The block of this rank, or a `Work` whose `wait` returns it.

        Raises:
            BufferError, ReductionError, UnknownNameError: an argument is invalid.

        Example:
            >>> comm.reduce_scatter(np.ones((comm.size, 3))) / comm.size
            array([[1., 1., 1.]])
        """
        return self._collective(_REDUCE_SCATTER, x, out, op, 0, algorithm, async_op, counts)
