"""Compares the calls of a node's ranks before the MPI library carries them out.

The MPI library itself does not notice that ranks pass different counts or roots: it ends the process, returns wrong
data, or waits forever. Cost: one fence of the node's ranks, 0.5 us with a core for each rank.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from hpccoll.native import NodeBarrier
from hpccoll.plan import Count, Operation
from hpccoll.runtime.arrays import BoundCall, DType
from hpccoll.runtime.node_memory.node import NodeMemory, compute_fingerprint
from hpccoll.selection import MPI_LIBRARY

# Operations in which all ranks wait for each other or for the root, unlike a sender of a gather or rank 0 of a scan.
CHECKED: Final = {Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.BROADCAST, Operation.SCATTER}
# Ranks that share cores take turns at each fence, which costs more than a short message.
LEAST_BYTES_ON_SHARED_CORES: Final = 64 * 2**10


def make_entry_check(
    node: NodeMemory | None, ranks: int, operation: Operation, root: int, count: Count, dtype: DType, reduction: str
) -> tuple[NodeBarrier, int, BoundCall] | None:
    """Return the node's barrier, the fingerprint of a call, and the function that raises MismatchError.

    Args:
        node: the memory that the ranks of the node share; None if there is none.
        ranks: the number of ranks of the communicator.
        count: elements of a block, or of the vector; a tuple for blocks of different sizes.
        reduction: name of the reduction.

    Returns:
        The three objects; None if calls of this kind are not compared, as on several nodes.
    """
    if node is None or node.problem or not len(node.ranks) == ranks > 1 or operation not in CHECKED:
        return None
    nbytes = dtype.itemsize * (sum(count) if isinstance(count, tuple) else count)
    if node.oversubscribed and nbytes < LEAST_BYTES_ON_SHARED_CORES:
        return None
    arguments = operation.value, MPI_LIBRARY, 1, root, count, dtype.name, reduction, "host"
    return node.barrier, compute_fingerprint(arguments), partial(node.raise_mismatch, arguments)
