"""`Communicator`, the public class: a group of MPI ranks with collectives, messages, groups and symmetric buffers.

Names, argument order and in-place defaults follow torch.distributed: an operation whose result has the shape of its
input works in place unless `out` is given.

The module of each algorithm states its cost in alpha (latency of a step), beta (time per byte sent) and gamma (time per
byte reduced).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

import numpy as np

from hpccoll.communicator.data_movement import DataMovementMethods
from hpccoll.communicator.mpi4py_names import Mpi4pyNames
from hpccoll.communicator.objects import ObjectMethods
from hpccoll.communicator.prepared import PreparedMethods
from hpccoll.communicator.reductions import ReductionMethods
from hpccoll.communicator.scans import ScanMethods
from hpccoll.communicator.survival import SurvivalMethods
from hpccoll.communicator.symmetric_buffers import SymmetricBufferMethods
from hpccoll.errors import RankLostError, UsageError
from hpccoll.failures.surviving_creation import create_mpi_group
from hpccoll.runtime import job
from hpccoll.runtime.agreement import gather_or_raise, wait_for_ranks
from hpccoll.units import format_count

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.communicator.cartesian import CartesianCommunicator


class Communicator(
    ReductionMethods,
    ScanMethods,
    DataMovementMethods,
    PreparedMethods,
    ObjectMethods,
    SymmetricBufferMethods,
    SurvivalMethods,
    Mpi4pyNames,
):
    """A group of MPI ranks whose messages are separate from those of other communicators.

    `rank` is the number of this rank, `size` the number of ranks, `node_count` the number of their nodes, and
    `local_rank` the number of this rank among the communicator's ranks on its node.

    Args:
        comm: the MPI communicator, which the constructor duplicates (collective); None means MPI.COMM_WORLD. With
            `on_failure="raise"`, the new communicator has the living ranks of `comm`.
        adopt: whether to use `comm` itself instead of a duplicate; `close` then frees `comm`.
        abort_on_error: whether all ranks of the job end if, while the communicator is open, this rank has an uncaught
            exception, or ends its program although other ranks wait for it.
        mixed_forms: whether some ranks may call a collective without `async_op` while others call it with `async_op`;
            collectives that send messages then cost a little more.
        compare_arguments: whether all ranks compare their arguments before each collective, and receives from a given
            rank compare the dtype of the message; the same on all ranks. None means that they do so if HPCCOLL_DEBUG=1
            is set.
        name: the name of the communicator in recordings, the same on all ranks.
        on_failure: what the death of a rank does: "end" ends the job, as MPI does; with "raise", calls of the other
            ranks raise RankLostError, and `shrink` returns a communicator of these ranks. See docs/failures.md.

    Raises:
        UnavailableError: `on_failure` is "raise", and this MPI library or launcher ends the job when a rank dies.
        UnavailableError: mpi4py or the MPI library is not installed.
        LauncherError: the launcher belongs to another MPI library.

    Example:
        >>> with hpccoll.Communicator() as own:
        ...     own.all_reduce(np.ones(2)) / own.size
        array([1., 1.])
    """

    def __enter__(self) -> Self:
        self.is_done = False
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool | None:
        if self.is_block:  # the loop `survivors` closes it, and runs the block again
            self.is_done = kind is None
            return kind is not None and issubclass(kind, RankLostError)
        # After an error on one rank, `close` would wait forever for the other ranks, because it is collective.
        if kind is None:
            self.close()
        return False

    def __repr__(self) -> str:
        state = "open" if self._release.alive else "closed"
        place = f"rank {self.rank} of {self.size} on {format_count(self.node_count, 'node')}"
        return f"<hpccoll.Communicator: {place}, {state}>"

    @property
    def mpi(self) -> MPI.Intracomm:
        """An mpi4py communicator of the same ranks, for calls that hpccoll lacks; `close` frees it.

        The communicator carries the messages of `send` and `recv`, so that `recv` may receive a message of `mpi.Send`.
        While a call of `mpi` blocks, asynchronous operations of hpccoll do not advance.

        Example:
            >>> comm.mpi.Get_size() == comm.size
            True
        """
        self._require_open()
        return self._message_comm

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Return a communicator of the ranks that pass the same `color`, or None if `color` is None. Collective.

        Args:
            color: an integer; ranks that pass the same integer are in one communicator. MPI.UNDEFINED stands for None.
            key: the ranks of the new communicator are sorted by their `key`, and by their old rank where keys are
                equal.

        Raises:
            UsageError: on all ranks, if a rank passed a color or a key that is not an integer.

        Example:
            >>> with comm.split(color=comm.rank % 2) as half:
            ...     half.size in (comm.size // 2, (comm.size + 1) // 2)
            True
        """
        self._require_open()
        with self._state.call("split"):
            wait_for_ranks(self._comm, self._engine.progress)
            rows = gather_or_raise(self._object_comm, lambda: _as_color_and_key(color, key), UsageError)
        groups: dict[int, list[int]] = {}
        for rank, (own_color, _) in sorted(enumerate(rows), key=lambda row: (row[1][1], row[0])):
            if own_color is not None:
                groups.setdefault(own_color, []).append(rank)
        return self._make_groups([groups[own_color] for own_color in sorted(groups)], self._make_plain, "split")

    def new_group(self, ranks: Iterable[SupportsIndex]) -> Communicator | None:
        """Return a communicator of the ranks in `ranks`, in this order; collective over these ranks.

        On a rank that is not in `ranks`, the call is optional and returns None.

        Raises:
            UsageError: `ranks` is empty, has a rank twice, or has a rank that is not in this communicator.

        Example:
            >>> group = comm.new_group(range(0, comm.size, 2))
            >>> group is None or group.rank == comm.rank // 2
            True
        """
        self._require_open()
        members = _as_ranks(ranks, self.size)
        if self.rank not in members:
            return None
        return self._make_group(members, partial(create_mpi_group, self._comm, members), self._make_plain, "new_group")

    def cart(
        self, dims: SupportsIndex | Sequence[SupportsIndex] = 2, periods: bool | Sequence[bool] = False
    ) -> CartesianCommunicator | None:
        """Return a communicator of ranks on a grid, in row-major order; None on ranks outside the grid. Collective.

        Args:
            dims: the number of ranks along each dim, where 0 lets the call choose, as MPI's `Dims_create` does: the
                ranks are divided as evenly as possible, larger dims first. An integer d means d dims of 0.
            periods: whether the grid wraps around, for all dims or one value per dim.

        Raises:
            UsageError: the grid has more ranks than this communicator, or the number of ranks is not divisible by the
                given dims.

        Example:
            >>> with comm.cart(1, periods=True) as ring:
            ...     left, right = ring.shift(0)
            ...     left == (comm.rank - 1) % comm.size
            True
        """
        from hpccoll.communicator.cartesian import CartesianCommunicator, divide_ranks, parse_periods

        self._require_open()
        sizes = divide_ranks(self.size, dims)
        wraps, members = parse_periods(periods, len(sizes)), range(math.prod(sizes))
        make = partial(CartesianCommunicator, dims=sizes, periods=wraps, **self._list_options())
        return self._make_groups([members], make, "cart")

    def shrink(self) -> Communicator:
        """Return a communicator of the living ranks, in their order, and close this one; collective over these ranks.

        The new communicator has its own shared memory and recording. Groups that contain a dead rank are shrunk by
        their own `shrink`; other groups stay usable. Until the call returns, other ranks may still access the arrays of
        the operation that raised RankLostError. Ranks that die during the call are left out as well.

        Raises:
            UsageError: the communicator was made without `on_failure="raise"`.

        Example:
            >>> smaller = comm.shrink()  # doctest: +SKIP
        """
        compares = self._argument_check is not None
        options = self._list_options() | {"mixed_forms": self._mixed_forms, "compare_arguments": compares}
        return self._shrink(partial(Communicator, adopt=True, **options))

    def _make_plain(self, joined: MPI.Intracomm) -> Communicator:
        """Return a `Communicator` on the MPI communicator `joined`, with the options of this object; collective."""
        return Communicator(joined, adopt=True, **self._list_options())


def _as_color_and_key(color: Any, key: Any) -> tuple[int | None, int]:
    """Return `color` (None for MPI.UNDEFINED) and `key` as integers; raise UsageError if one of them is no integer."""
    try:
        number = job.load_mpi().UNDEFINED if color is None else index(color)
        return None if number == job.load_mpi().UNDEFINED else number, index(key)
    except TypeError:
        raise UsageError(f"split takes integers as color and key, not {color!r} and {key!r}") from None


def _as_ranks(ranks: Iterable[SupportsIndex], size: int) -> list[int]:
    """Return the ranks of a new group as a list; raise UsageError unless they are distinct ranks below `size`."""
    given = list(ranks)
    numbers = [hasattr(rank, "__index__") and not isinstance(rank, bool | np.bool_) for rank in given]
    members = [index(rank) if number else -1 for rank, number in zip(given, numbers, strict=True)]
    if len(set(members)) != len(members) or not all(0 <= rank < size for rank in members) or not members:
        raise UsageError(f"ranks {given} are not distinct ranks of 0..{size - 1}; name each member once")
    return members
