"""What a peer is: an engine whose collectives are no plans, made ready once and called many times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from hpccoll.errors import BufferError, UsageError
from hpccoll.plan import Operation
from hpccoll.runtime.arrays import (
    ArrayModule,
    Buffer,
    DType,
    FlatArray,
    as_buffer,
    is_torch_tensor,
    require_contiguous,
)

Call = Callable[[], None]
_ROOT_HAS_RESULT = (Operation.REDUCE, Operation.GATHER)
_ROOT_HAS_SOURCE = (Operation.BROADCAST, Operation.SCATTER)
_WHOLE_IS_SOURCE = (Operation.REDUCE_SCATTER, Operation.SCATTER)


class LibraryEngine(Protocol):
    """Someone else's collectives behind one face."""

    name: str

    def prepare(self, operation: Operation, source: Any, result: Any, redop: str, root: int) -> Call:
        """Return what runs `operation` once on these buffers. Every rank prepares, then every rank calls.

        Args:
            operation: which collective.
            source: 1-D contiguous array that this rank brings; None where it brings nothing.
            result: 1-D contiguous array that this rank gets; None where it gets nothing. In place is what shares
                memory: `source is result`, or, for operations on blocks, the block being the rank's own of the whole.
            redop: reduction by name; read only where the operation reduces.
            root: rank of the root; read only where the operation has one.

        Raises:
            UsageError: the peer does not offer this operation, dtype, reduction or aliasing; says which.
            BufferError: a buffer is missing, or the two do not fit.
        """

    def close(self) -> None:
        """Give back what the peer holds. Every rank calls it."""


@dataclass(frozen=True, slots=True)
class CheckedBuffers:
    """The buffers of one rank, checked: None where the operation gives the rank none."""

    source: FlatArray | None
    result: FlatArray | None
    dtype: DType
    module: ArrayModule
    in_place: bool


def check_buffers(operation: Operation, source: Any, result: Any, root: int, rank: int, n: int) -> CheckedBuffers:
    """Check and flatten what this rank brings and gets; in place, cut the rank's own block out of the whole.

    Raises:
        BufferError: a buffer is missing, is not contiguous, or the two differ in dtype, module or elements.
    """
    brings = _adopted(operation, source, "source", rank == root or operation not in _ROOT_HAS_SOURCE)
    gets = _adopted(operation, result, "result", rank == root or operation not in _ROOT_HAS_RESULT)
    if brings is None or gets is None:
        only = brings or gets
        if only is None:
            raise BufferError(f"{operation.value}: rank {rank} was given no buffer that the operation uses")
        return CheckedBuffers(brings and brings.flat, gets and gets.flat, only.dtype, only.module, False)
    if (brings.dtype, brings.module.name) != (gets.dtype, gets.module.name):
        pair = f"source is {brings.module.name} {brings.dtype.name}, result {gets.module.name} {gets.dtype.name}"
        raise BufferError(f"{operation.value}: {pair}; pass buffers of one dtype and one array module")
    return _fitted(operation, brings, gets, rank, n)


def _adopted(operation: Operation, array: Any, role: str, used: bool) -> Buffer | None:
    if not used:
        return None
    if array is None:
        raise BufferError(f"{operation.value}: this rank needs a {role} buffer; pass a 1-D contiguous array, not None")
    # `as_buffer` copies a strided input; what is prepared once and called often must see the caller's own memory.
    dense = array.is_contiguous() if is_torch_tensor(array) else array.flags.c_contiguous
    require_contiguous(dense, role, tuple(array.shape), "a contiguous array")
    return as_buffer(array, role, writable=role == "result")


def _fitted(operation: Operation, brings: Buffer, gets: Buffer, rank: int, n: int) -> CheckedBuffers:
    whole, block = (brings, gets) if operation in _WHOLE_IS_SOURCE else (gets, brings)
    source, result = brings.flat, gets.flat
    shared = brings.count > 0 and brings.overlaps(gets)
    if operation is Operation.ALL_TO_ALL:
        fits, wanted = brings.count == gets.count and gets.count % n == 0, f"equally many, a multiple of {n}"
    elif not operation.has_blocks:
        fits, wanted = brings.count == gets.count, "equally many"
    else:
        own = whole.count // n
        if shared and whole.address == block.address and whole.count == block.count and whole.count % n == 0:
            mine = whole.flat[rank * own : (rank + 1) * own]
            source, result = (source, mine) if whole is brings else (mine, result)
            return CheckedBuffers(source, result, brings.dtype, brings.module, True)
        fits, wanted = whole.count == n * block.count, f"{n} times as many in the one as in the other"
    if not fits:
        raise BufferError(f"{operation.value}: source has {brings.count} elements, result {gets.count}; need {wanted}")
    if shared:
        home = whole.address + (rank * block.nbytes if whole.count != block.count else 0)
        if block.address != home:
            raise BufferError(f"{operation.value}: source and result overlap, but not as in place; pass buffers apart")
    return CheckedBuffers(source, result, brings.dtype, brings.module, shared)


def unsupported_error(peer: str, what: str, instead: str) -> UsageError:
    """Return the error for something that a peer does not offer."""
    return UsageError(f"engine {peer} does not offer {what}; {instead}")
