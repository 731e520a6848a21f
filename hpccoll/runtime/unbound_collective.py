"""Collectives that are bound to no arrays: each carries out blocking calls of one kind on any plain arrays.

On NumPy arrays that own their memory, a call by the MPI library's own collective is one Python function around MPI's
own function (`UnboundCollective.direct`), because such arrays are in no symmetric buffer and never overlap.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Any, Final

import numpy as np
from mpi4py import MPI

from hpccoll.errors import UsageError
from hpccoll.native import CallTable, MessageCall, StagedCall
from hpccoll.plan import Count, Operation
from hpccoll.runtime.arguments import BlockCounts, empty_like, output_shape, parse_counts
from hpccoll.runtime.arrays import NUMPY
from hpccoll.runtime.collective_call import CollectiveCall, count_elements, describe_call
from hpccoll.runtime.messages.mpi_calls import find_own_block, get_datatype, get_method, order_arguments, specify_counts
from hpccoll.runtime.messages.mpi_collectives import MpiCollectives
from hpccoll.runtime.node_memory.symmetric import buffer_registry
from hpccoll.runtime.plain_arrays import as_mpi_buffer, flatten, get_address, is_plain, overlap
from hpccoll.runtime.progress import Progress
from hpccoll.runtime.recorder.layout import replace_count
from hpccoll.runtime.work import MpiTransfer, explain_mpi_error

GATHERS: Final = (Operation.ALL_GATHER, Operation.GATHER)
SPLITS: Final = (Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL)
_SOURCE, _RESULT = object(), object()  # stand for mpi4py's specifications of input and output


class UnboundCollective(ABC):
    """Carries out calls of one kind, which agree in operation, dtype and most other arguments.

    Args:
        call: the first call of this kind.
        ranks: number of ranks.
    """

    direct: Callable[[Any, Any], Any] | None = None  # carries out calls for which `is_direct` is true

    def __init__(self, call: CollectiveCall, ranks: int) -> None:
        self.output_given, self._operation, self._dtype = call.output_given, call.operation, call.dtype.numpy
        self.name = call.operation.value
        self._ranks, self._symmetric = ranks, buffer_registry()
        self._in_place = call.source is None or call.source is call.result
        self._has_result, self._divides = call.result is not None, call.reduction.divides
        self._returns_none = call.operation is Operation.GATHER and not self._has_result
        self.is_uneven = not isinstance(call.count, int)
        self._splits = call.operation in SPLITS and not self.is_uneven
        buffer = call.source or call.result
        self.nbytes, self.result_nbytes = buffer.nbytes if buffer else 0, call.result.nbytes if call.result else 0
        self.result_shape = call.result.shape if self.is_uneven and call.result else None

    def is_direct(self, x: np.ndarray[Any, Any], out: Any) -> bool:
        """Whether `direct` can carry out a call of this kind, given that no plan is in flight."""
        flags = x.flags
        if self.direct is None or not flags.owndata or not flags.carray:
            return False
        if out is None:
            return True
        if type(out) is not np.ndarray or out.dtype is not x.dtype or out is x:
            return False
        flags = out.flags
        return flags.owndata and flags.carray and out.nbytes == self.result_nbytes

    @abstractmethod
    def accepts(self, x: Any, out: Any) -> bool:
        """Whether this can carry out a call of its kind on `x`, a plain array, and `out`."""

    def fits(self, x: Any, out: Any) -> bool:
        """Whether `x`, a plain array, and `out` are valid, do not overlap and are in no symmetric buffer."""
        if self._splits and (not x.shape or x.shape[0] % self._ranks):
            return False
        if self._symmetric.starts and self._symmetric.find(get_address(x)):
            return False
        if out is None or not self._has_result:
            return True
        if type(out) is not type(x) or out.dtype != x.dtype or not is_plain(out) or overlap(x, out):
            return False
        if self._symmetric.starts and self._symmetric.find(get_address(out)):
            return False
        return bool(out.nbytes == self.result_nbytes)

    def __call__(self, x: Any, out: Any) -> Any:
        """Carry out a call for which `accepts` is true, and return the call's result for the user."""
        result, value = self._find_result(x, out)
        try:
            self._run(x, result)
        except MPI.Exception as error:
            raise explain_mpi_error(error, self._operation.value) from None  # without MPI's own stack of calls
        if self._divides and self._has_result:
            NUMPY.bind_divide(flatten(result, self._dtype), self._ranks)()
        return value

    def _find_result(self, x: Any, out: Any) -> tuple[Any, Any]:
        """Return the array for the result, new if the user passed none, and the call's result for the user."""
        if self._in_place:
            result = x
        elif out is None and self._has_result:
            shape = self.result_shape or output_shape(self._operation, tuple(x.shape), self._ranks)
            result = out = empty_like(x, shape)
        else:
            result = out if self._has_result else None
        return result, None if self._returns_none else x if out is None else out

    @abstractmethod
    def _run(self, x: Any, result: Any) -> None:
        """Run the collective on a plain input and, if this rank has one, a plain output."""


