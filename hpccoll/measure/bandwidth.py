"""Bandwidths as nccl-tests defines them, comparable with published numbers.

S is the message of an operation in bytes, t its time: algbw = S / t. busbw = algbw * factor, where the factor is the
share of S that any algorithm must move over the busiest link of a rank, so that busbw is comparable with the
hardware's bandwidth for any operation and number of ranks n. Both in GB/s, GB = 1e9 bytes.

| operation                            | S                      | factor   |
|--------------------------------------|------------------------|----------|
| all_reduce                           | count x itemsize       | 2(n-1)/n |
| reduce_scatter, all_gather           | count x itemsize x n   | (n-1)/n  |
| all_to_all, gather, scatter          | count x itemsize x n   | (n-1)/n  |
| broadcast, reduce, send_recv         | count x itemsize       | 1        |
| barrier                              | 0                      | 0        |

`count` is the elements per rank: of its vector, or of one block if the message is n blocks.
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
_SHORTEST = 1e-9  # seconds, below any clock's resolution: avoids a division by zero


def find_timed_operation(name: str) -> TimedOperation:
    """Return the operation of that name, or SEND_RECV; raise UnknownNameError, which lists the valid names."""
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
    """Return the message size S in bytes for `count` elements of `itemsize` bytes per rank, on n ranks."""
    return op.message_bytes(count, itemsize, n) if isinstance(op, Operation) else count * itemsize


def compute_count(op: TimedOperation, nbytes: int, itemsize: int, n: int) -> int:
    """Return the most elements per rank whose message size S is at most `nbytes`.

    A size above zero gives at least one element, so S may exceed `nbytes` for operations on blocks: report
    `compute_message_bytes` of the count.
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
