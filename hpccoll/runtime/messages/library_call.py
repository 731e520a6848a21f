"""Calls of one kind by the MPI library's own collective, which native code makes on the addresses of any arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI

from hpccoll.errors import UsageError
from hpccoll.native import MpiCall, MpiFunctions, NodeBarrier
from hpccoll.plan import Count, Operation
from hpccoll.runtime.arrays import BoundCall
from hpccoll.runtime.arrays.host_reducers import make_reducer
from hpccoll.runtime.collective_call import CollectiveCall, count_elements, describe_call
from hpccoll.runtime.messages.entry_check import make_entry_check
from hpccoll.runtime.messages.mpi_calls import find_own_block, get_datatype, get_method
from hpccoll.runtime.messages.mpi_functions import find_function, get_handle, get_mpi_functions
from hpccoll.runtime.plain_arrays import get_address
from hpccoll.runtime.recorder.layout import replace_count
from hpccoll.runtime.work import MpiTransfer

if TYPE_CHECKING:
    from hpccoll.runtime.messages.mpi_collectives import MpiCollectives

_NOTHING, _THE_INPUT, _THE_OUTPUT, _IN_PLACE = range(4)  # the `places` of `MpiCall`
_STARTED: Final = (True, True)  # non-blocking and recorded: a key of `LibraryCall._natives`
MOST_ELEMENTS: Final = 2**31 - 1  # of a message for which functions with counts of 32 bits suffice


@dataclass(frozen=True, slots=True)
class PassedForm:
    """What mpi4py's own call passes to MPI: the datatype and reduction; `functions` raise mpi4py's errors."""

    functions: MpiFunctions
    datatype: MPI.Datatype
    op: MPI.Op


class LibraryCall:
    """What all calls of one kind pass to MPI: makes native calls, and starts asynchronous ones.

    Args:
        library: the collectives of the MPI library on the communicator.
        call: a call of this kind.
        in_place: whether input and output share memory where both have the same elements.
        asynchronous: whether `start` carries out the calls.

    Attributes:
        name: the name of the operation.
        has_source: whether this rank has an input.
    """

    def __init__(
        self, library: MpiCollectives, call: CollectiveCall, *, in_place: bool, asynchronous: bool = False
    ) -> None:
        self._library, self._ranks, self._rank = library, library.comm.size, library.comm.rank
        self._operation, self._dtype, self._root = call.operation, call.dtype, call.root
        self.name: str = call.operation.value
        self._title = f"rank {self._rank}: MPI's {self.name}"
        self._reduction, self._on_device = call.reduction, call.module.on_device
        self._method, self._in_place = get_method(call.operation, call.count), in_place
        self.has_source, self._has_result = call.source is not None, call.result is not None
        self._divides = call.reduction.divides and self._has_result
        # hpccoll copies the block that a rank sends to itself, unless the call names the library or is on the device.
        self._copies_own_block = call.is_uneven_exchange and not call.library and not self._on_device
        self._description = describe_call(library.state, call, None, asynchronous=asynchronous)
        self.set_count(call.count)

    @property
    def description(self) -> bytes:
        """The common part of the calls' entries in the flight recorder."""
        return self._description

    def set_count(self, count: Count) -> None:
        """Set the number of elements, of the vector or every block, or of each block."""
        self._count = count
        self._description = replace_count(self._description, count_elements(self._operation, count))
        self._natives: dict[tuple[bool, bool], MpiCall] = {}

    def resize(self, count: Count) -> LibraryCall:
        """Return a `LibraryCall` for another number of elements, of the vector or of every block, or of each block."""
        other = copy(self)
        other.set_count(count)
        return other

    def make_call(self) -> MpiCall | Callable[[Any, Any], None]:
        """Return what carries out blocking calls of this kind: a native call, or a function of input and output."""
        native = self.get_native(is_nonblocking=self._library.uses_non_blocking)
        return partial(self._divide_after, native) if self._divides else native

    def get_native(self, *, is_nonblocking: bool, is_recorded: bool = True) -> MpiCall:
        """Return the native call of the blocking or non-blocking form of MPI's function; for `avg`, it only sums.

        `is_recorded` states whether the native call notes itself in the flight recorder.
        """
        key = is_nonblocking, is_recorded
        if key not in self._natives:
            self._natives[key] = self.make_native(is_nonblocking=is_nonblocking, is_recorded=is_recorded)
        return self._natives[key]

    def make_native(
        self, passed: PassedForm | None = None, *, is_nonblocking: bool = False, is_recorded: bool = False
    ) -> MpiCall:
        """Return a new native call, as `get_native` does; `passed` is what it passes to MPI in a call of mpi4py.

        Raises:
            UsageError: the counts need 64 bits, and the MPI library has no function for such counts.
        """
        library, progress, state = self._library, self._library.progress, self._library.state
        form = passed or self._get_form()
        is_large = self._find_largest_count() > MOST_ELEMENTS
        function = self._find_function(is_nonblocking=is_nonblocking, is_large=is_large)
        own = find_own_block(self._count, self._dtype.itemsize, self._rank) if self._copies_own_block else None
        count, sizes, places = self._list_sizes(is_large=is_large, skips_own=own is not None)
        # A fence before the non-blocking form would wait for ranks that first complete operations in flight.
        compared = None if is_nonblocking or self._on_device else self._make_check()
        barrier, fingerprint, raise_mismatch = compared or (None, 0, bool)  # without a barrier, `bool` is not called
        return MpiCall(
            form.functions,
            function,
            self._method,
            is_nonblocking,
            is_large,
            (get_handle(form.datatype), get_handle(form.op), get_handle(library.comm)),
            count,
            sizes,
            own or (0, 0, 0),
            self._root,
            places,
            int(MPI.IN_PLACE) % 2**64,
            barrier,
            fingerprint,
            raise_mismatch,
            state if is_recorded else None,
            state.recorder.take_entry if is_recorded else None,
            self.name,
            self._description,
            *(progress.oversubscribed, progress.attend, progress.operations, progress.transfers),
        )

    def start(self, x: Any, result: Any) -> MpiTransfer:
        """Start an asynchronous call on a plain input and output, and return it in flight."""
        target = get_address(result) if result is not None else 0
        last = [partial(self._divide, target, result.nbytes)] if self._divides else []
        return self.start_at(get_address(x) if x is not None else 0, target, last, (x, result))

    def start_at(self, source: int, result: int, last: Sequence[BoundCall], keep: tuple[Any, ...]) -> MpiTransfer:
        """Start a call on the addresses of an input and an output, and return it in flight.

        Args:
            last: functions to call when the collective is complete.
            keep: objects that are kept alive until the collective is complete.
        """
        native = self._natives.get(_STARTED) or self.get_native(is_nonblocking=True)
        request = MPI.Request.fromhandle(native.start(source, result))
        # MPI may read the counts and displacements, which `native` holds, until the collective is complete.
        return MpiTransfer(self._title, [request], list(last), (), (native, *keep))

    def _get_form(self) -> PassedForm:
        """Return what calls of hpccoll pass to MPI."""
        op = self._library.ops.get(self._dtype, self._reduction) if self._operation.reduces else MPI.OP_NULL
        return PassedForm(get_mpi_functions(), get_datatype(self._operation, self._dtype, self._reduction), op)

    def _find_largest_count(self) -> int:
        """Return the largest count or displacement that MPI gets, in elements."""
        count = self._count
        if isinstance(count, int):
            return count
        return max(sum(count[: self._ranks]), sum(count[self._ranks :]))

    def _find_function(self, *, is_nonblocking: bool, is_large: bool) -> int:
        """Return the address of MPI's function, for counts of 64 bits if `is_large`; raise UsageError without it."""
        method = self._method + "_c" if is_large else self._method
        function = find_function(f"MPI_I{method.lower()}" if is_nonblocking else f"MPI_{method}")
        if not function:
            raise UsageError(
                f"{self.name}: this MPI library has no MPI_{method}; pass at most {MOST_ELEMENTS} elements, or "
                "algorithm='auto'"
            )
        return function

    def _make_check(self) -> tuple[NodeBarrier, int, BoundCall] | None:
        """Return how the node's ranks compare their calls; None if they do not."""
        library, dtype = self._library, self._dtype
        return make_entry_check(
            library.node, self._ranks, self._operation, self._root, self._count, dtype, self._reduction.name
        )

    def _divide_after(self, native: MpiCall, x: Any, result: Any) -> None:
        """Run a native sum on plain arrays, and divide it by the number of ranks."""
        target = get_address(result)
        native(get_address(x), target)
        self._divide(target, result.nbytes)

    def _divide(self, address: int, nbytes: int) -> None:
        """Divide the elements at an address by the number of ranks."""
        make_reducer("divide", self._dtype, self._ranks)(address, 0, address, nbytes)

    def _list_sizes(self, *, is_large: bool, skips_own: bool) -> tuple[int, Any, tuple[int, int]]:
        """Return the arguments `count`, `sizes` and `places` of `MpiCall`; `skips_own` leaves out the own block."""
        count, operation, rank = self._count, self._operation, self._rank
        width = np.int64 if is_large else np.int32
        if isinstance(count, int):
            return count, np.empty(0, width), self._find_places(count > 0, count > 0)
        counts = np.array(count, np.int64).reshape(-1, self._ranks)
        begins = np.cumsum(counts, axis=1) - counts
        if skips_own:
            counts[:, rank] = 0
        own, blocks = bool(counts[0, rank]), bool(counts[0].any())
        sends, receives = (own, blocks) if operation in (Operation.ALL_GATHER, Operation.GATHER) else (blocks, own)
        if operation is Operation.ALL_TO_ALL:
            receives = bool(counts[1].any())
        sizes = np.stack([counts, begins], axis=1).astype(width).ravel()
        return int(counts[0, rank]), sizes, self._find_places(sends, receives)

    def _find_places(self, sends: bool, receives: bool) -> tuple[int, int]:
        """Return the numbers of what MPI gets as its input and as its output (a broadcast only has an input).

        MPICH refuses equal addresses of input and output, also of empty arrays, which MPI therefore does not get.

        Args:
            sends: whether the input has elements.
            receives: whether the output has elements.
        """
        operation = self._operation
        source = _THE_INPUT if self.has_source and sends else _NOTHING
        result = _THE_OUTPUT if self._has_result and receives else _NOTHING
        if operation is Operation.BARRIER:
            return _NOTHING, _NOTHING
        if operation is Operation.BROADCAST:
            return result or source, _NOTHING
        if operation is Operation.EXSCAN and not self._has_result:
            return _IN_PLACE, source  # on rank 0, MPI leaves a buffer in place unchanged
        if operation is Operation.SCATTER:
            return source, _IN_PLACE if self._in_place else result
        return _IN_PLACE if self._in_place else source, result
