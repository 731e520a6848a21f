"""Lets calls of a kind that has run before skip the checks of their arguments; nothing is bound to arrays.

Calls are of one kind if they agree in operation, dtype, number of elements, reduction, root, algorithm, counts, in
whether the user passes the output, and in the kind of the arrays' memory. The first call of a kind checks all its
arguments and adds a callable for later calls to the `CallTable` of the extension, which finds the callable by one
look-up: a native call of a plan, or of the MPI library. If `auto` selects the MPI library's own collective, calls whose
message size rounds to the same value (`round_message_size`), and calls with other counts of a similar total, skip the
checks as well, because `auto` selects the same for them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from operator import index
from typing import Any, Final, TypeAlias

from hpccoll.errors import UsageError
from hpccoll.native import CallTable, HostCall
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import BlockCounts, empty_like, output_shape, parse_rows
from hpccoll.runtime.arrays import is_torch_tensor
from hpccoll.runtime.collective_call import CollectiveCall, describe_call
from hpccoll.runtime.executable import Executable
from hpccoll.runtime.forks import abandon_at_fork
from hpccoll.runtime.messages.library_call import LibraryCall
from hpccoll.runtime.messages.mpi_collectives import MpiCollectives
from hpccoll.runtime.node_memory.symmetric import shared_buffers
from hpccoll.runtime.plain_arrays import get_address, is_plain
from hpccoll.runtime.queued_run import RunInQueue
from hpccoll.selection import Selection, round_message_size

# A user's call: operation, x, out, reduction, root, algorithm, and the rows of each block (None for equal blocks).
# In a `Request`, `x` is the output on a rank without input.
Request: TypeAlias = tuple[Operation, Any, Any, Any, Any, Any, BlockCounts | None]
_GATHERS: Final = (Operation.ALL_GATHER, Operation.GATHER)
_SPLITS: Final = (Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL, Operation.SCATTER)
_MOST_SIMILAR: Final = 512  # most library calls that are kept for other sizes, and most counts


@dataclass(frozen=True, slots=True)
class Arrays:
    """The array sizes that all calls of one kind share, and whether the result is `out`, the input or a new array.

    Attributes:
        ranks: number of ranks.
        itemsize: bytes per element.
        in_given: whether the result is in `out`, which the user passes.
        has_new: whether the result is in a new array.
        returns_none: whether the user gets None.
        nbytes, result_nbytes: bytes of the input (or of the output on a rank without input), and of the result.
        divisor: a number that divides the first dim of the input; 1 if it may be any.
        rows: the first dim of the input if blocks differ in size, else -1.
        new_rows: the first dim of a new output if blocks differ in size, else -1.
    """

    operation: Operation
    ranks: int
    itemsize: int
    in_given: bool
    has_new: bool
    returns_none: bool
    nbytes: int
    result_nbytes: int
    divisor: int
    rows: int
    new_rows: int

    @classmethod
    def of(cls, call: CollectiveCall, out: Any, ranks: int) -> Arrays:
        """Return the properties that all calls of the same kind as `call` share; `out` is the user's output or None."""
        uneven, result = not isinstance(call.count, int), call.result
        buffer = call.source or result
        in_given = out is not None and result is not None
        in_place = call.source is None or call.source is result
        splits = call.operation in _SPLITS and not uneven and call.source is not None
        return cls(
            operation=call.operation,
            ranks=ranks,
            itemsize=call.dtype.itemsize,
            in_given=in_given,
            has_new=result is not None and not in_given and not in_place,
            returns_none=call.operation is Operation.BARRIER or (call.operation is Operation.GATHER and result is None),
            nbytes=buffer.nbytes if buffer else 0,
            result_nbytes=result.nbytes if result else 0,
            divisor=ranks if splits else 1,
            rows=buffer.shape[0] if uneven and buffer else -1,
            new_rows=result.shape[0] if uneven and result else -1,
        )

    def add_to(self, table: CallTable, request: Request, call: Any, *, needs_idle: bool = False) -> bool:
        """Add a table entry by which later calls like `request` run `call`; return False if arrays are not plain."""
        return table.add(
            request,
            call,
            self._make_output if self.has_new else None,
            in_given=self.in_given,
            returns_none=self.returns_none,
            needs_idle=needs_idle,
            nbytes=self.nbytes,
            result_nbytes=self.result_nbytes,
            result_count=self.result_nbytes // self.itemsize,
            divisor=self.divisor,
            rows=self.rows,
        )

    def _make_output(self, x: Any) -> Any:
        """Return a new array for the result of a call on `x`."""
        if self.new_rows >= 0:
            return empty_like(x, (self.new_rows, *x.shape[1:]))
        return empty_like(x, output_shape(self.operation, tuple(x.shape), self.ranks))


