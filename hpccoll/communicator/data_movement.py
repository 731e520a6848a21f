"""The collectives that move arrays without reducing them: broadcast, all_gather, gather, scatter and all_to_all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, overload

from hpccoll.communicator.array_types import AlgorithmLike, ArrayT, Rank, RowCounts
from hpccoll.communicator.base import CommunicatorBase
from hpccoll.communicator.table_methods import run_known_calls
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import SUM
from hpccoll.runtime.work import Work

# Looking up a member of an Enum takes 50 ns longer than looking up a global name.
_ALL_GATHER: Final = Operation.ALL_GATHER
_ALL_TO_ALL: Final = Operation.ALL_TO_ALL
_GATHER: Final = Operation.GATHER
_SCATTER: Final = Operation.SCATTER


class DataMovementMethods(CommunicatorBase):
    """The methods of a communicator for collectives that move arrays without reducing them, and for the barrier."""

    @overload
    def broadcast(
        self, x: ArrayT, root: Rank = ..., *, algorithm: AlgorithmLike = ..., async_op: Literal[False] = ...
    ) -> ArrayT: ...
    @overload
    def broadcast(
        self, x: ArrayT, root: Rank = ..., *, algorithm: AlgorithmLike = ..., async_op: Literal[True]
    ) -> Work[ArrayT]: ...
    @overload
    def broadcast(
        self, x: ArrayT, root: Rank = ..., *, algorithm: AlgorithmLike = ..., async_op: bool
    ) -> ArrayT | Work[ArrayT]: ...
    @run_known_calls(Operation.BROADCAST)
    def broadcast(self, x: Any, root: Rank = 0, *, algorithm: AlgorithmLike = "auto", async_op: bool = False) -> Any:
        """Copy the root's `x` into every rank's `x`, and return `x`. Collective.

        Args:
            x: array of any shape; shape and dtype must be the same on all ranks.
            root: the rank whose array is copied.
            algorithm: the name of an algorithm; "auto" selects one, "mpi" is the MPI library's own collective.
            async_op: whether to return a `Work` at once.

        Returns:
            `x`, or a `Work` whose `wait` returns it.

        Raises:
            BufferError, UnknownNameError, UsageError: an argument is invalid.

        Example:
            >>> comm.broadcast(np.array([comm.rank + 5]), root=0)
            array([5])
        """
        return self._collective(Operation.BROADCAST, x, None, SUM, root, algorithm, async_op)

    @overload
    def all_gather(
        self,
        x: ArrayT,
        *,
        counts: RowCounts | None = ...,
        out: list[ArrayT],
        algorithm: AlgorithmLike = ...,
        async_op: Literal[False] = ...,
    ) -> list[ArrayT]: ...
    @overload
    def all_gather(
        self,
        x: ArrayT,
        *,
        counts: RowCounts | None = ...,
        out: list[ArrayT],
        algorithm: AlgorithmLike = ...,
        async_op: Literal[True],
    ) -> Work[list[ArrayT]]: ...
    @overload
    def all_gather(
        self,
        x: ArrayT,
        *,
        counts: RowCounts | None = ...,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[False] = ...,
    ) -> ArrayT: ...
    @overload
    def all_gather(
        self,
        x: ArrayT,
        *,
        counts: RowCounts | None = ...,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[True],
    ) -> Work[ArrayT]: ...
    @overload
    def all_gather(
        self,
        x: ArrayT,
        *,
        counts: RowCounts | None = ...,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: bool,
    ) -> ArrayT | Work[ArrayT]: ...
    @run_known_calls(Operation.ALL_GATHER)
    def all_gather(
        self,
        x: Any,
        *,
        counts: RowCounts | None = None,
        out: Any = None,
        algorithm: AlgorithmLike = "auto",
        async_op: bool = False,
    ) -> Any:
        """Collect the `x` of all n ranks on all ranks, in rank order. Collective.

        Args:
            x: array of any shape. The dtype must be the same on all ranks, and so must the shape unless `counts` or a
                list `out` gives the sizes of all ranks' arrays.
            counts: the length of the first dim of each rank's `x`, if these lengths differ; the same on all ranks.
            out: array for the n arrays, or a list of n arrays, of which array r has as many elements as rank r's `x`;
                None makes a new array of shape (n, *x.shape), or (sum(counts), *x.shape[1:]).
            algorithm: see `broadcast`.
            async_op: whether to return a `Work` at once.

        Returns:
            `out` or the new array, or a `Work` whose `wait` returns it.

        Raises:
            BufferError, UnknownNameError: an argument is invalid.

        Example:
            >>> comm.all_gather(np.ones(2)).shape == (comm.size, 2)
            True
        """
        return self._collective(_ALL_GATHER, x, out, SUM, 0, algorithm, async_op, counts)

    @overload
    def gather(
        self,
        x: ArrayT,
        root: Rank = ...,
        *,
        counts: RowCounts | None = ...,
        out: list[ArrayT],
        algorithm: AlgorithmLike = ...,
        async_op: Literal[False] = ...,
    ) -> list[ArrayT] | None: ...
    @overload
    def gather(
        self,
        x: ArrayT,
        root: Rank = ...,
        *,
        counts: RowCounts | None = ...,
        out: list[ArrayT],
        algorithm: AlgorithmLike = ...,
        async_op: Literal[True],
    ) -> Work[list[ArrayT] | None]: ...
    @overload
    def gather(
        self,
        x: ArrayT,
        root: Rank = ...,
        *,
        counts: RowCounts | None = ...,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[False] = ...,
    ) -> ArrayT | None: ...
    @overload
    def gather(
        self,
        x: ArrayT,
        root: Rank = ...,
        *,
        counts: RowCounts | None = ...,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[True],
    ) -> Work[ArrayT | None]: ...
    @overload
    def gather(
        self,
        x: ArrayT,
        root: Rank = ...,
        *,
        counts: RowCounts | None = ...,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: bool,
    ) -> ArrayT | Work[ArrayT | None] | None: ...
    def gather(
        self,
        x: Any,
        root: Rank = 0,
        *,
        counts: RowCounts | None = None,
        out: Any = None,
        algorithm: AlgorithmLike = "auto",
        async_op: bool = False,
    ) -> Any:
        """Collect every rank's `x` at the root, in rank order. Collective.

        Args:
            x: array of any shape; shape and dtype must be the same on all ranks.
            root: the rank that gets the result.
            counts: the length of the first dim of each rank's `x`, if these lengths differ; the same on all ranks.
            out: at the root, array for the n arrays, or a list of n arrays, one per rank; None makes a new array of
                shape (n, *x.shape), or (sum(counts), *x.shape[1:]).
            algorithm: see `broadcast`.
            async_op: whether to return a `Work` at once.

        Returns:
            `out` or the new array at the root, None on other ranks; or a `Work` whose `wait` returns the same.

        Raises:
            BufferError, UnknownNameError, UsageError: an argument is invalid.

        Example:
            >>> rows = comm.gather(np.array([7]), root=0)
            >>> comm.rank != 0 or rows[-1].tolist() == [7]
            True
        """
        return self._collective(_GATHER, x, out, SUM, root, algorithm, async_op, counts)

    @overload
    def scatter(
        self,
        x: ArrayT | Sequence[ArrayT] | None,
        root: Rank = ...,
        *,
        counts: RowCounts | None = ...,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[False] = ...,
    ) -> ArrayT: ...
    @overload
    def scatter(
        self,
        x: ArrayT | Sequence[ArrayT] | None,
        root: Rank = ...,
        *,
        counts: RowCounts | None = ...,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[True],
    ) -> Work[ArrayT]: ...
    @overload
    def scatter(
        self,
        x: ArrayT | Sequence[ArrayT] | None,
        root: Rank = ...,
        *,
        counts: RowCounts | None = ...,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: bool,
    ) -> ArrayT | Work[ArrayT]: ...
    def scatter(
        self,
        x: Any,
        root: Rank = 0,
        *,
        counts: RowCounts | None = None,
        out: Any = None,
        algorithm: AlgorithmLike = "auto",
        async_op: bool = False,
    ) -> Any:
        """Send block r of the root's `x` to each rank r, and return the block of this rank. Collective.

        Args:
            x: at the root, an array whose first dim is divided into n blocks, of equal size or of the sizes `counts`,
                or a list of n arrays, of one shape or with `counts[r]` rows each; None on other ranks.
            root: the rank whose array is divided.
            counts: the number of rows (along the first dim) of each rank's block, if blocks differ in size; the same
                on all ranks.
            out: array for the block; None makes a new array at the root, and other ranks must pass `out`.
            algorithm: see `broadcast`.
            async_op: whether to return a `Work` at once.

        Returns:
            `out` or the new array, or a `Work` whose `wait` returns it.

        Raises:
            BufferError, UnknownNameError, UsageError: an argument is invalid.

        Example:
            >>> x = np.arange(comm.size) if comm.rank == 0 else None
            >>> block = comm.scatter(x, root=0, out=np.empty(1, int))
            >>> block.tolist() == [comm.rank]
            True
        """
        return self._collective(_SCATTER, x, out, SUM, root, algorithm, async_op, counts)

    @overload
    def all_to_all(
        self,
        x: Sequence[ArrayT],
        *,
        counts: RowCounts | None = ...,
        out_counts: RowCounts | None = ...,
        out: list[ArrayT] | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[False] = ...,
    ) -> list[ArrayT]: ...
    @overload
    def all_to_all(
        self,
        x: Sequence[ArrayT],
        *,
        counts: RowCounts | None = ...,
        out_counts: RowCounts | None = ...,
        out: list[ArrayT] | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[True],
    ) -> Work[list[ArrayT]]: ...
    @overload
    def all_to_all(
        self,
        x: ArrayT,
        *,
        counts: RowCounts | None = ...,
        out_counts: RowCounts | None = ...,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[False] = ...,
    ) -> ArrayT: ...
    @overload
    def all_to_all(
        self,
        x: ArrayT,
        *,
        counts: RowCounts | None = ...,
        out_counts: RowCounts | None = ...,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: Literal[True],
    ) -> Work[ArrayT]: ...
    @overload
    def all_to_all(
        self,
        x: ArrayT,
        *,
        counts: RowCounts | None = ...,
        out_counts: RowCounts | None = ...,
        out: ArrayT | None = ...,
        algorithm: AlgorithmLike = ...,
        async_op: bool,
    ) -> ArrayT | Work[ArrayT]: ...
    @run_known_calls(Operation.ALL_TO_ALL)
    def all_to_all(
        self,
        x: Any,
        *,
        counts: RowCounts | None = None,
        out_counts: RowCounts | None = None,
        out: Any = None,
        algorithm: AlgorithmLike = "auto",
        async_op: bool = False,
    ) -> Any:
        """Send block j of `x` to rank j, and return the blocks of all ranks for this rank, in rank order. Collective.

        Args:
            x: array whose first dim is divided into n blocks, one per rank, of equal size or of the sizes `counts`; or
                a list of n arrays, which may differ in shape if `out` is a list on all ranks.
            counts: the number of rows (along the first dim) that this rank sends to each rank, if these differ.
            out_counts: the number of rows that this rank receives from each rank; required with `counts`.
            out: array for the result, or a list of n arrays, of which array r gets the block from rank r; None makes a
                new array like `x`, with sum(out_counts) rows if `counts` is given, or a list if `x` is a list.
            algorithm: see `broadcast`.
            async_op: whether to return a `Work` at once.

        Returns:
            `out` or the new array, or a `Work` whose `wait` returns it.

        Raises:
            BufferError, UnknownNameError: an argument is invalid.

        Example:
            >>> received = comm.all_to_all(np.full((comm.size, 2), comm.rank))
            >>> received[:, 0].tolist() == list(range(comm.size))
            True
        """
        return self._collective(_ALL_TO_ALL, x, out, SUM, 0, algorithm, async_op, counts, out_counts)

    @overload
    def barrier(self, *, algorithm: AlgorithmLike = ..., async_op: Literal[False] = ...) -> None: ...
    @overload
    def barrier(self, *, algorithm: AlgorithmLike = ..., async_op: Literal[True]) -> Work[None]: ...
    @overload
    def barrier(self, *, algorithm: AlgorithmLike = ..., async_op: bool) -> Work[None] | None: ...
    @run_known_calls(Operation.BARRIER)
    def barrier(self, *, algorithm: AlgorithmLike = "auto", async_op: bool = False) -> Any:
        """Block until every rank has called `barrier`; with `async_op`, return a `Work` at once. Collective.

        Args:
            algorithm: see `broadcast`.
            async_op: whether to return a `Work` at once.

        Example:
            >>> comm.barrier()
        """
        return self._collective(Operation.BARRIER, None, None, SUM, 0, algorithm, async_op)
