"""Finds the `UnboundCollective` of a call on plain arrays, so that first calls on new arrays take less time.

Calls on plain arrays are of one kind if they agree in operation, dtype, size, reduction, root, algorithm, and in
whether the user passes the output. The first call of a kind checks all its arguments, and adds an `UnboundCollective`.
Later calls of this kind find the `UnboundCollective` by one look-up. An `UnboundCollective` accepts any plain arrays
that are in no symmetric buffer. If `auto` selects the MPI library's own collective, calls of other sizes with the same
leading bits, for which the selection is the same, find an `UnboundCollective` too.

Calls on blocks of different sizes are of one kind if they also agree in the shape of the input and in all counts. If
the MPI library's own collective is selected, calls with other counts find an `UnboundCollective` too, because only the
sum of all counts affects the selection, and nothing does in an all_to_all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeAlias

import numpy as np

from hpccoll.native import CallTable, MessageCall, StagedCall
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import BlockCounts
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.messages.mpi_collectives import MpiCollectives
from hpccoll.runtime.plain_arrays import is_plain
from hpccoll.runtime.progress import Progress
from hpccoll.runtime.unbound_collective import (
    GATHERS,
    UnboundCollective,
    UnboundLibraryCollective,
    UnboundPlan,
    UnboundStagedCall,
)
from hpccoll.selection import Selection, round_message_size

ASYNCHRONOUS: Final = "asynchronous"
KINDS: Final = 512  # most kinds of calls that are kept
_WITHOUT_INPUT: Final = (Operation.BARRIER, Operation.SCATTER)  # some ranks pass no array
# Operation, dtype, bytes of the input, reduction, root, algorithm, and whether the user passes no output.
Kind: TypeAlias = tuple[Operation, Any, int, Any, int, Any, bool]
# Operation, dtype, shape, reduction, root, algorithm, whether the user passes no output, and the rows of each block.
UnevenKind: TypeAlias = tuple[Operation, Any, tuple[int, ...], Any, int, Any, bool, BlockCounts]


class UnboundCollectives:
    """Finds the `UnboundCollective` that carries out a call without binding it to arrays.

    Args:
        found: the `UnboundCollective` of each kind of call; its owner empties the dict at a close or a fork.
        select: returns the selection for a call.
        make_program: returns the program or staged call for a call; None if the call needs an executable.
        table: the staged calls of calls on NumPy arrays.
    """

    def __init__(
        self,
        found: dict[Hashable, UnboundCollective],
        library: MpiCollectives,
        progress: Progress,
        ranks: int,
        rank: int,
        select: Callable[..., Selection],
        make_program: Callable[[CollectiveCall, Selection], MessageCall | StagedCall | None],
        table: CallTable,
    ) -> None:
        self._found, self._library, self._progress = found, library, progress
        self._ranks, self._rank = ranks, rank
        self._select, self._make_program, self._table = select, make_program, table

    def find(
        self, operation: Operation, x: Any, out: Any, op: Any, root: int, algorithm: Any, counts: BlockCounts | None
    ) -> Callable[[Any, Any], Any] | None:
        """Return a function of `x` and `out` that can carry out a call; None if there is none.

        Args:
            x: the input, or in a call with counts the output of a rank without input.
            out: the user's output, or None. In a call with counts, also None if the rank has no input, or no output.
            algorithm: that of the user; for an asynchronous call, the pair of `ASYNCHRONOUS` and the user's. The
                function is then an `UnboundLibraryCollective`.
            counts: the rows of each block, or None; in an all_to_all the rows sent to and received from each rank.
        """
        if not (x.flags.carray if type(x) is np.ndarray else is_plain(x)):
            return None
        if counts is None:
            kind: Any = operation, x.dtype, x.nbytes, op, root, algorithm, out is None
            collective = self._found.get(kind) or self._find_resized(kind)
        else:
            collective = self._find_uneven(operation, x, out, op, root, algorithm, counts)
        if collective is None:
            return None
        if type(x) is np.ndarray and not self._progress.operations and collective.is_direct(x, out):
            return collective.direct
        return collective if collective.accepts(x, out) else None

    def _find_uneven(
        self, operation: Operation, x: Any, out: Any, op: Any, root: int, algorithm: Any, counts: BlockCounts
    ) -> UnboundCollective | None:
        """Return the `UnboundCollective` of a call with counts; None if there is none."""
        if not x.shape:
            return None
        kind = operation, x.dtype, x.shape, op, root, algorithm, out is None, counts
        collective = self._found.get(kind) or self._find_other_counts(kind)
        # 4.0 is no number of rows, although it equals 4.
        is_allowed = collective is not None and _are_integers(counts[0]) and _are_integers(counts[1])
        return collective if is_allowed and _keeps_apart(x, out) else None

    def add(
        self, call: CollectiveCall, x: Any, out: Any, op: Any, algorithm: Any, counts: BlockCounts | None = None
    ) -> None:
        """Keep an `UnboundCollective` for later calls of the same kind as `call`.

        Asynchronous calls need one only if they are the MPI library's own, because plans bind them to their arrays.

        Args:
            x: the user's input, or with counts the output of a rank without input.
            algorithm: see `find`.
        """
        if call.operation is Operation.BARRIER and not isinstance(algorithm, tuple):
            self._add_barrier(call, op, algorithm)
        if counts is None and (call.operation in _WITHOUT_INPUT or not call.count):
            return
        if call.reduction.factor is not None or not is_plain(x):
            return
        same = op, call.root, algorithm, out is None
        kind: Any = (call.operation, x.dtype, x.nbytes, *same)
        if counts is not None:
            kind = call.operation, x.dtype, x.shape, *same, counts
        if kind in self._found or (counts is not None and not _keeps_apart(x, out)):
            return
        asynchronous = isinstance(algorithm, tuple)
        selection = self._select(call, asynchronous=asynchronous)
        if selection.algorithm is None:
            library = UnboundLibraryCollective(call, self._ranks, self._rank, self._library, asynchronous=asynchronous)
            if library.fits(x, out):
                self._keep(kind, library)
                self._keep(self._generalize(kind) if counts is None else self._generalize_counts(kind), library)
            return
        if not asynchronous:
            self._add_plan(kind, call, selection, x, out)

    def _add_plan(self, kind: Any, call: CollectiveCall, selection: Selection, x: Any, out: Any) -> None:
        """Keep a plan for later calls of a kind, for which `auto` or the user selected it."""
        plan = UnboundPlan(call, self._ranks)
        if not plan.fits(x, out):
            return
        program = self._make_program(call, selection)
        if not isinstance(program, StagedCall):
            plan.set_program(program)
            self._keep(kind, plan)
            return
        staged = UnboundStagedCall(call, self._ranks, self._progress, program)
        self._keep(kind, staged)
        if isinstance(call.count, int) and type(x) is np.ndarray:
            _, _, _, op, root, algorithm, *_ = kind
            staged.add_to(self._table, x, op, root, algorithm)

    def _add_barrier(self, call: CollectiveCall, op: Any, algorithm: Any) -> None:
        """Let the table carry out later barriers, if a plan in shared memory is selected."""
        selection = self._select(call)
        program = None if selection.algorithm is None else self._make_program(call, selection)
        if isinstance(program, StagedCall):
            options = {"output_given": False, "in_place": True, "returns_none": True}
            self._table.add(
                call.operation, None, op, call.root, algorithm,
                count=0, divisor=1, result_count=0, make_output=None, call=program, **options,
            )  # fmt: skip

    def _find_resized(self, kind: Kind) -> UnboundCollective | None:
        """Return and keep the library's collective for a new size, if the library is selected for such sizes."""
        similar = self._found.get(self._generalize(kind))
        if not isinstance(similar, UnboundLibraryCollective) or not kind[2]:
            return None
        resized = similar.resize(kind[2])
        self._keep(kind, resized)
        return resized

    def _find_other_counts(self, kind: UnevenKind) -> UnboundCollective | None:
        """Return and keep the library's collective for new counts, if the library is selected for such counts."""
        try:
            similar = self._found.get(self._generalize_counts(kind))
        except TypeError:  # wrong counts
            return None
        if not isinstance(similar, UnboundLibraryCollective):
            return None
        resized = similar.resize_blocks(kind[2], kind[7])
        if resized is not None:
            self._keep(kind, resized)
        return resized

    def _keep(self, kind: Hashable, collective: UnboundCollective) -> None:
        """Keep a collective; forget all others if there are too many."""
        if len(self._found) >= KINDS:
            self._found.clear()
        self._found[kind] = collective

    def _generalize(self, kind: Kind) -> Hashable:
        """Return a key that `kind` shares with the kinds of other sizes for which `auto` makes the same selection."""
        operation, dtype, nbytes, *others = kind
        return operation, dtype, round_message_size(nbytes * (self._ranks if operation in GATHERS else 1)), "", *others

    def _generalize_counts(self, kind: UnevenKind) -> Hashable:
        """Return a key that `kind` shares with the kinds of other counts for which `auto` makes the same selection."""
        operation, dtype, shape, *others, (rows, _) = kind
        if operation is Operation.ALL_TO_ALL:
            return operation, dtype, shape[1:], *others, ""
        nbytes = int(sum(rows)) * math.prod(shape[1:]) * dtype.itemsize
        return operation, dtype, shape[1:], *others, round_message_size(nbytes), ""


def _are_integers(rows: Any) -> bool:
    """Whether numbers of rows are integers, also of NumPy; true for None."""
    return rows is None or hasattr(sum(rows), "__index__")


def _keeps_apart(x: Any, out: Any) -> bool:
    """Whether MPI accepts two plain arrays of which one is empty: MPI refuses equal addresses also of empty memory."""
    return (x.nbytes or (type(x) is np.ndarray and x.flags.owndata)) and (
        out is None or not is_plain(out) or out.nbytes or (type(out) is np.ndarray and out.flags.owndata)
    )