@dataclass(frozen=True, slots=True)
class PlanStart:
    """Starts asynchronous calls of one kind, which run as a plan in shared memory.

    `description` is the common part of the calls' entries in the flight recorder.
    """

    name: str
    description: bytes
    start_at: Callable[[int, int, object], RunInQueue]

    def start(self, x: Any, result: Any) -> RunInQueue:
        """Start a call on a plain input and output, and return it in flight."""
        source = 0 if x is None else get_address(x)
        target = source if result is x else 0 if result is None else get_address(result)
        return self.start_at(source, target, (x, result))


class CallCache:
    """Maps each kind of call on a communicator to the executable that carries out calls of this kind.

    Args:
        tables: the call tables of blocking and of asynchronous calls.
        select: returns the selection for a call.
        make_executable: returns the executable of a selected plan; None if every call needs the checks.
    """

    def __init__(
        self,
        tables: Iterable[CallTable],
        library: MpiCollectives,
        ranks: int,
        rank: int,
        select: Callable[..., Selection],
        make_executable: Callable[..., Any],
    ) -> None:
        self.blocking, self.asynchronous = tables
        self._library, self._ranks, self._rank = library, ranks, rank
        self._select, self._make_executable = select, make_executable
        self._similar: dict[Hashable, tuple[LibraryCall, Arrays]] = {}
        self._counts: dict[BlockCounts, BlockCounts] = {}
        self._prepared: list[Executable] = []
        abandon_at_fork(self)

    def intern(self, request: Request) -> Request:
        """Return a request whose equal strings and counts are identical objects, as the call tables compare them."""
        operation, x, out, op, root, algorithm, counts = request
        if type(root) is not int:
            root = index(root) if hasattr(root, "__index__") else root
        op, algorithm = (sys.intern(name) if type(name) is str else name for name in (op, algorithm))
        if counts is not None:
            counts = self.intern_counts(*counts)
        return operation, x, out, op, root, algorithm, counts

    def intern_counts(self, counts: Any, out_counts: Any) -> BlockCounts:
        """Return numbers of rows as a pair; equal numbers give the same pair object.

        `counts` and `out_counts` are the numbers of rows sent to and received from each rank. Invalid numbers are
        returned as they were given.
        """
        try:
            pair = None if counts is None else tuple(counts), None if out_counts is None else tuple(out_counts)
            known = self._counts.get(pair)
            # 4.0 is no number of rows, although it equals 4.
            totals = 0 if counts is None else sum(counts), 0 if out_counts is None else sum(out_counts)
        except TypeError:
            return counts, out_counts
        if not (hasattr(totals[0], "__index__") and hasattr(totals[1], "__index__")):
            return counts, out_counts
        if known is not None:
            return known
        if len(self._counts) >= _MOST_SIMILAR:
            self.forget()
        self._counts[pair] = pair
        return pair

    def add(self, call: CollectiveCall, request: Request, *, asynchronous: bool = False) -> None:
        """Record how to carry out calls of the same kind as `call`, so that later ones skip the argument checks.

        `request` has the arguments of `call`, which were checked.
        """
        operation, x, out, *_, counts = request
        if call.reduction.factor is not None or call.module.on_device:
            return
        if operation is not Operation.BARRIER and not (is_plain(x) and (counts is not None or call.count)):
            return
        if is_torch_tensor(x):
            torch = sys.modules["torch"]
            for table in (self.blocking, self.asynchronous):
                table.accept_tensors(torch.Tensor, torch.strided)
        selection, arrays = self._select(call, asynchronous=asynchronous), Arrays.of(call, out, self._ranks)
        if selection.algorithm is None:
            in_place = call.source is call.result
            library = LibraryCall(self._library, call, in_place=in_place, asynchronous=asynchronous)
            if self._add_library(library, arrays, request, asynchronous=asynchronous) and not _is_shared(x, out):
                self._keep(request, asynchronous, library, arrays)
            return
        is_shared = selection.algorithm.uses_shared_memory
        executable = self._make_executable(call, selection) if is_shared or not asynchronous else None
        native = None if executable is None else executable.get_native()
        if executable is not None and native is not None and asynchronous:
            description = describe_call(self._library.state, call, selection.algorithm, asynchronous=True)
            start = PlanStart(operation.value, description, executable.make_start())
            arrays.add_to(self.asynchronous, request, start)
        elif native is not None:
            runs = native if isinstance(native, HostCall) else partial(_run_on_arrays, native)
            arrays.add_to(self.blocking, request, runs, needs_idle=is_shared)

    def add_similar(self, request: Request, *, asynchronous: bool = False) -> bool:
        """Add a library call for new sizes or counts, made from a similar known call; return False if none is known."""
        x, out, counts = request[1], request[2], request[6]
        if not self._similar or x is None or not is_plain(x) or _is_shared(x, out):
            return False
        try:
            similar = self._similar.get(self._generalize(request, asynchronous=asynchronous))
        except (TypeError, UsageError):  # wrong arguments, which the checks explain
            return False
        if similar is None:
            return False
        resized = _resize(*similar, x, counts, self._rank)
        return resized is not None and self._add_library(*resized, request, asynchronous=asynchronous)

    def keep(self, executable: Executable) -> None:
        """Record an executable that the user prepared, so that `clear` frees it unless the user already has."""
        self._prepared = [*(known for known in self._prepared if known.live), executable]

    def forget(self) -> None:
        """Forget all kinds of calls."""
        self.blocking.clear()
        self.asynchronous.clear()
        self._similar.clear()
        self._counts.clear()

    def abandon(self) -> None:
        """In a forked child, forget all kinds of calls and let prepared executables refuse to run; free nothing."""
        self.forget()
        for executable in self._prepared:
            executable.abandon()

    def clear(self) -> None:
        """Forget all kinds of calls and free the prepared executables; to be called before MPI is finalized."""
        self.forget()
        while self._prepared:
            self._prepared.pop().free()

    def _add_library(self, library: LibraryCall, arrays: Arrays, request: Request, *, asynchronous: bool) -> bool:
        """Add a call of the MPI library to a table; return False if the arrays are not plain."""
        if asynchronous:
            return arrays.add_to(self.asynchronous, request, library)
        # In the blocking form of MPI's function, a rank would not advance plans in flight that need Python.
        needs_idle = not self._library.uses_non_blocking
        return arrays.add_to(self.blocking, request, library.make_call(), needs_idle=needs_idle)

    def _keep(self, request: Request, asynchronous: bool, library: LibraryCall, arrays: Arrays) -> None:
        """Keep a library call as the template of calls with other sizes or counts."""
        if request[1] is None or not arrays.nbytes:
            return
        if len(self._similar) >= _MOST_SIMILAR:
            self._similar.clear()
        self._similar[self._generalize(request, asynchronous=asynchronous)] = library, arrays

    def _generalize(self, request: Request, *, asynchronous: bool) -> Hashable:
        """Return the cache key of a call without its size and counts; `auto` selects the same for all its calls."""
        operation, x, out, op, root, algorithm, counts = request
        others = operation, type(x), x.dtype, op, root, algorithm, out is None, asynchronous
        if counts is None:
            return *others, round_message_size(x.nbytes * (self._ranks if operation in _GATHERS else 1))
        shape = tuple(x.shape[1:])
        if operation is Operation.ALL_TO_ALL:
            return *others, shape
        nbytes = int(sum(counts[0])) * math.prod(shape) * x.dtype.itemsize
        return *others, shape, round_message_size(nbytes)


