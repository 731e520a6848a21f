"""Calls the MPI library's own collectives from native code; calls of one kind share a native call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI

from hpccoll.arrays import BoundCall
from hpccoll.arrays.host_reducers import make_reducer
from hpccoll.errors import UsageError
from hpccoll.native import MpiCall, MpiFunctions, NodeBarrier
from hpccoll.plan import Count, Operation
from hpccoll.recordings.layout import replace_count
from hpccoll.runtime.collective_call import CollectiveCall, count_elements
from hpccoll.runtime.messages.mpi_calls import find_own_block, get_datatype, get_method
from hpccoll.runtime.messages.mpi_functions import find_function, get_handle, get_mpi_functions
from hpccoll.runtime.node_memory.node import compute_fingerprint
from hpccoll.runtime.plain_arrays import get_address
from hpccoll.runtime.work import MpiTransfer
from hpccoll.selection import MPI_LIBRARY

if TYPE_CHECKING:
    from hpccoll.runtime.messages.mpi_collectives import MpiCollectives

_NOTHING, _THE_INPUT, _THE_OUTPUT, _IN_PLACE = range(4)  # the `places` of `MpiCall`
_STARTED: Final = (True, True)  # non-blocking and recorded: a key of `LibraryCall._natives`
# Operations in which all ranks wait for each other or for the root, unlike a sender of a gather or rank 0 of a scan.
_CHECKED: Final = {Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.BROADCAST, Operation.SCATTER}
# Ranks that share cores take turns at each fence, which costs more than a short message.
_LEAST_BYTES_ON_SHARED_CORES: Final = 64 * 2**10
MOST_ELEMENTS: Final = 2**31 - 1  # of a message for which functions with counts of 32 bits suffice


@dataclass(frozen=True, slots=True)
class PassedForm:
    """The datatype and reduction that a call passes to MPI; `functions` raises exceptions for MPI's error codes."""

    functions: MpiFunctions
    datatype: MPI.Datatype
    op: MPI.Op


