"""The scans of a communicator: reductions over the ranks up to this rank."""

from __future__ import annotations

from typing import Any, Final, Literal, overload

from hpccoll.communicator.array_types import AlgorithmLike, ArrayT, ReduceOp
from hpccoll.communicator.base import CommunicatorBase
from hpccoll.communicator.table_methods import run_known_calls
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import SUM
from hpccoll.runtime.work import Work

_SCAN: Final = Operation.SCAN  # a look-up in an Enum takes 50 ns longer than a global name
_EXSCAN: Final = Operation.EXSCAN


class ScanMethods(CommunicatorBase):
    """The methods of a communicator that reduce over the ranks up to this one (`scan`), or before it (`exscan`)."""

    @overload
    def scan(
        self,
        x: ArrayT,
        op: ReduceOp = ...,
        *,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[False] = ...,
    ) -> ArrayT: ...
    @overload
    def scan(
        self,
        x: ArrayT,
        op: ReduceOp = ...,
        *,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[True],
    ) -> Work[ArrayT]: ...
    @overload
    def scan(
        self, x: ArrayT, op: ReduceOp = ..., *, out: ArrayT | None = ..., algorithm: AlgorithmLike = ..., async_op: bool
    ) -> ArrayT | Work[ArrayT]: ...
    @run_known_calls(Operation.SCAN)
    def scan(
        self, x: Any, op: ReduceOp = SUM, *, out: Any = None, algorithm: AlgorithmLike = "auto", async_op: bool = False
    ) -> Any:
        """Reduce the `x` of ranks 0 to r by `op`, and return the result on each rank r. Collective.

        Args:
            x: array of any shape; shape and dtype must be the same on all ranks.
            op: as in `all_reduce`, but not avg.
            out: array like `x` for the result; None means `x` itself.
            algorithm: the name of an algorithm; "auto" selects one, "mpi" is the MPI library's own collective.
            async_op: whether to return a `Work` at once.

        Returns:
            The result array (`x` or `out`), or a `Work` whose `wait` returns it.

        Raises:
            BufferError, ReductionError, UnknownNameError: an argument is invalid.

        Example:
            >>> comm.scan(np.ones(2)) / (comm.rank + 1)
            array([1., 1.])
        """
        return self._collective(_SCAN, x, out, op, 0, algorithm, async_op)

    @overload
    def exscan(
        self,
        x: ArrayT,
        op: ReduceOp = ...,
        *,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[False] = ...,
    ) -> ArrayT: ...
    @overload
    def exscan(
        self,
        x: ArrayT,
        op: ReduceOp = ...,
        *,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[True],
    ) -> Work[ArrayT]: ...
    @overload
    def exscan(
        self, x: ArrayT, op: ReduceOp = ..., *, out: ArrayT | None = ..., algorithm: AlgorithmLike = ..., async_op: bool
    ) -> ArrayT | Work[ArrayT]: ...
    @run_known_calls(Operation.EXSCAN)
    def exscan(
        self, x: Any, op: ReduceOp = SUM, *, out: Any = None, algorithm: AlgorithmLike = "auto", async_op: bool = False
    ) -> Any:
        """Reduce the `x` of ranks 0 to r - 1 by `op`, and return the result on each rank r. Collective.

        Rank 0 has no lower ranks: on rank 0, `x` or `out` is returned unchanged.

        Args:
            x: array of any shape; shape and dtype must be the same on all ranks.
            op: as in `all_reduce`, but not avg.
            out: array like `x` for the result; None means `x` itself.
            algorithm: see `scan`.
            async_op: whether to return a `Work` at once.

        Returns:
            The result array (`x` or `out`), or a `Work` whose `wait` returns it.

        Raises:
            BufferError, ReductionError, UnknownNameError: an argument is invalid.

        Example:
            >>> below = comm.exscan(np.ones(1))
            >>> comm.rank == 0 or below.tolist() == [comm.rank]
            True
        """
        return self._collective(_EXSCAN, x, out, op, 0, algorithm, async_op)
