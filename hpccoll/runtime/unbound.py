"""Carries out blocking collectives on plain arrays without binding them, as first calls on new arrays need.

Calls on plain arrays are of one kind if they agree in operation, array type, dtype, reduction, root, algorithm, and in
the leading bits of the message size, by which `auto` selects. The first call of a kind checks all its arguments, and
adds an `UnboundCollective`. Later calls of this kind find the `UnboundCollective` by one look-up. An
`UnboundCollective` accepts any plain arrays that are in no symmetric buffer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, Final

from hpccoll.plan import Operation
from hpccoll.runtime.arguments import empty_like, output_shape
from hpccoll.runtime.arrays import NUMPY
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.executable import UnboundProgram
from hpccoll.runtime.messages.mpi_calls import METHODS, get_datatype, get_op, order_arguments
from hpccoll.runtime.messages.mpi_collectives import MpiCollectives
from hpccoll.runtime.node_memory.symmetric import buffer_registry
from hpccoll.runtime.plain_arrays import as_mpi_buffer, flatten, get_address, is_plain, overlap
from hpccoll.runtime.progress import Progress
from hpccoll.selection import Selection, round_message_size

KINDS: Final = 512  # most kinds of calls that are kept
PROGRAMS: Final = 64  # most programs that are kept per kind of call
GATHERS: Final = (Operation.ALL_GATHER, Operation.GATHER)
SPLITS: Final = (Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL)
_WITHOUT_INPUT: Final = (Operation.BARRIER, Operation.SCATTER)  # some ranks pass no array
_SOURCE, _RESULT = object(), object()  # stand for mpi4py's specifications of input and output


class UnboundCollective(ABC):
    """Carries out calls of one kind, which agree in operation, dtype and most other arguments.

    Args:
        call: the first call of this kind.
        ranks: number of ranks.
    """

    def __init__(self, call: CollectiveCall, ranks: int) -> None:
        self.output_given, self._operation, self._dtype = call.output_given, call.operation, call.dtype.numpy
        self._ranks, self._registry = ranks, buffer_registry()
        self._in_place = call.source is None or call.source is call.result
        self._has_result, self._divides = call.result is not None, call.reduction.name == "avg"
        self._returns_none = call.operation is Operation.GATHER and not self._has_result
        self._splits = call.operation in SPLITS
        multiple = ranks if call.operation in GATHERS else 1
        divisor = ranks if call.operation is Operation.REDUCE_SCATTER else 1
        self._output_bytes: Callable[[int], int] = lambda nbytes: nbytes * multiple // divisor
        self._bytes_per_count = call.dtype.itemsize * (ranks if self._splits else 1)

    def fits(self, x: Any, out: Any) -> bool:
        """Whether `x`, a plain array, and `out` are valid, do not overlap and are in no symmetric buffer."""
        if self._splits and (not x.shape or x.shape[0] % self._ranks):
            return False
        if self._registry and self._registry.find(get_address(x)):
            return False
        if out is None or not self._has_result:
            return True
        if type(out) is not type(x) or out.dtype != x.dtype or not is_plain(out) or overlap(x, out):
            return False
        return out.nbytes == self._output_bytes(x.nbytes) and not self._registry.find(get_address(out))

    def __call__(self, x: Any, out: Any) -> Any:
        """Carry out a call for which `accepts` is true, and return the call's result for the user."""
        if self._in_place:
            result = x
        elif out is None and self._has_result:
            result = out = empty_like(x, output_shape(self._operation, tuple(x.shape), self._ranks))
        else:
            result = out
        self._run(x, result, x.nbytes // self._bytes_per_count)
        if self._divides and self._has_result:
            NUMPY.bind_divide(flatten(result, self._dtype), self._ranks)()
        return None if self._returns_none else x if out is None else out

    @abstractmethod
    def accepts(self, x: Any, out: Any) -> bool:
        """Whether this object can carry out a call on the plain array `x` and `out`; the call is of its kind."""

    @abstractmethod
    def _run(self, x: Any, result: Any, count: int) -> None:
        """Run the collective on arrays whose vector or block has `count` elements."""


class UnboundLibraryCollective(UnboundCollective):
    """Carries out calls of one kind by the MPI library's own collective."""

    def __init__(self, call: CollectiveCall, library: MpiCollectives, ranks: int) -> None:
        super().__init__(call, ranks)
        self._call, self._method = library.call, METHODS[call.operation]
        self._datatype = get_datatype(call.operation, call.dtype)
        source, result = _SOURCE if call.source else None, _RESULT if call.result else None
        op = get_op(call.dtype, call.reduction.name) if call.operation.reduces else None
        self._arguments = order_arguments(call.operation, source, result, op, call.root, self._in_place)

    accepts = UnboundCollective.fits

    def _run(self, x: Any, result: Any, count: int) -> None:
        datatype, arguments = self._datatype, list(self._arguments)
        for at, argument in enumerate(arguments):
            if argument is _SOURCE or argument is _RESULT:
                arguments[at] = as_mpi_buffer(x if argument is _SOURCE else result), count, datatype
        self._call(self._method, arguments)


class UnboundPlan(UnboundCollective):
    """Carries out calls of one kind by programs (a rank's instructions), without executables.

    `programs` maps a call's number of elements to its program, or to None if the call needs an executable.
    """

    def __init__(self, call: CollectiveCall, progress: Progress, ranks: int) -> None:
        super().__init__(call, ranks)
        self._progress, self.programs = progress, dict[int, UnboundProgram | None]()

    def accepts(self, x: Any, out: Any) -> bool:
        """Whether `fits` is true, there is a program, and no plan is in flight (a program advances no other plan)."""
        program = self.programs.get(x.nbytes // self._bytes_per_count)
        return program is not None and not self._progress.operations and self.fits(x, out)

    def _run(self, x: Any, result: Any, count: int) -> None:
        source = flatten(x, self._dtype)
        output = source if result is x or result is None else flatten(result, self._dtype)
        program = self.programs[count]
        assert program is not None  # noqa: S101 - `accepts` was true
        program(source, output)


class UnboundCollectives:
    """Finds the `UnboundCollective` that carries out a call without binding it to arrays.

    Args:
        found: each `UnboundCollective`, by kind; the owner clears it when the communicator closes or the process forks.
        select: returns the selection for a call.
        make_program: returns the program of a call; None if the call needs an executable.
    """

    def __init__(
        self,
        found: dict[Hashable, UnboundCollective],
        library: MpiCollectives,
        progress: Progress,
        ranks: int,
        select: Callable[[CollectiveCall], Selection],
        make_program: Callable[[CollectiveCall, Selection], UnboundProgram | None],
    ) -> None:
        self._found, self._library, self._progress, self._ranks = found, library, progress, ranks
        self._select, self._make_program = select, make_program

    def find(
        self, operation: Operation, x: Any, out: Any, op: Any, root: int, algorithm: Any
    ) -> UnboundCollective | None:
        """Return the `UnboundCollective` that can carry out a blocking call; None if there is none."""
        if not self._found or not is_plain(x):
            return None
        collective = self._found.get(self._kind(operation, x, out, op, root, algorithm))
        return collective if collective is not None and collective.accepts(x, out) else None

    def add(self, call: CollectiveCall, x: Any, out: Any, op: Any, algorithm: Any) -> None:
        """Keep an `UnboundCollective` for later calls of the same kind as `call`."""
        if call.operation in _WITHOUT_INPUT or call.reduction.factor is not None or not call.count or not is_plain(x):
            return
        kind = self._kind(call.operation, x, out, op, call.root, algorithm)
        selection, collective = self._select(call), self._found.get(kind)
        if collective is None:
            if selection.algorithm is None:
                collective = UnboundLibraryCollective(call, self._library, self._ranks)
            else:
                collective = UnboundPlan(call, self._progress, self._ranks)
        if not collective.fits(x, out):
            return
        if isinstance(collective, UnboundPlan) and call.count not in collective.programs:
            if len(collective.programs) >= PROGRAMS:
                collective.programs.clear()
            collective.programs[call.count] = self._make_program(call, selection)
        if len(self._found) >= KINDS:
            self._found.clear()
        self._found[kind] = collective

    def _kind(self, operation: Operation, x: Any, out: Any, op: Any, root: int, algorithm: Any) -> Hashable:
        """Return the kind of a call on a plain array: the arguments in which all calls of a kind agree."""
        nbytes = x.nbytes * self._ranks if operation in GATHERS else x.nbytes
        return operation, type(x), x.dtype, round_message_size(nbytes), op, root, algorithm, out is None
