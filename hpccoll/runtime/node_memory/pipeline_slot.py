"""Pipeline slots: buffers in shared memory; a slot carries one segment of a collective between a node's ranks.

A slot has one buffer and one counter for every rank of the node, and one message tag. Ranks synchronise on a slot
without blocking: a rank counts its arrival, works on other slots, and tests later whether all ranks have arrived. The
ranks of a node may therefore use the slots in different orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpccoll.runtime.node_memory.symmetric import Bytes


class PipelineSlot:
    """One rank's handle of a pipeline slot (shared memory for one segment of a collective).

    Args:
        number: the index of the slot, the same on all ranks.
        own: this rank's counter of 64 bits, initially zero.
        others: the counters of the other ranks of the node.
        synchronize: a function that executes a full memory barrier; None if the machine needs none.
        memory: the buffer that each rank of the node has in the slot, by rank.
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
        """Count this rank's arrival without waiting. Earlier stores are visible once `all_arrived` returns true."""
        if self._synchronize is not None:
            self._synchronize()
        self._own[0] = self._count = self._count + 1

    def all_arrived(self) -> bool:
        """Whether every rank of the node has arrived at the slot at least as often as this rank."""
        count = self._count
        for other in self._others:
            if other[0] < count:
                return False
        if self._synchronize is not None:
            self._synchronize()
        return True