def _resize(
    library: LibraryCall, arrays: Arrays, x: Any, counts: BlockCounts | None, rank: int
) -> tuple[LibraryCall, Arrays] | None:
    """Return a library call and its arrays for the size of `x` and other counts; None if counts are invalid or 0.

    On a rank without input, `x` is the output.
    """
    if counts is None:
        nbytes, result_nbytes = x.nbytes, arrays.result_nbytes * x.nbytes // arrays.nbytes
        count = nbytes // (arrays.itemsize * arrays.divisor)
        return (library.resize(count), replace(arrays, nbytes=nbytes, result_nbytes=result_nbytes)) if count else None
    try:
        rows, taken = parse_rows(arrays.operation, counts, arrays.ranks)
    except UsageError:
        return None
    total, own, gathers, row = sum(rows), rows[rank], arrays.operation in _GATHERS, math.prod(x.shape[1:])
    if x.shape[0] != (own if gathers or not library.has_source else total):
        return None
    new = sum(taken) if taken else total if gathers else own
    result_nbytes = new * row * arrays.itemsize if arrays.in_given or arrays.has_new else 0
    sizes = {"nbytes": x.nbytes, "result_nbytes": result_nbytes, "rows": x.shape[0], "new_rows": new}
    return library.resize(tuple(count * row for count in (*rows, *taken))), replace(arrays, **sizes)


def _run_on_arrays(run: Callable[[int, int], None], x: Any, result: Any) -> None:
    """Call `run` with the addresses of plain arrays (None in a barrier)."""
    run(0 if x is None else get_address(x), 0 if result is None else get_address(result))


def _is_shared(x: Any, out: Any) -> bool:
    """Whether one of two plain arrays (None if missing) is in memory that other ranks can address."""
    shared = shared_buffers()
    arrays = [array for array in (x, out) if array is not None and len(shared) and is_plain(array)]
    return any(shared.find(get_address(array)) is not None for array in arrays)
