"""A slot is shared memory through which a node's ranks pass one segment of a collective; several slots work at once.

A slot has a buffer of every rank, a counter of every rank, and a tag for messages. Ranks synchronise on a slot without
blocking: a rank arrives, works on other slots, and tests later whether all ranks have arrived. So the ranks of a node
may use the slots in different orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpccoll.runtime.node_memory.symmetric import Bytes


class PipelineSlot:
    """A pipeline slot as one rank of the node uses it.

    Args:
        number: the index of the slot, the same on all ranks.
        own: this rank's counter of 64 bits, zero at first.
        others: the counters of the other ranks of the node.
        synchronize: a full memory barrier where the machine needs one, else None.
        memory: the slot's buffer of each rank of the node, by rank.
    """

    __slots__ = ("_count", "_others", "_own", "_synchronize", "memory", "number")

    def __init__(
        self,
        number: int,
        own: memoryview,
        others: Sequence[memoryview],
        synchronize: Callable[[], object] | None,
        memory: dict[int, Bytes],
    ) -> None:
        self.number, self.memory = number, memory
        self._own, self._others, self._synchronize = own, tuple(others), synchronize
        self._count = 0

    def arrive(self) -> None:
        """Count this rank's arrival and return; its stores are visible to ranks that then see `all_arrived` true."""
        if self._synchronize is not None:
            self._synchronize()
        self._own[0] = self._count = self._count + 1

    def all_arrived(self) -> bool:
        """Whether every rank has arrived as often as this one."""
        count = self._count
        for other in self._others:
            if other[0] < count:
                return False
        if self._synchronize is not None:
            self._synchronize()
        return True
