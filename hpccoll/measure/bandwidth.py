"""Bandwidths as nccl-tests reports them, so that numbers can be held against published ones.

S is the message of an operation in bytes, t its time: algbw = S / t. busbw = algbw * factor, where the factor is the
share of S that any algorithm must move over the busiest link of a rank, so that busbw can be compared with the
hardware's whatever the operation and the number of ranks n. Both in GB/s, GB = 1e9 bytes.

| operation                            | S                      | factor   |
|--------------------------------------|------------------------|----------|
| all_reduce                           | count x itemsize       | 2(n-1)/n |
| reduce_scatter, all_gather           | count x itemsize x n   | (n-1)/n  |
| all_to_all, gather, scatter          | count x itemsize x n   | (n-1)/n  |
| broadcast, reduce, send_recv         | count x itemsize       | 1        |
| barrier                              | 0                      | 0        |

`count` is elements a rank: of its vector, or of one block where the message is n blocks.
Source: nccl-tests, doc/PERFORMANCE.md; all_to_all, gather, scatter and send_recv from its source.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from hpccoll.errors import UnknownNameError
from hpccoll.plan import Operation
from hpccoll.units import GB

SEND_RECV: Final = "send_recv"
TimedOperation: TypeAlias = Operation | Literal["send_recv"]
_WHOLE = (Operation.BROADCAST, Operation.REDUCE, SEND_RECV)
_SHORTEST = 1e-9  # seconds; no clock here resolves less, and a quotient by zero is no bandwidth


def find_timed_operation(name: str) -> TimedOperation:
    """Return what can be timed under that name, or raise UnknownNameError with the valid ones."""
    if name == SEND_RECV:
        return SEND_RECV
    names = [operation.value for operation in Operation]
    if name not in names:
        raise UnknownNameError("operation", name, [*names, SEND_RECV])
    return Operation(name)


def get_busbw_factor(op: TimedOperation, n: int) -> float:
    """Return busbw / algbw of `op` over n ranks; 0 where nothing has to move (one rank, barrier)."""
    if op is Operation.BARRIER:
        return 0.0
    if op in _WHOLE:
        return 1.0
    return (2 if op is Operation.ALL_REDUCE else 1) * (n - 1) / n


def compute_message_bytes(op: TimedOperation, count: int, itemsize: int, n: int) -> int:
    """Return S in bytes for `count` elements a rank of `itemsize` bytes, over n ranks."""
    return op.message_bytes(count, itemsize, n) if isinstance(op, Operation) else count * itemsize


def compute_count(op: TimedOperation, nbytes: int, itemsize: int, n: int) -> int:
    """Return the elements a rank whose S is `nbytes` or, where that is not divisible, the next smaller S there is.

    A size above zero always gives at least one element, so small sizes of operations on blocks come out larger than
    asked; `message_bytes` of the count is the size to report.
    """
    if op is Operation.BARRIER:
        return 0
    return max(nbytes // (itemsize * _blocks(op, n)), min(nbytes, 1))


def compute_algbw(nbytes: int, seconds: float) -> float:
    """Return S / t in GB/s."""
    return nbytes / max(seconds, _SHORTEST) / GB


def compute_busbw(op: TimedOperation, nbytes: int, seconds: float, n: int) -> float:
    """Return S / t * factor in GB/s."""
    return compute_algbw(nbytes, seconds) * get_busbw_factor(op, n)


def _blocks(op: TimedOperation, n: int) -> int:
    return n if isinstance(op, Operation) and op.has_blocks else 1
