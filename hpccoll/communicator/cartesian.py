"""Communicators of ranks on a grid: coordinates, shifts, and exchanges with the neighbors of a rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

import numpy as np

from hpccoll.arrays import export_array, import_array, is_foreign
from hpccoll.communicator.array_types import ArrayT, OnFailure, Rank
from hpccoll.communicator.communicator import Communicator
from hpccoll.errors import BufferError, UsageError
from hpccoll.runtime import job
from hpccoll.runtime.arguments import empty_like
from hpccoll.runtime.messages.point_to_point import PROC_NULL, PointToPoint

if TYPE_CHECKING:
    from mpi4py import MPI


_MOST_DIMS: Final = 32


class CartesianCommunicator(Communicator):
    """A communicator whose ranks are the points of a grid, in row-major order; made by `Communicator.cart`.

    `dims` is the number of ranks along each dim, `periods` whether the grid wraps around along it, and `coords` the
    position of this rank. `neighbors` are the ranks next to this one, two per dim: at the smaller, then at the larger
    coordinate; hpccoll.PROC_NULL beyond the border of a dim that does not wrap around. The constructor is collective.

    Args:
        comm: the MPI communicator of the grid's ranks, which `close` frees.
        dims: number of ranks along each dim.
        periods: whether each dim wraps around.
        abort_on_error, on_failure: see `Communicator`.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        dims: tuple[int, ...],
        periods: tuple[bool, ...],
        *,
        abort_on_error: bool = True,
        on_failure: OnFailure = "end",
    ) -> None:
        super().__init__(comm, adopt=True, abort_on_error=abort_on_error, on_failure=on_failure)
        self.dims, self.periods = dims, periods
        self.coords = self.get_coords(self.rank)
        self.neighbors = tuple(rank for dim in range(len(dims)) for rank in self.shift(dim))
        # Messages between neighbors have a communicator of their own, so that no receive of the user takes them.
        try:
            self._neighbor_comm = self._comm.Dup()
        except job.load_mpi().Exception:  # a rank has died
            self.discard()
            raise
        self._neighbor_comm.Set_errhandler(job.load_mpi().ERRORS_RETURN)
        if self._losses is not None:
            self._losses.add(self._neighbor_comm)
        engine = self._engine
        self._neighbor_messages = PointToPoint(
            self._neighbor_comm, engine.progress, engine.state, engine.uses_pinned_memory
        )

    def close(self) -> None:
        """Close the communicator as `Communicator.close` does; collective."""
        was_open = self._release.alive
        super().close()
        if was_open and not self._state.is_unusable:
            self._neighbor_comm.Free()

    def get_coords(self, rank: Rank) -> tuple[int, ...]:
        """Return the coordinates of a rank; raise UsageError if it is not a rank of the grid.

        Example:
            >>> with comm.cart([comm.size, 1]) as grid:
            ...     grid.get_coords(comm.size - 1) == (comm.size - 1, 0)
            True
        """
        return tuple(int(coordinate) for coordinate in np.unravel_index(self._require_rank("rank", rank), self.dims))

    def get_rank(self, coords: Sequence[SupportsIndex]) -> int:
        """Return the rank at the given coordinates; PROC_NULL beyond the border of a dim that does not wrap around.

        Raises:
            UsageError: the number of coordinates is not the number of dims.

        Example:
            >>> with comm.cart(1, periods=True) as ring:
            ...     ring.get_rank([comm.size]), ring.get_rank([0])
            (0, 0)
        """
        place = [index(coordinate) for coordinate in coords]
        if len(place) != len(self.dims):
            raise UsageError(f"coords {tuple(place)} do not have one number for each of the {len(self.dims)} dims")
        for dim, size in enumerate(self.dims):
            if self.periods[dim]:
                place[dim] %= size
            elif not 0 <= place[dim] < size:
                return PROC_NULL
        return int(np.ravel_multi_index(place, self.dims))

    def shift(self, dim: SupportsIndex, displacement: SupportsIndex = 1) -> tuple[int, int]:
        """Return the ranks at `-displacement` and at `+displacement` along a dim, as `source` and `dest` of a message.

        Beyond a border, the rank is hpccoll.PROC_NULL, which `send`, `recv` and `sendrecv` accept.

        Raises:
            UsageError: `dim` is not a dim of the grid.

        Example:
            >>> with comm.cart(1) as line:
            ...     source, dest = line.shift(0)
            ...     received = line.sendrecv(np.ones(2), dest, source)
            ...     source, received.tolist() == ([0, 0] if comm.rank == 0 else [1, 1])
            ... # doctest: +ELLIPSIS
            (..., True)
        """
        number, step = index(dim), index(displacement)
        if not 0 <= number < len(self.dims):
            raise UsageError(f"dim {number} is not a dim of 0..{len(self.dims) - 1}")
        down, up = (
            self.get_rank([*self.coords[:number], self.coords[number] + sign * step, *self.coords[number + 1 :]])
            for sign in (-1, 1)
        )
        return down, up

    def neighbor_all_gather(self, x: ArrayT, *, out: ArrayT | None = None) -> ArrayT:
        """Return the `x` of all neighbors, in the order of `neighbors`; blocks until they have arrived. Collective.

        Args:
            x: array of any shape; shape and dtype must be the same on all ranks.
            out: array of shape (2 * len(dims), *x.shape); None makes a new one. A block whose neighbor is PROC_NULL
                keeps its values, which are zeros in a new array.

        Raises:
            BufferError: `out` does not have this shape, or differs from `x` in dtype.
            CommunicationError: a neighbor's `x` differs in size from this rank's `x`.

        Cost: one message to each neighbor, all at the same time: alpha + beta * (2 * len(dims)) * nbytes.

        Example:
            >>> with comm.cart(1, periods=True) as ring:
            ...     rows = ring.neighbor_all_gather(np.array([comm.rank]))
            ...     rows[:, 0].tolist() == [(comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size]
            True
        """
        given: Any = import_array(x, "x") if is_foreign(x) else x
        count = len(self.neighbors)
        received: Any = self._exchange_blocks("neighbor_all_gather", [given] * count, given, (count, *given.shape), out)
        result: ArrayT = export_array(received, x) if out is None and is_foreign(x) else received
        return result

    def neighbor_all_to_all(self, x: ArrayT, *, out: ArrayT | None = None) -> ArrayT:
        """Send block i of `x` to neighbor i, and return the blocks of all neighbors for this rank. Collective.

        Args:
            x: array whose first dim has 2 * len(dims) blocks, in the order of `neighbors`; blocks have the same size
                on all ranks.
            out: array of the shape of `x`; None makes a new one. A block whose neighbor is PROC_NULL keeps its values,
                which are zeros in a new array.

        Raises:
            BufferError: the first dim of `x` is not 2 * len(dims), or `out` differs from `x` in shape or dtype.
            CommunicationError: a neighbor's block differs in size from this rank's blocks.

        Cost: one message to each neighbor, all at the same time: alpha + beta * nbytes.

        Example:
            >>> with comm.cart(1, periods=True) as ring:
            ...     right = ring.neighbor_all_to_all(np.array([[1.0], [2.0]]))
            ...     right[:, 0].tolist()  # the left neighbor sent its block 1 (to its right), the right one its block 0
            [2.0, 1.0]
        """
        given: Any = import_array(x, "x") if is_foreign(x) else x
        shape = tuple(given.shape)
        if shape[:1] != (len(self.neighbors),):
            raise BufferError(
                f"neighbor_all_to_all: x has shape {shape}; its first dim must be {len(self.neighbors)}, one block for "
                "each of `neighbors`"
            )
        received: Any = self._exchange_blocks("neighbor_all_to_all", given, given, shape, out)
        result: ArrayT = export_array(received, x) if out is None and is_foreign(x) else received
        return result

    def _exchange_blocks(self, name: str, blocks: Any, x: Any, shape: tuple[int, ...], out: Any) -> Any:
        """Send block i of `blocks` to neighbor i, and return the array of the neighbors' blocks. Collective.

        A block that is sent to the lower neighbor along a dim arrives there as the block of the upper neighbor, and the
        other way round.

        Args:
            name: the collective, for error messages.
            blocks: one array per neighbor.
            x: the user's array; a new array for the result has its library and dtype.
            out: the array for the result; None makes a new one.
        """
        self._require_open()
        if out is None:
            out = empty_like(x, shape)
            if PROC_NULL in self.neighbors:
                out[...] = 0
        elif tuple(out.shape) != shape or out.dtype != x.dtype:
            raise BufferError(
                f"{name}: out is {out.dtype} of shape {tuple(out.shape)}, but x gives {x.dtype} of {shape}"
            )
        before, messages = self._state.messages, self._neighbor_messages
        try:
            works = [messages.irecv(out[i], rank, i) for i, rank in enumerate(self.neighbors)]
            works += [messages.isend(blocks[i], rank, i ^ 1) for i, rank in enumerate(self.neighbors)]
            for work in works:
                work.wait()
        except BaseException as error:
            messages.take_exception(name, before, error)
            raise
        return out