class UnboundLibraryCollective(UnboundCollective):
    """Carries out calls of one kind by the MPI library's own collective.

    Args:
        rank: this rank, whose block is the input or output where each rank has one block.
        asynchronous: whether the calls are asynchronous; `start` then carries them out.
    """

    def __init__(
        self, call: CollectiveCall, ranks: int, rank: int, library: MpiCollectives, *, asynchronous: bool = False
    ) -> None:
        super().__init__(call, ranks)
        self._library, self._method, self._rank = library, get_method(call.operation, call.count), rank
        self._datatype = get_datatype(call.operation, call.dtype, call.reduction)
        self.description = describe_call(library.state, call, None, asynchronous=asynchronous)
        self._op = library.ops.get(call.dtype, call.reduction) if call.operation.reduces else None
        self._root, self._has_source, self._reduction = call.root, call.source is not None, call.reduction.name
        self._copies_own_block = call.is_uneven_exchange and not call.library
        self.set_count(call.count)

    accepts = UnboundCollective.fits

    def resize(self, nbytes: int) -> UnboundLibraryCollective:
        """Return the same for inputs of `nbytes` bytes."""
        other = copy(self)
        other.nbytes, other.result_nbytes = nbytes, self.result_nbytes * nbytes // self.nbytes
        other.set_count(nbytes // (self._dtype.itemsize * (self._ranks if self._splits else 1)))
        return other

    def resize_blocks(self, shape: tuple[int, ...], counts: BlockCounts) -> UnboundLibraryCollective | None:
        """Return the same for an input (or output, if there is no input) of this shape, and other numbers of rows.

        Return None if the numbers of rows are wrong.
        """
        try:
            rows = parse_counts(self._operation, "counts", counts[0], self._ranks)
            exchanges = self._operation is Operation.ALL_TO_ALL
            taken = parse_counts(self._operation, "out_counts", counts[1], self._ranks) if exchanges else rows
        except UsageError:
            return None
        total, own = sum(rows), rows[self._rank]
        gathers, scatters = self._operation in GATHERS, self._operation is Operation.SCATTER
        if shape[0] != (own if gathers or (scatters and not self._has_source) else total):
            return None
        row, other = math.prod(shape[1:]), copy(self)
        result_rows = sum(taken) if exchanges or gathers else own
        other.result_shape = (result_rows, *shape[1:])
        other.result_nbytes = result_rows * row * self._dtype.itemsize
        other.set_count(tuple(count * row for count in ((*rows, *taken) if exchanges else rows)))
        return other

    def bind_direct(self) -> Callable[[Any, Any], Any] | None:
        """Return `direct`, if a call of this kind needs nothing but MPI's blocking function."""
        method = None if self._own_block else self._library.get_blocking_method(self._method, self._check)
        if method is None or self._divides or self._splits or not (self._has_result or self.is_uneven):
            return None
        if self._source_at < 0 or self._result_at < 0:
            return self._bind_direct_in_place(method)
        source_count, result_count, datatype = *self._counts, self._datatype
        begin, end, fail = self._begin, self._library.state.end, self._library.state.fail
        ranks, shape, name, after = self._ranks, self.result_shape, self._operation.value, self._arguments[2:]

        def run(x: Any, out: Any) -> Any:
            if out is None:
                out = np.empty(shape or (ranks, *x.shape), x.dtype)
            place = begin()
            try:
                method((x, source_count, datatype), (out, result_count, datatype), *after)
            except MPI.Exception as error:
                fail(place)
                raise explain_mpi_error(error, name) from None
            except BaseException:
                fail(place)
                raise
            end(place)
            return out

        return run

    def _bind_direct_in_place(self, method: Callable[..., object]) -> Callable[[Any, Any], Any]:
        """Return `direct` for a call with one array, which is the input, the output, or both."""
        at = max(self._source_at, self._result_at)
        before, after = self._arguments[:at], self._arguments[at + 1 :]
        count, datatype, returns = self._counts[self._source_at < 0], self._datatype, not self._returns_none
        begin, end, fail = self._begin, self._library.state.end, self._library.state.fail
        name = self._operation.value

        def run_in_place(x: Any, out: Any) -> Any:  # noqa: ARG001 - all direct calls get an output
            place = begin()
            try:
                method(*before, (x, count, datatype), *after)
            except MPI.Exception as error:
                fail(place)
                raise explain_mpi_error(error, name) from None
            except BaseException:
                fail(place)
                raise
            end(place)
            return x if returns else None

        return run_in_place

    def set_count(self, count: Count) -> None:
        """Set the number of elements (of the vector, of every block, or of each block) and what follows from it."""
        operation, in_place = self._operation, self._in_place and self._has_source
        source, result = _SOURCE if self._has_source else None, _RESULT if self._has_result else None
        self._own_block = find_own_block(count, self._dtype.itemsize, self._rank) if self._copies_own_block else None
        self._counts = specify_counts(operation, count, self._rank, skips_own=self._own_block is not None)
        self._arguments = order_arguments(operation, source, result, self._op, self._root, in_place, count)
        self._source_at, self._result_at = (
            self._arguments.index(each) if each in self._arguments else -1 for each in (_SOURCE, _RESULT)
        )
        self.description = replace_count(self.description, count_elements(operation, count))
        self._begin = self._library.state.bind(operation.value, self.description)
        exchanges, dtype = operation is Operation.ALL_TO_ALL, self._dtype
        arguments = operation, self._root, count, dtype.name, dtype.itemsize, self._reduction
        self._check = () if exchanges else self._library.check.bind(*arguments)
        self.direct = self.bind_direct()

    def start(self, x: Any, out: Any) -> tuple[MpiTransfer, Any]:
        """Start an asynchronous call for which `accepts` is true; return it in flight, and its result for the user."""
        result, value = self._find_result(x, out)
        last = (
            [NUMPY.bind_divide(flatten(result, self._dtype), self._ranks)] if self._divides and self._has_result else []
        )
        request = self._library.start_request(self._method, self._specify(x, result))
        return MpiTransfer(f"rank {self._rank}: MPI's {self.name}", [request], last, (), (x, result)), value

    def _run(self, x: Any, result: Any) -> None:
        self._library.call(self._begin, self._check, self._method, self._specify(x, result))

    def _specify(self, x: Any, result: Any) -> list[Any]:
        """Copy the block of `find_own_block`, if any, and return the arguments of mpi4py's method."""
        if self._own_block is not None:
            sent, received = self._own_block
            flatten(result, self._dtype)[received] = flatten(x, self._dtype)[sent]
        arguments = list(self._arguments)
        if self._source_at >= 0:
            arguments[self._source_at] = as_mpi_buffer(x), self._counts[0], self._datatype
        if self._result_at >= 0:
            arguments[self._result_at] = as_mpi_buffer(result), self._counts[1], self._datatype
        return arguments


class UnboundStagedCall(UnboundCollective):
    """Carries out calls of one kind by a native staged call, which divides by itself for `avg`."""

    def __init__(self, call: CollectiveCall, ranks: int, progress: Progress, staged: StagedCall) -> None:
        super().__init__(call, ranks)
        self._in_flight, self._staged, self._divides = progress.operations, staged, False

    def accepts(self, x: Any, out: Any) -> bool:
        """Whether `fits` is true and no plan is in flight (a staged call does not wait for earlier ones)."""
        return not self._in_flight and self.fits(x, out)

    def add_to(self, table: CallTable, x: Any, op: Any, root: int, algorithm: Any) -> None:
        """Let a table of calls on NumPy arrays carry out the calls of this kind."""
        in_place, itemsize = self._in_place or not self._has_result, self._dtype.itemsize
        table.add(
            self._operation, x.dtype, op, root, algorithm,
            count=x.size,
            output_given=self.output_given and not in_place,
            in_place=in_place,
            returns_none=self._returns_none,
            divisor=self._ranks if self._splits else 1,
            result_count=self.result_nbytes // itemsize,
            make_output=None if in_place or self.output_given else self._make_output,
            call=self._staged,
        )  # fmt: skip

    def _make_output(self, x: Any) -> Any:
        """Return a new array for the result of a call on `x`."""
        return empty_like(x, output_shape(self._operation, tuple(x.shape), self._ranks))

    def _run(self, x: Any, result: Any) -> None:
        address = get_address(x)
        self._staged(address, address if result is x or result is None else get_address(result))


class UnboundPlan(UnboundCollective):
    """Carries out calls of one kind by a program of messages; none if the calls need an executable."""

    def __init__(self, call: CollectiveCall, ranks: int) -> None:
        super().__init__(call, ranks)
        self._divides = False  # the program itself divides for `avg`
        self._program: MessageCall | None = None

    def set_program(self, program: MessageCall | None) -> None:
        """Set the program of the calls; None if they need an executable."""
        self._program = program
        self.direct = None if program is None or self._splits else self._bind_direct(program)

    def _bind_direct(self, program: MessageCall) -> Callable[[Any, Any], Any]:
        """Return the function that runs the program on arrays for which `is_direct` is true."""
        address, find_result = MPI.Get_address, self._find_result
        changes_input, returns = self._in_place or not self._has_result, not self._returns_none

        def run_in_place(x: Any, out: Any) -> Any:  # noqa: ARG001 - all direct calls get an output
            at = address(x)
            program(at, at)
            return x if returns else None

        def run(x: Any, out: Any) -> Any:
            result, value = find_result(x, out)
            program(address(x), address(result))
            return value

        return run_in_place if changes_input else run

    def accepts(self, x: Any, out: Any) -> bool:
        """Whether `fits` is true, and there is a program."""
        return self._program is not None and self.fits(x, out)

    def _run(self, x: Any, result: Any) -> None:
        address = get_address(x)
        output = address if result is x or result is None else get_address(result)
        assert self._program is not None  # noqa: S101 - `accepts` was true
        self._program(address, output)
