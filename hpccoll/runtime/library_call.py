"""Calls of one kind by the MPI library's own collective, on any plain arrays.

Blocking calls run in native code (`LibraryCall.make_native`), asynchronous ones through mpi4py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from mpi4py import MPI

from hpccoll.errors import UsageError
from hpccoll.native import MpiCall, MpiFunctions, NodeBarrier
from hpccoll.plan import Count, Operation
from hpccoll.runtime.arguments import BlockCounts, parse_counts
from hpccoll.runtime.arrays import NUMPY, BoundCall
from hpccoll.runtime.collective_call import CollectiveCall, count_elements, describe_call
from hpccoll.runtime.messages.mpi_calls import (
    find_own_block,
    get_datatype,
    get_method,
    list_sizes,
    locate_own_block,
    order_arguments,
    specify_counts,
)
from hpccoll.runtime.messages.mpi_collectives import MpiCollectives
from hpccoll.runtime.messages.mpi_functions import find_function, get_handle, get_mpi_functions
from hpccoll.runtime.plain_arrays import as_mpi_buffer, flatten, get_address
from hpccoll.runtime.recorder.layout import replace_count
from hpccoll.runtime.work import MpiTransfer

_EMPTY = MPI.buffer.fromaddress(0, 0)
_NOTHING, _THE_INPUT, _THE_OUTPUT, _IN_PLACE = range(4)  # the `places` of `MpiCall`
MOST_NATIVE_BYTES: Final = 2**31 - 1  # of a message, because native code calls functions with counts of 32 bits
_SOURCE, _RESULT = object(), object()  # stand for mpi4py's specifications of input and output


@dataclass(frozen=True, slots=True)
class PassedForm:
    """What mpi4py's own call passes to MPI: the datatype and reduction; `functions` raise mpi4py's errors."""

    functions: MpiFunctions
    datatype: MPI.Datatype
    op: MPI.Op


class LibraryCall:
    """What all calls of one kind pass to MPI; makes native calls, and starts asynchronous ones.

    Args:
        call: the first call of this kind.
        ranks, rank: the number of ranks, and this rank.
        library: the collectives of the MPI library on the communicator.
        asynchronous: whether `start` carries out the calls.
    """

    def __init__(
        self, call: CollectiveCall, ranks: int, rank: int, library: MpiCollectives, *, asynchronous: bool = False
    ) -> None:
        self._ranks, self._rank, self._library = ranks, rank, library
        self._operation, self._dtype, self._root = call.operation, call.dtype, call.root
        self._method, self._reduction = get_method(call.operation, call.count), call.reduction
        self._start = library.get_non_blocking_method(self._method)
        self._datatype = get_datatype(call.operation, call.dtype, call.reduction)
        self._description = describe_call(library.state, call, None, asynchronous=asynchronous)
        self._op = library.ops.get(call.dtype, call.reduction) if call.operation.reduces else None
        self._has_source, self._has_result = call.source is not None, call.result is not None
        self._in_place = self._has_source and call.source is call.result
        self._divides = call.reduction.divides and self._has_result
        self._copies_own_block = call.is_uneven_exchange and not call.library
        self.set_count(call.count)

    @property
    def name(self) -> str:
        """The name of the operation."""
        return str(self._operation.value)

    @property
    def description(self) -> bytes:
        """The common part of the calls' entries in the flight recorder."""
        return self._description

    def resize(self, count: int) -> LibraryCall:
        """Return a `LibraryCall` for another number of elements, of the vector or of every block."""
        other = copy(self)
        other.set_count(count)
        return other

    def resize_blocks(self, shape: tuple[int, ...], counts: BlockCounts) -> tuple[LibraryCall, int] | None:
        """Return a `LibraryCall` for other numbers of rows, and the number of rows of its result.

        `shape` is that of the input, or of the output if there is no input. Return None if it does not match `counts`.
        """
        exchanges = self._operation is Operation.ALL_TO_ALL
        try:
            rows = parse_counts(self._operation, "counts", counts[0], self._ranks)
            taken = parse_counts(self._operation, "out_counts", counts[1], self._ranks) if exchanges else rows
        except UsageError:
            return None
        total, own = sum(rows), rows[self._rank]
        gathers = self._operation in (Operation.ALL_GATHER, Operation.GATHER)
        scatters = self._operation is Operation.SCATTER
        if shape[0] != (own if gathers or (scatters and not self._has_source) else total):
            return None
        row, other = math.prod(shape[1:]), copy(self)
        other.set_count(tuple(count * row for count in ((*rows, *taken) if exchanges else rows)))
        return other, sum(taken) if exchanges or gathers else own

    def make_call(self) -> MpiCall | Callable[[Any, Any], None] | None:
        """Return what carries out blocking calls of this kind: a native call, or a function of input and output.

        Return None if mpi4py has to make each call. In MPI's blocking form, no plan may be in flight, because plans do
        not advance meanwhile.
        """
        native = self.make_native()
        return partial(self._divide_after, native) if native is not None and self._divides else native

    def make_native(self, passed: PassedForm | None = None) -> MpiCall | None:
        """Return the native call of MPI's function; None for messages of 2 GiB and more. For a mean, it only sums.

        The flight recorder notes the calls unless they have a `passed` form.
        """
        count, library = self._count, self._library
        if self._operation.message_bytes(count, self._dtype.itemsize, self._ranks) > MOST_NATIVE_BYTES:
            return None
        is_nonblocking, progress, state = library.uses_non_blocking, library.progress, library.state
        own_count, sizes = list_sizes(self._operation, count, self._rank, skips_own=self._own_block is not None)
        compared = None if is_nonblocking else self._make_check()
        barrier, fingerprint, raise_mismatch = compared or (None, 0, bool)  # without a barrier, `bool` is not called
        form = passed or PassedForm(get_mpi_functions(), self._datatype, self._op or MPI.OP_NULL)
        return MpiCall(
            form.functions,
            find_function(f"MPI_I{self._method.lower()}" if is_nonblocking else f"MPI_{self._method}"),
            self._method,
            is_nonblocking,
            (get_handle(form.datatype), get_handle(form.op), get_handle(library.comm)),
            own_count,
            sizes,
            locate_own_block(self._own_block, self._dtype.itemsize),
            self._root,
            self._find_places(),
            int(MPI.IN_PLACE) % 2**64,
            barrier,
            fingerprint,
            raise_mismatch,
            None if passed else state,
            None if passed else state.recorder.take_entry,
            self.name,
            self._description,
            *(progress.oversubscribed, progress.attend, progress.operations, progress.transfers),
        )

    def _make_check(self) -> tuple[NodeBarrier, int, BoundCall] | None:
        """Return how the node's ranks compare their calls; None if they do not."""
        dtype = self._dtype
        return self._library.check.make_check(
            self._operation, self._root, self._count, dtype.name, dtype.itemsize, self._reduction.name
        )

    def _divide_after(self, native: MpiCall, x: Any, result: Any) -> None:
        """Run a native sum on plain arrays, and divide it by the number of ranks."""
        native(get_address(x), get_address(result))
        NUMPY.bind_divide(flatten(result, self._dtype.numpy), self._ranks)()

    def _find_places(self) -> tuple[int, int]:
        """Return the numbers of what MPI gets as its input and as its output (a broadcast only has an input).

        MPICH refuses equal addresses of input and output, also of empty arrays, which MPI therefore does not get.
        """
        has_source, has_result = (count if isinstance(count, int) else any(count) for count in self._counts)
        numbers = {
            id(_SOURCE): _THE_INPUT if has_source else _NOTHING,
            id(_RESULT): _THE_OUTPUT if has_result else _NOTHING,
            id(MPI.IN_PLACE): _IN_PLACE,
        }
        sent, received = (numbers.get(id(place), _NOTHING) for place in (*self._arguments, None, None)[:2])
        return sent, received

    def start(self, x: Any, result: Any) -> MpiTransfer:
        """Start an asynchronous call on a plain input and output, and return it in flight."""
        epilogue = [NUMPY.bind_divide(flatten(result, self._dtype.numpy), self._ranks)] if self._divides else []
        request = self._start(*self._specify(x, result))
        return MpiTransfer(f"rank {self._rank}: MPI's {self.name}", [request], epilogue, (), (x, result))

    def set_count(self, count: Count) -> None:
        """Set the number of elements (of the vector or every block, or of each block), and build MPI's arguments."""
        operation, dtype = self._operation, self._dtype
        source, result = _SOURCE if self._has_source else None, _RESULT if self._has_result else None
        self._own_block = find_own_block(count, dtype.itemsize, self._rank) if self._copies_own_block else None
        self._counts = specify_counts(operation, count, self._rank, skips_own=self._own_block is not None)
        self._arguments = order_arguments(operation, source, result, self._op, self._root, self._in_place, count)
        self._source_at, self._result_at = (
            self._arguments.index(place) if place in self._arguments else -1 for place in (_SOURCE, _RESULT)
        )
        self._description = replace_count(self._description, count_elements(operation, count))
        self._count = count

    def _specify(self, x: Any, result: Any) -> list[Any]:
        """Copy the block of `find_own_block`, if any, and return the arguments of mpi4py's method."""
        if self._own_block is not None:
            sent, received = self._own_block
            flatten(result, self._dtype.numpy)[received] = flatten(x, self._dtype.numpy)[sent]
        arguments = list(self._arguments)
        # MPICH refuses equal addresses of input and output, also of empty arrays.
        if self._source_at >= 0:
            source = as_mpi_buffer(x) if x.nbytes or self._result_at < 0 or not result.nbytes else _EMPTY
            arguments[self._source_at] = source, self._counts[0], self._datatype
        if self._result_at >= 0:
            arguments[self._result_at] = (
                as_mpi_buffer(result) if result.nbytes else _EMPTY,
                self._counts[1],
                self._datatype,
            )
        return arguments
