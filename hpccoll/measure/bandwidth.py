"""Algorithm and bus bandwidths as nccl-tests defines them, comparable with published numbers.

For a message of S bytes that takes t seconds, algbw = S / t and busbw = algbw * factor, both in GB/s (1e9 bytes per
second). `factor` is the multiple of S that any algorithm must move over the busiest link of a rank, so that busbw is
comparable with the hardware's bandwidth for any operation and number of ranks n.

For all_reduce, S is count * itemsize, and `factor` is 2(n-1)/n.
For reduce_scatter, all_gather, all_to_all, gather and scatter, S is count * itemsize * n, and `factor` is (n-1)/n.
For broadcast, reduce, scan, exscan and send_recv, S is count * itemsize, and `factor` is 1.
For a barrier, S and `factor` are 0.
`count` is the number of elements of a rank's vector, or of one block if the message has n blocks.
Sources: doc/PERFORMANCE.md of nccl-tests; for all_to_all, gather, scatter and send_recv, the code of nccl-tests.
nccl-tests has no scans: their factor is 1 because S bytes cross a link in a scan, as in a reduce.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from hpccoll.errors import UnknownNameError
from hpccoll.plan import Operation
from hpccoll.records import SEND_RECV
from hpccoll.units import GB

TimedOperation: TypeAlias = Operation | Literal["send_recv"]
_WHOLE = (Operation.BROADCAST, Operation.REDUCE, Operation.SCAN, Operation.EXSCAN, SEND_RECV)
_SHORTEST = 1e-9  # seconds; shorter times count as this one, to avoid a division by zero


def find_timed_operation(name: str) -> TimedOperation:
    """Return the `Operation` called `name`, or the string `send_recv` itself; UnknownNameError for other names."""
    if name == SEND_RECV:
        return SEND_RECV
    names = [operation.value for operation in Operation]
    if name not in names:
        raise UnknownNameError("operation", name, [*names, SEND_RECV])
    return Operation(name)


def get_busbw_factor(op: TimedOperation, n: int) -> float:
    """Return nccl-tests' factor busbw / algbw of operation `op` on n ranks: 2(n-1)/n for all_reduce, 0 for barriers."""
    if op is Operation.BARRIER:
        return 0.0
    if op in _WHOLE:
        return 1.0
    return (2 if op is Operation.ALL_REDUCE else 1) * (n - 1) / n


def compute_message_bytes(op: TimedOperation, count: int, itemsize: int, n: int) -> int:
    """Return nccl-tests' message size S in bytes of operation `op` on n ranks.

    `count` is the number of elements of the whole vector, or of one block in operations with a block per rank;
    `itemsize` is the size of an element in bytes.
    """
    return op.message_bytes(count, itemsize, n) if isinstance(op, Operation) else count * itemsize


def compute_count(op: TimedOperation, nbytes: int, itemsize: int, n: int) -> int:
    """Return the number of elements of a message of about `nbytes` bytes on n ranks; inverse of compute_message_bytes.

    The result counts the elements of the whole vector, or of one block in operations with a block per rank. `itemsize`
    is the size of an element in bytes.
    """
    return (op if isinstance(op, Operation) else Operation.BROADCAST).count_elements(nbytes, itemsize, n)


def compute_algbw(nbytes: int, seconds: float) -> float:
    """Return nccl-tests' algorithm bandwidth, `nbytes / seconds`, in GB/s; a time below 1 ns counts as 1 ns."""
    return nbytes / max(seconds, _SHORTEST) / GB


def compute_busbw(op: TimedOperation, nbytes: int, seconds: float, n: int) -> float:
    """Return nccl-tests' bus bandwidth in GB/s of operation `op` on n ranks, if `nbytes` bytes take `seconds`."""
    return compute_algbw(nbytes, seconds) * get_busbw_factor(op, n)
