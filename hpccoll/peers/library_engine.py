"""The interface of engines (collectives of other libraries), and the checks of the buffers that are passed to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from hpccoll.arrays import (
    ArrayModule,
    BoundCall,
    Buffer,
    DType,
    FlatArray,
    as_buffer,
    is_torch_tensor,
    require_contiguous,
)
from hpccoll.errors import BufferError, UsageError
from hpccoll.plan import Operation

_ROOT_HAS_RESULT = (Operation.REDUCE, Operation.GATHER)
_ROOT_HAS_SOURCE = (Operation.BROADCAST, Operation.SCATTER)
_WHOLE_IS_SOURCE = (Operation.REDUCE_SCATTER, Operation.SCATTER)


class LibraryEngine(Protocol):
    """Interface of engines: collectives of another library, each prepared once for given buffers and called often."""

    name: str
    works_in_threads: bool  # whether the library sends and receives in threads of its own, which need cores

    def prepare(self, operation: Operation, source: Any, result: Any, redop: str, root: int) -> BoundCall:
        """Return a function without arguments that runs `operation` on the given buffers and waits for the result.

        Every call of the returned function is collective over the engine's ranks.

        Args:
            source: 1-D contiguous input of this rank, or None.
            result: 1-D contiguous output of this rank, or None. The operation is in place if
                `source is result`, or, for operations with blocks, if one is the rank's own block of the other.
            redop: name of the reduction; ignored unless the operation reduces.
            root: the root rank; ignored unless the operation has a root.

        Raises:
            UsageError: the library does not offer this operation, dtype, reduction or in-place form.
            BufferError: a buffer is missing, or source and result do not fit each other.
        """

    def close(self) -> None:
        """Free the engine's resources. Collective."""


@dataclass(frozen=True, slots=True)
class CheckedBuffers:
    """The input (`source`) and output (`result`) of one rank for a collective, checked and flat (1-D).

    A buffer is None if the operation does not use it on this rank. `module` is the array module (NumPy, CuPy, torch) of
    both buffers.
    """

    source: FlatArray | None
    result: FlatArray | None
    dtype: DType
    module: ArrayModule
    in_place: bool


def check_buffers(operation: Operation, source: Any, result: Any, root: int, rank: int, n: int) -> CheckedBuffers:
    """Check the input and output of a collective on rank `rank` of `n`, and return them as `CheckedBuffers`.

    `root` is the root rank; operations without a root ignore it.
    In an operation with blocks, such as all_gather, `source` and `result` may be the same array of n blocks; the buffer
    of a single block is then the rank's own block of this array.

    Raises:
        BufferError: a buffer is missing or not contiguous, or source and result differ in dtype or array module, or
            their numbers of elements do not fit each other.
    """
    sent = _check_buffer(operation, source, "source", rank == root or operation not in _ROOT_HAS_SOURCE)
    has_result = rank > 0 if operation is Operation.EXSCAN else rank == root or operation not in _ROOT_HAS_RESULT
    received = _check_buffer(operation, result, "result", has_result)
    if sent is None or received is None:
        only = sent or received
        if only is None:
            raise BufferError(f"{operation.value}: rank {rank} has no buffer that it uses; pass source or result")
        return CheckedBuffers(sent and sent.flat, received and received.flat, only.dtype, only.module, False)
    kinds = [(buffer.module.name, buffer.module.device, buffer.dtype.name) for buffer in (sent, received)]
    if kinds[0] != kinds[1]:
        pair = "source is {0} {2}, result {3} {5} (devices {1} and {4})".format(*kinds[0], *kinds[1])
        raise BufferError(f"{operation.value}: {pair}; pass buffers of one dtype, one array module and one device")
    return _match_buffers(operation, sent, received, rank, n)


def _check_buffer(operation: Operation, array: Any, role: str, used: bool) -> Buffer | None:
    """Return a checked array as a buffer, or None if the operation does not use the array on this rank (not `used`).

    `role` is `source` or `result`. Raises BufferError if the array is missing or not contiguous.
    """
    if not used:
        return None
    if array is None:
        raise BufferError(f"{operation.value}: this rank needs a {role} buffer; pass a 1-D contiguous array, not None")
    # `as_buffer` would copy a strided input, but a prepared call must read the caller's memory in every call.
    dense = array.is_contiguous() if is_torch_tensor(array) else array.flags.c_contiguous
    require_contiguous(dense, role, tuple(array.shape), "a contiguous array")
    return as_buffer(array, role, writable=role == "result")


def _match_buffers(operation: Operation, sent: Buffer, received: Buffer, rank: int, n: int) -> CheckedBuffers:
    """Return input and output of rank `rank` of `n` after a check that their sizes and overlap suit `operation`.

    Raises BufferError if sizes or overlap do not suit the operation.
    """
    whole, block = (sent, received) if operation in _WHOLE_IS_SOURCE else (received, sent)
    source, result = sent.flat, received.flat
    shared = sent.count > 0 and sent.overlaps(received)
    if operation is Operation.ALL_TO_ALL:
        fits = sent.count == received.count and received.count % n == 0
        wanted = f"as many elements in both, a multiple of {n}"
    elif not operation.has_blocks:
        fits, wanted = sent.count == received.count, "as many elements in both"
    else:
        own = whole.count // n
        if shared and whole.address == block.address and whole.count == block.count and whole.count % n == 0:
            mine = whole.flat[rank * own : (rank + 1) * own]
            source, result = (source, mine) if whole is sent else (mine, result)
            return CheckedBuffers(source, result, sent.dtype, sent.module, True)
        fits, wanted = whole.count == n * block.count, f"{n} times as many elements in one as in the other"
    name = operation.value
    if not fits:
        raise BufferError(f"{name}: source has {sent.count} elements, result {received.count}; need {wanted}")
    if shared and block.address != whole.address + (rank * block.nbytes if whole.count != block.count else 0):
        raise BufferError(f"{name}: source and result overlap but are not in place; pass separate buffers")
    return CheckedBuffers(source, result, sent.dtype, sent.module, shared)


def unsupported_error(peer: str, what: str, instead: str) -> UsageError:
    """Return a UsageError, which says that the engine `peer` does not offer `what`, and names the remedy `instead`."""
    return UsageError(f"engine {peer} does not offer {what}; {instead}")