class LibraryCall:
    """Makes the native calls of one kind of collective, and starts its asynchronous calls.

    Args:
        library: the collectives of the MPI library on the communicator.
        call: a call of this kind.
        asynchronous: whether `start` carries out the calls.

    Attributes:
        operation, name: the operation and its name.
        ranks: the number of ranks.
        description: the bytes that describe a call in the flight recorder.
        has_source: whether this rank has an input.
        names_library: whether the calls name `mpi` as their algorithm.
    """

    def __init__(self, library: MpiCollectives, call: CollectiveCall, *, asynchronous: bool = False) -> None:
        self._library, self.ranks, self._rank = library, library.comm.size, library.comm.rank
        self.operation, self._dtype, self._root = call.operation, call.dtype, call.root
        self.name: str = call.operation.value
        self._title = f"rank {self._rank}: MPI's {self.name}"
        self._reduction, self._on_device = call.reduction, call.module.on_device
        self._method, self._in_place = get_method(call.operation, call.count), call.in_place
        self.has_source, self._has_result = call.source is not None, call.result is not None
        self.names_library, self._counting_key = call.library, call.counting_key
        self._divides = call.reduction.divides and self._has_result
        # hpccoll copies the block that a rank sends to itself, unless the call names `mpi` or is on device memory.
        self._copies_own_block = call.is_uneven_exchange and not call.library and not self._on_device
        self.description = call.describe(library.state, asynchronous=asynchronous)
        self.set_count(call.count)

    @property
    def counting_key(self) -> tuple[Operation, str, str, int, Count]:
        """The properties of the calls that are equal on all ranks; see `CollectiveCall.counting_key`."""
        return (*self._counting_key[:-1], self._count)

    def set_count(self, count: Count) -> None:
        """Set the number of elements: one number for the vector or for every block, or one number per block."""
        self._count = count
        self.description = replace_count(self.description, count_elements(self.operation, count))
        self._natives: dict[tuple[bool, bool], MpiCall] = {}

    def resize(self, count: Count) -> LibraryCall:
        """Return a copy of this `LibraryCall` for another number of elements, which `set_count` describes."""
        other = copy(self)
        other.set_count(count)
        return other

    def make_call(self) -> MpiCall | Callable[[Any, Any], None]:
        """Return the native call of a blocking call, on two addresses; for `avg`, a function of input and output."""
        native = self.get_native(is_nonblocking=self._library.uses_non_blocking)
        return partial(self._divide_after, native) if self._divides else native

    def get_native(self, *, is_nonblocking: bool, is_recorded: bool = True) -> MpiCall:
        """Return the cached native call (C code) of MPI's blocking or non-blocking function; for `avg`, it only sums.

        `is_recorded` states whether the native call notes itself in the flight recorder.
        """
        key = is_nonblocking, is_recorded
        if key not in self._natives:
            self._natives[key] = self.make_native(is_nonblocking=is_nonblocking, is_recorded=is_recorded)
        return self._natives[key]

    def make_native(
        self, passed: PassedForm | None = None, *, is_nonblocking: bool = False, is_recorded: bool = False
    ) -> MpiCall:
        """Return a new native call (C code) of MPI's function; `get_native` explains the flags.

        `passed` has the datatype, reduction and functions of a user's call by mpi4py; None for hpccoll's own calls.
        Raises UsageError if the counts need 64 bits, and the MPI library has no function for such counts.
        """
        library, progress, state = self._library, self._library.progress, self._library.state
        form = passed or self._get_form()
        is_large = self._find_largest_count() > MOST_ELEMENTS
        function = self._find_function(is_nonblocking=is_nonblocking, is_large=is_large)
        own = find_own_block(self._count, self._dtype.itemsize, self._rank) if self._copies_own_block else None
        count, sizes, places = self._list_sizes(is_large=is_large, skips_own=own is not None)
        # A non-blocking call has no fence before it, because other ranks may first wait for operations in flight.
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
            self.description,
            *(progress.oversubscribed, progress.attend, progress.operations, progress.transfers),
        )

    def start(self, x: Any, result: Any) -> MpiTransfer:
        """Start an asynchronous call on an input and output (plain arrays or None); return the operation in flight."""
        target = get_address(result) if result is not None else 0
        last = [partial(self._divide, target, result.nbytes)] if self._divides else []
        return self.start_at(get_address(x) if x is not None else 0, target, last, (x, result))

    def start_at(self, source: int, result: int, last: Sequence[BoundCall], keep: tuple[Any, ...]) -> MpiTransfer:
        """Start a call on the addresses of an input and an output, and return the operation in flight.

        Args:
            last: functions to call when the collective is complete.
            keep: objects that are kept alive until the collective is complete.
        """
        native = self._natives.get(_STARTED) or self.get_native(is_nonblocking=True)
        request = MPI.Request.fromhandle(native.start(source, result))
        # MPI may read the counts and displacements, which `native` holds, until the collective is complete.
        return MpiTransfer(self._title, [request], list(last), (), (native, *keep))

    def _get_form(self) -> PassedForm:
        """Return the datatype, reduction and MPI functions of hpccoll's own calls."""
        op = self._library.ops.get(self._dtype, self._reduction) if self.operation.reduces else MPI.OP_NULL
        return PassedForm(get_mpi_functions(), get_datatype(self.operation, self._dtype, self._reduction), op)

    def _find_largest_count(self) -> int:
        """Return the largest count or displacement that MPI gets, in elements."""
        count = self._count
        if isinstance(count, int):
            return count
        return max(sum(count[: self.ranks]), sum(count[self.ranks :]))

    def _find_function(self, *, is_nonblocking: bool, is_large: bool) -> int:
        """Return the address of MPI's function, with 64-bit counts if `is_large`; raise UsageError if MPI lacks it."""
        method = self._method + "_c" if is_large else self._method
        function = find_function(f"MPI_I{method.lower()}" if is_nonblocking else f"MPI_{method}")
        if not function:
            raise UsageError(
                f"{self.name}: this MPI library has no MPI_{method}; pass at most {MOST_ELEMENTS} elements, or "
                "algorithm='auto'"
            )
        return function

    def _make_check(self) -> tuple[NodeBarrier, int, BoundCall] | None:
        """Return the node's barrier, the fingerprint of the calls, and the function that raises MismatchError.

        The MPI library itself does not notice that ranks pass different counts or roots: it ends the process, returns
        wrong data, or waits forever. The result is None if calls of this kind are not compared, as on several nodes.
        Cost: one fence of the node's ranks, 0.5 us with a core for each rank.
        """
        node, operation, count, dtype = self._library.node, self.operation, self._count, self._dtype
        if node is None or node.problem or not len(node.ranks) == self.ranks > 1 or operation not in _CHECKED:
            return None
        nbytes = dtype.itemsize * (count if isinstance(count, int) else sum(count))
        if node.oversubscribed and nbytes < _LEAST_BYTES_ON_SHARED_CORES:
            return None
        arguments = operation.value, MPI_LIBRARY, 1, self._root, count, dtype.name, self._reduction.name, "host"
        return node.barrier, compute_fingerprint(arguments), partial(node.raise_mismatch, arguments)

    def _divide_after(self, native: MpiCall, x: Any, result: Any) -> None:
        """Run a native sum on plain arrays, and divide it by the number of ranks."""
        target = get_address(result)
        native(get_address(x), target)
        self._divide(target, result.nbytes)

    def _divide(self, address: int, nbytes: int) -> None:
        """Divide the elements at an address by the number of ranks."""
        make_reducer("divide", self._dtype, self.ranks)(address, 0, address, nbytes)

    def _list_sizes(self, *, is_large: bool, skips_own: bool) -> tuple[int, Any, tuple[int, int]]:
        """Return the arguments `count`, `sizes` and `places` of `MpiCall`, as a tuple.

        `skips_own` leaves out the block that this rank sends to itself.
        """
        count, operation, rank = self._count, self.operation, self._rank
        width = np.int64 if is_large else np.int32
        if isinstance(count, int):
            return count, np.empty(0, width), self._find_places(count > 0, count > 0)
        counts = np.array(count, np.int64).reshape(-1, self.ranks)
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
        """Return two codes, such as _THE_INPUT: what MPI gets as its input and its output (a broadcast has no output).

        MPICH refuses equal addresses of input and output, even of empty arrays, so no empty array is passed to MPI.

        Args:
            sends: whether the input has elements.
            receives: whether the output has elements.
        """
        operation = self.operation
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
