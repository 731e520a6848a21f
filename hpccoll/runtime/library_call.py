"""Calls of one kind by the MPI library's own collective, on any plain arrays.

Calls with equal blocks run in native code (`LibraryCall.make_native`). Calls with blocks of different sizes, means, and
calls of 2 GiB and more go through mpi4py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from hpccoll.errors import UsageError
from hpccoll.native import MpiCall, MpiFunctions
from hpccoll.plan import Count, Operation
from hpccoll.runtime.arguments import BlockCounts, parse_counts
from hpccoll.runtime.arrays import NUMPY
from hpccoll.runtime.collective_call import CollectiveCall, count_elements, describe_call
from hpccoll.runtime.messages.mpi_calls import find_own_block, get_datatype, get_method, order_arguments, specify_counts
from hpccoll.runtime.messages.mpi_collectives import MOST_ELEMENTS, MpiCollectives
from hpccoll.runtime.messages.mpi_functions import find_function, get_handle, get_mpi_functions
from hpccoll.runtime.plain_arrays import as_mpi_buffer, flatten
from hpccoll.runtime.recorder.layout import replace_count
from hpccoll.runtime.work import MpiTransfer, explain_mpi_error

_EMPTY = MPI.buffer.fromaddress(0, 0)
_SOURCE, _RESULT = object(), object()  # stand for mpi4py's specifications of input and output


@dataclass(frozen=True, slots=True)
class PassedForm:
    """How a program would call MPI itself: the functions, which raise the errors, and the datatype and reduction."""

    functions: MpiFunctions
    datatype: MPI.Datatype
    op: MPI.Op


class LibraryCall:
    """Carries out the calls of one kind; called with the input and the output array, which are one array in place.

    Args:
        call: the first call of this kind.
        ranks, rank: the number of ranks, and this rank.
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

        `shape` is that of the input, or of the output if there is no input. Return None if the numbers are wrong.
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

    def __call__(self, x: Any, result: Any) -> None:
        """Run the collective on a plain input and output and wait for its end."""
        library = self._library
        if self._method_once is None or library.uses_non_blocking or library.progress.operations:
            self._call_by_library(x, result)
            return
        place = self._begin()
        try:
            self._method_once(*self._specify(x, result))
        except MPI.Exception as error:
            library.state.fail(place)
            raise explain_mpi_error(error, self.name) from None  # without MPI's own stack of calls
        except BaseException:
            library.state.fail(place)
            raise
        library.state.end(place)

    def make_native(self, passed: PassedForm | None = None) -> MpiCall | None:
        """Return the native call that carries out blocking calls of this kind; None if it cannot.

        In MPI's blocking form it must not run while plans are in flight, because plans do not advance meanwhile. The
        flight recorder notes the calls unless they have a `passed` form.
        """
        count, library = self._count, self._library
        if not isinstance(count, int) or count * self._dtype.itemsize * self._ranks > MOST_ELEMENTS or self._divides:
            return None
        starts, progress, state = library.uses_non_blocking, library.progress, library.state
        function = find_function(f"MPI_I{self._method.lower()}" if starts else f"MPI_{self._method}")
        if not function:
            return None
        compared = None if starts else library.check.describe(*self._compared)
        barrier, fingerprint, raise_mismatch = compared or (None, 0, bool)
        form = passed or PassedForm(get_mpi_functions(), self._datatype, self._op or MPI.OP_NULL)
        return MpiCall(
            form.functions,
            function,
            self._method,
            starts,
            (get_handle(form.datatype), get_handle(form.op), get_handle(library.comm)),
            count,
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

    def _find_places(self) -> tuple[int, int]:
        """Return what MPI gets as its input and as its output, as `MpiCall` numbers it."""
        numbers = {id(None): 0, id(_SOURCE): 1, id(_RESULT): 2, id(MPI.IN_PLACE): 3}
        arrays = (*self._arguments, None, None)
        sent, received = (numbers.get(id(array), 0) for array in arrays[:2])
        return sent, received

    def start(self, x: Any, result: Any) -> MpiTransfer:
        """Start an asynchronous call on a plain input and output, and return it in flight."""
        last = [NUMPY.bind_divide(flatten(result, self._dtype.numpy), self._ranks)] if self._divides else []
        request = self._start(*self._specify(x, result))
        return MpiTransfer(f"rank {self._rank}: MPI's {self.name}", [request], last, (), (x, result))

    def _call_by_library(self, x: Any, result: Any) -> None:
        """Run the collective beside operations in flight, in MPI's non-blocking form, or with a division."""
        try:
            self._library.call(self._begin, self._check, self._method, self._start, self._specify(x, result))
        except MPI.Exception as error:
            raise explain_mpi_error(error, self.name) from None
        if self._divides:
            NUMPY.bind_divide(flatten(result, self._dtype.numpy), self._ranks)()

    def set_count(self, count: Count) -> None:
        """Set the number of elements (of the vector or every block, or of each block), and build MPI's arguments."""
        operation, dtype, library = self._operation, self._dtype, self._library
        source, result = _SOURCE if self._has_source else None, _RESULT if self._has_result else None
        self._own_block = find_own_block(count, dtype.itemsize, self._rank) if self._copies_own_block else None
        self._counts = specify_counts(operation, count, self._rank, skips_own=self._own_block is not None)
        self._arguments = order_arguments(operation, source, result, self._op, self._root, self._in_place, count)
        self._source_at, self._result_at = (
            self._arguments.index(place) if place in self._arguments else -1 for place in (_SOURCE, _RESULT)
        )
        self._description = replace_count(self._description, count_elements(operation, count))
        self._begin = library.state.bind(operation.value, self._description)
        self._count = count
        self._compared = operation, self._root, count, dtype.name, dtype.itemsize, self._reduction.name
        self._check = () if operation is Operation.ALL_TO_ALL else library.check.bind(*self._compared)
        self._method_once: Callable[..., object] | None = None
        if self._own_block is None and not self._divides:
            self._method_once = library.get_blocking_method(self._method, self._check)

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
