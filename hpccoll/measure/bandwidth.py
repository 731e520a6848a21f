"""Bandwidths as nccl-tests defines them, comparable with published numbers.

For a message of S bytes that takes t seconds, algbw = S / t and busbw = algbw * factor, both in GB/s (1e9 bytes per
second). The factor is the multiple of S that any algorithm must move over the busiest link of a rank, so that busbw is
comparable with the hardware's bandwidth for any operation and number of ranks n.

| operation                            | S                      | factor   |
|--------------------------------------|------------------------|----------|
| all_reduce                           | count x itemsize       | 2(n-1)/n |
| reduce_scatter, all_gather           | count x itemsize x n   | (n-1)/n  |
| all_to_all, gather, scatter          | count x itemsize x n   | (n-1)/n  |
| broadcast, reduce, send_recv         | count x itemsize       | 1        |
| barrier                              | 0                      | 0        |

`count` is the number of elements of a rank's vector, or of one block if the message has n blocks.
Sources: doc/PERFORMANCE.md of nccl-tests; for all_to_all, gather, scatter and send_recv, the code of nccl-tests.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from hpccoll.errors import UnknownNameError
from hpccoll.plan import Operation
from hpccoll.units import GB

SEND_RECV: Final = "send_recv"
TimedOperation: TypeAlias = Operation | Literal["send_recv"]
_WHOLE = (Operation.BROADCAST, Operation.REDUCE, SEND_RECV)
_SHORTEST = 1e-9  # seconds; shorter times count as this one, to avoid a division by zero


def find_timed_operation(name: str) -> TimedOperation:
    """Return the operation with this name, or SEND_RECV for `send_recv`; raise UnknownNameError if none has it."""
    if name == SEND_RECV:
        return SEND_RECV
    names = [operation.value for operation in Operation]
    if name not in names:
        raise UnknownNameError("operation", name, [*names, SEND_RECV])
    return Operation(name)


def get_busbw_factor(op: TimedOperation, n: int) -> float:
    """Return busbw / algbw of `op` on n ranks; 0 if no data moves (one rank, barrier)."""
    if op is Operation.BARRIER:
        return 0.0
    if op in _WHOLE:
        return 1.0
    return (2 if op is Operation.ALL_REDUCE else 1) * (n - 1) / n


def compute_message_bytes(op: TimedOperation, count: int, itemsize: int, n: int) -> int:
    """Return the message size S in bytes, for vectors or blocks of `count` elements of `itemsize` bytes on n ranks."""
    return op.message_bytes(count, itemsize, n) if isinstance(op, Operation) else count * itemsize


def compute_count(op: TimedOperation, nbytes: int, itemsize: int, n: int) -> int:
    """Return the number of elements per vector or block for a message of about `nbytes` bytes on n ranks."""
    return (op if isinstance(op, Operation) else Operation.BROADCAST).count_elements(nbytes, itemsize, n)


def compute_algbw(nbytes: int, seconds: float) -> float:
    """Return `nbytes / seconds` in GB/s; `seconds` may be 0."""
    return nbytes / max(seconds, _SHORTEST) / GB


def compute_busbw(op: TimedOperation, nbytes: int, seconds: float, n: int) -> float:
    """Return the bus bandwidth in GB/s of a message of S = `nbytes` on n ranks."""
    return compute_algbw(nbytes, seconds) * get_busbw_factor(op, n)