def divide_ranks(ranks: int, dims: SupportsIndex | Sequence[SupportsIndex]) -> tuple[int, ...]:
    """Return the number of ranks along each dim of a grid; 0 in `dims` is replaced, as by MPI's `Dims_create`.

    An integer `dims` is the number of dims; the function then chooses the number of ranks along each of them.

    Raises:
        UsageError: there are too few ranks, or the number of ranks is not divisible by the given dims.
    """
    sizes = [index(size) for size in dims] if isinstance(dims, Sequence) else [0] * index(dims)
    given, free = math.prod(size for size in sizes if size), [dim for dim, size in enumerate(sizes) if not size]
    if not 0 < len(sizes) <= _MOST_DIMS or min(sizes) < 0:
        raise UsageError(f"cart takes 1 to {_MOST_DIMS} dims of at least 0, not {dims!r}; 0 means that cart chooses")
    if given > ranks:
        raise UsageError(f"a grid of dims {tuple(sizes)} needs {given} ranks, and there are {ranks}; pass smaller dims")
    if free and ranks % given:
        raise UsageError(f"{ranks} ranks are not divisible by dims {tuple(sizes)}; pass all dims, or 0 for all")
    for dim, size in zip(free, factorize_evenly(ranks // given, len(free)), strict=True):
        sizes[dim] = size
    return tuple(sizes)


def factorize_evenly(number: int, count: int) -> list[int]:
    """Return `count` integers with the product `number`, in descending order; the largest is as small as possible."""
    if count <= 1:
        return [number] * count
    smallest = next(size for size in range(1, number + 1) if size**count >= number and number % size == 0)
    while True:
        rest = factorize_evenly(number // smallest, count - 1)
        if rest[0] <= smallest:
            return [smallest, *rest]
        smallest = next(size for size in range(smallest + 1, number + 1) if number % size == 0)


def parse_periods(periods: bool | Sequence[bool], dims: int) -> tuple[bool, ...]:
    """Return whether each of `dims` dims wraps around; raise UsageError if a sequence has another number of values."""
    wraps = tuple(map(bool, periods)) if isinstance(periods, Sequence) else (bool(periods),) * dims
    if len(wraps) != dims:
        raise UsageError(f"periods {periods!r} do not have one value for each of the {dims} dims")
    return wraps
