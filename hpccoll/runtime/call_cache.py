"""Lets calls of a kind that has run before skip the checks of their arguments, on the same or on other arrays.

Calls are of one kind if they agree in operation, dtype, number of elements, reduction, root, algorithm, sizes of blocks
and kind of memory. Calls of one kind also agree in whether the user passes the output array. The first call of a kind
checks all its arguments, and adds to the extension's `CallTable` a function that runs a plan or calls the MPI library
for later calls. If `auto` selects the MPI library's own collective for a call, further calls skip the checks, because
`auto` selects the MPI library for them, too: calls whose message size rounds to the same value (`round_message_size`),
and calls with other sizes of blocks but a similar total size.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from hpccoll.arrays import is_torch_tensor
from hpccoll.errors import UsageError
from hpccoll.native import CallTable, HostCall
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import BlockCounts, empty_like, output_shape, parse_rows
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.executable import Executable
from hpccoll.runtime.forks import abandon_at_fork
from hpccoll.runtime.messages.library_call import LibraryCall
from hpccoll.runtime.messages.mpi_collectives import MpiCollectives
from hpccoll.runtime.node_memory.symmetric import shared_buffers
from hpccoll.runtime.plain_arrays import get_address, is_plain
from hpccoll.runtime.progress import InFlight
from hpccoll.selection import round_message_size

if TYPE_CHECKING:
    from hpccoll.runtime.native_plan import NativeExecutable

# A user's call: operation, x, out, reduction, root, algorithm, and the rows of each block (None for equal blocks).
# In a `Request`, `x` is the output on a rank without input.
Request: TypeAlias = tuple[Operation, Any, Any, Any, Any, Any, BlockCounts | None]
# The arguments of `CallTable.add` that describe the arrays of all calls of one kind.
SharedSizes: TypeAlias = dict[str, Any]
_GATHERS: Final = (Operation.ALL_GATHER, Operation.GATHER)
_SPLITS: Final = (Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL, Operation.SCATTER)
_MOST_SIMILAR: Final = 512  # most library calls that are kept for other sizes, and most counts
_MOST_COUNTED: Final = 4096  # kinds of calls with `counts` (sizes of blocks) of which calls are counted
# The number of calls with the same `counts` that MPI carries out before `auto` selects an algorithm.
# Making a plan for new counts takes 2 ms; a call of the MPI library with new counts takes 0.05 ms.
CALLS_BEFORE_PLAN: Final = 32


def describe_arrays(call: CollectiveCall, out: Any, ranks: int) -> SharedSizes:
    """Return the arguments of `CallTable.add` about arrays, which all calls of the same kind as `call` share.

    `out` is the user's output, or None; `ranks` is the number of ranks.
    """
    uneven, source, result = not isinstance(call.count, int), call.source, call.result
    buffer, operation = source or result, call.operation
    in_given = out is not None and result is not None
    has_new = result is not None and not in_given and source is not None and source is not result
    splits = operation in _SPLITS and not uneven and source is not None
    new_rows = result.shape[0] if uneven and result else -1
    return {
        "make_output": partial(_make_output, operation, ranks, new_rows) if has_new else None,
        "in_given": in_given,
        "returns_none": operation is Operation.BARRIER or (operation is Operation.GATHER and result is None),
        "nbytes": buffer.nbytes if buffer else 0,
        "result_nbytes": result.nbytes if result else 0,
        "result_count": result.count if result else 0,
        "divisor": ranks if splits else 1,
        "rows": buffer.shape[0] if uneven and buffer else -1,
    }


def _make_output(operation: Operation, ranks: int, rows: int, x: Any) -> Any:
    """Return a new array for the result of a call on `x`, with `rows` rows; -1 if blocks do not differ in size."""
    shape = tuple(x.shape)
    return empty_like(x, (rows, *shape[1:]) if rows >= 0 else output_shape(operation, shape, ranks))


@dataclass(frozen=True, slots=True)
class PlanStart:
    """Starts asynchronous calls of one kind, which run as a plan in shared memory.

    `description` has the bytes that describe a call of this kind in the flight recorder.
    """

    name: str
    description: bytes
    start_at: Callable[[int, int, object], InFlight]

    def start(self, x: Any, result: Any) -> InFlight:
        """Start a call on an input and an output (plain arrays, or None), and return the operation in flight."""
        source = 0 if x is None else get_address(x)
        target = source if result is x else 0 if result is None else get_address(result)
        return self.start_at(source, target, (x, result))


class CallCache:
    """Maps each kind of call on a communicator to the executable that carries out calls of this kind.

    Args:
        tables: the call tables of blocking and of asynchronous calls.
    """

    def __init__(self, tables: Iterable[CallTable], library: MpiCollectives) -> None:
        self.blocking, self.asynchronous = tables
        self._library, self._ranks, self._rank = library, library.comm.size, library.comm.rank
        self._similar: dict[Hashable, tuple[LibraryCall, SharedSizes]] = {}
        self._counts: dict[BlockCounts, BlockCounts] = {}
        self._calls_left: dict[Hashable, Any] = {}
        self._prepared: list[Executable] = []
        abandon_at_fork(self)

    def intern(self, request: Request) -> Request:
        """Return an equal request with interned strings and counts, which the call tables compare by identity."""
        operation, x, out, op, root, algorithm, counts = request
        if type(root) is not int:
            root = index(root) if hasattr(root, "__index__") else root
        op, algorithm = (sys.intern(name) if type(name) is str else name for name in (op, algorithm))
        if counts is not None:
            counts = self.intern_counts(*counts)
        return operation, x, out, op, root, algorithm, counts

    def intern_counts(self, counts: Any, out_counts: Any) -> BlockCounts:
        """Return numbers of rows as a pair; equal numbers give the same pair object.

        `counts` and `out_counts` are the numbers of rows sent to and received from each rank. Invalid numbers of rows
        are returned unchanged.
        """
        try:
            pair = None if counts is None else tuple(counts), None if out_counts is None else tuple(out_counts)
            known = self._counts.get(pair)
            # A count of 4.0 is invalid, although the table of known counts finds it equal to 4.
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

    def count(self, call: CollectiveCall) -> CollectiveCall:
        """Count a call; return it, with `has_new_counts` set if it is one of the first CALLS_BEFORE_PLAN of its kind.

        Only calls by `auto` whose blocks differ in size are counted, and no all-to-alls. All ranks count the same
        calls, including calls that the call tables carry out, so that all ranks select the same algorithm.
        """
        if isinstance(call.count, int) or call.is_uneven_exchange or call.algorithm is not None or call.library:
            return call
        left = self._find_calls_left(call.counting_key)
        if left[0] <= 0:
            return call
        left[0] -= 1
        return replace(call, has_new_counts=True)

    def _find_calls_left(self, key: Hashable) -> Any:
        """Return an array of one number: how many calls with a key go to MPI before `auto` selects an algorithm.

        `key` is the `counting_key` of a call.
        """
        left = self._calls_left.get(key)
        if left is None:
            if len(self._calls_left) >= _MOST_COUNTED:
                self.forget()  # cached calls would go on with the old numbers, and those of other ranks with new ones
                self._calls_left.clear()
            left = self._calls_left[key] = np.full(1, CALLS_BEFORE_PLAN)
        return left

    def add(
        self, call: CollectiveCall, request: Request, get_executable: Callable[[], NativeExecutable] | None, *,
        asynchronous: bool = False,
    ) -> None:  # fmt: skip
        """Record how to carry out calls of the same kind as `call`, so that later ones skip the argument checks.

        `call` has the selected algorithm and number of chunks, and `request` the user's arguments, from which it was
        made. `get_executable` returns the executable of its plan; it is None if the MPI library carries out the call,
        or if calls by this plan are not cached.
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
        sizes = describe_arrays(call, out, self._ranks)
        left = self._find_calls_left(call.counting_key) if call.has_new_counts else None
        if call.algorithm is None:
            library = LibraryCall(self._library, call, asynchronous=asynchronous)
            added = self._add_library(library, sizes, request, asynchronous=asynchronous, calls_left=left)
            if added and not _is_shared(x, out):
                self._keep(request, asynchronous, library, sizes)
            return
        executable = None if get_executable is None else get_executable()
        native = None if executable is None else executable.get_native()
        if executable is None or native is None:
            return
        if asynchronous:
            description = call.describe(self._library.state, asynchronous=True)
            start = PlanStart(operation.value, description, executable.make_start())
            self.asynchronous.add(request, start, needs_idle=False, calls_left=left, **sizes)
        else:
            runs = native if isinstance(native, HostCall) else partial(_run_on_arrays, native)
            needs_idle = call.algorithm.uses_shared_memory
            self.blocking.add(request, runs, needs_idle=needs_idle, calls_left=left, **sizes)

    def add_similar(self, request: Request, *, asynchronous: bool = False) -> bool:
        """Add an MPI library call for new sizes or counts if a similar call is known; return whether it was added."""
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
        if resized is None:
            return False
        library, _ = resized
        is_limited = counts is not None and request[0] is not Operation.ALL_TO_ALL and not library.names_library
        left = self._find_calls_left(library.counting_key) if is_limited else None
        if left is not None and left[0] <= 0:
            return False
        return self._add_library(*resized, request, asynchronous=asynchronous, calls_left=left)

    def keep(self, executable: Executable) -> None:
        """Record an executable that the user prepared, so that `clear` frees it unless the user already has."""
        self._prepared = [*(known for known in self._prepared if known.live), executable]

    def forget(self) -> None:
        """Remove all cached calls."""
        self.blocking.clear()
        self.asynchronous.clear()
        self._similar.clear()
        self._counts.clear()

    def abandon(self) -> None:
        """In a forked child, remove all cached calls and let prepared executables refuse to run; free nothing."""
        self.forget()
        for executable in self._prepared:
            executable.live = False

    def clear(self) -> None:
        """Remove all cached calls and free the prepared executables; to be called before MPI is finalized."""
        self.forget()
        while self._prepared:
            self._prepared.pop().free()

    def _add_library(
        self, library: LibraryCall, sizes: SharedSizes, request: Request, *, asynchronous: bool, calls_left: Any = None
    ) -> bool:
        """Add a call of the MPI library to a table; return False if the arrays are not plain."""
        if asynchronous:
            return self.asynchronous.add(request, library, needs_idle=False, calls_left=calls_left, **sizes)
        # While a rank blocks in MPI, its plans in flight that need Python do not advance.
        needs_idle = not self._library.uses_non_blocking
        return self.blocking.add(request, library.make_call(), needs_idle=needs_idle, calls_left=calls_left, **sizes)

    def _keep(self, request: Request, asynchronous: bool, library: LibraryCall, sizes: SharedSizes) -> None:
        """Keep an MPI library call as the template for calls with other sizes or counts."""
        if request[1] is None or not sizes["nbytes"]:
            return
        if len(self._similar) >= _MOST_SIMILAR:
            self._similar.clear()
        self._similar[self._generalize(request, asynchronous=asynchronous)] = library, sizes

    def _generalize(self, request: Request, *, asynchronous: bool) -> Hashable:
        """Return a call's cache key without sizes and counts; `auto` selects the same for all calls with this key."""
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
    library: LibraryCall, sizes: SharedSizes, x: Any, counts: BlockCounts | None, rank: int
) -> tuple[LibraryCall, SharedSizes] | None:
    """Return an MPI library call and the sizes of its arrays for `x` and `counts`; None if sizes are invalid or 0.

    On a rank without input, `x` is the output.
    """
    operation, ranks, itemsize = library.operation, library.ranks, x.dtype.itemsize
    if counts is None:
        result_nbytes = sizes["result_nbytes"] * x.nbytes // sizes["nbytes"]
        count = x.nbytes // (itemsize * sizes["divisor"])
        new = {"nbytes": x.nbytes, "result_nbytes": result_nbytes, "result_count": result_nbytes // itemsize}
        return (library.resize(count), sizes | new) if count else None
    try:
        rows, taken = parse_rows(operation, counts, ranks)
    except UsageError:
        return None
    total, own, gathers, row = sum(rows), rows[rank], operation in _GATHERS, math.prod(x.shape[1:])
    if x.shape[0] != (own if gathers or not library.has_source else total):
        return None
    new_rows = sum(taken) if taken else total if gathers else own
    result_count = new_rows * row if sizes["in_given"] or sizes["make_output"] else 0
    new = {"nbytes": x.nbytes, "result_nbytes": result_count * itemsize, "result_count": result_count}
    if sizes["make_output"]:
        new["make_output"] = partial(_make_output, operation, ranks, new_rows)
    return library.resize(tuple(count * row for count in (*rows, *taken))), sizes | new | {"rows": x.shape[0]}


def _run_on_arrays(run: Callable[[int, int], object], x: Any, result: Any) -> None:
    """Call `run` with the addresses of plain arrays (None in a barrier)."""
    run(0 if x is None else get_address(x), 0 if result is None else get_address(result))


def _is_shared(x: Any, out: Any) -> bool:
    """Whether one of two plain arrays (None if missing) is in memory that other ranks can address."""
    shared = shared_buffers()
    arrays = [array for array in (x, out) if array is not None and len(shared) and is_plain(array)]
    return any(shared.find(get_address(array)) is not None for array in arrays)
