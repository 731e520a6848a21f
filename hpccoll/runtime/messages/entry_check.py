"""Compares the calls of a node's ranks before the MPI library carries them out.

The MPI library itself does not notice that ranks pass different counts or roots: it ends the process, returns wrong
data, or waits forever. Cost: one fence of the node's ranks, 0.5 us with a core for each rank.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from hpccoll.native import NodeBarrier
from hpccoll.plan import Count, Operation
from hpccoll.runtime.arrays import BoundCall
from hpccoll.runtime.node_memory.node import NodeMemory, compute_fingerprint
from hpccoll.selection import MPI_LIBRARY

# Operations whose ranks wait for each other in any case, or for the root. A sender of a gather does not wait, nor does
# the first rank of a scan.
CHECKED: Final = {Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.BROADCAST, Operation.SCATTER}
# Ranks that share cores take turns at each fence, which costs more than a short message.
LEAST_BYTES_ON_SHARED_CORES: Final = 64 * 2**10


class EntryCheck:
    """Makes the checks of one communicator; without a node, or with several nodes, there are none."""

    def __init__(self, node: NodeMemory | None, ranks: int) -> None:
        is_possible = node is not None and not node.problem and len(node.ranks) == ranks > 1
        self._node = node if is_possible else None

    def bind(
        self, operation: Operation, root: int, count: Count, dtype: str, itemsize: int, reduction: str
    ) -> tuple[BoundCall, ...]:
        """Return the calls to make before the MPI library's blocking function: one that compares the ranks' calls.

        Args:
            count: elements of a block, or of the vector; a tuple for blocks of different sizes.
            reduction: name of the reduction.

        Returns:
            An empty tuple if calls like this one are not compared.
        """
        native = self.make_check(operation, root, count, dtype, itemsize, reduction)
        return (partial(_enter, *native),) if native else ()

    def make_check(
        self, operation: Operation, root: int, count: Count, dtype: str, itemsize: int, reduction: str
    ) -> tuple[NodeBarrier, int, BoundCall] | None:
        """Return the node's barrier, the fingerprint of the call, and the function that raises MismatchError.

        The arguments are those of `bind`. Return None if calls like this one are not compared.
        """
        node = self._node
        if node is None or operation not in CHECKED:
            return None
        nbytes = itemsize * (sum(count) if isinstance(count, tuple) else count)
        if node.oversubscribed and nbytes < LEAST_BYTES_ON_SHARED_CORES:
            return None
        arguments = operation.value, MPI_LIBRARY, 1, root, count, dtype, reduction, "host"
        return node.barrier, compute_fingerprint(arguments), partial(node.raise_mismatch, arguments)


def _enter(barrier: NodeBarrier, fingerprint: int, raise_mismatch: BoundCall) -> None:
    """Wait until all ranks of the node have entered a collective; raise MismatchError if it is not the same one."""
    if barrier.enter(fingerprint) is None:
        raise_mismatch()
