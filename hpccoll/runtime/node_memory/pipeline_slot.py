"""Pipeline slots: buffers in shared memory; a slot carries one segment of a collective between a node's ranks.

A slot has one buffer and one counter for every rank of the node, and one message tag. Ranks synchronise on a slot
without blocking: a rank counts its arrival, works on other slots, and tests later whether all ranks have arrived. The
ranks of a node may therefore use the slots in different orders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hpccoll.runtime.node_memory.node_barrier import bind_sweep

if TYPE_CHECKING:
    from hpccoll.runtime.node_memory.segment import Words
    from hpccoll.runtime.node_memory.symmetric import Bytes


class PipelineSlot:
    """One rank's handle of a pipeline slot (shared memory for one segment of a collective).

    Args:
        lines: the words of the node's ranks, shape (ranks, words); word 0 of a line is a counter, initially zero.
        row: the row of this rank in `lines`.
        synchronize: a function that executes a full memory barrier; None if the machine needs none.
        memory: the buffer that each rank of the node has in the slot, by rank.
    """

    __slots__ = ("_count", "_have_reached", "_own", "_synchronize", "memory")

    def __init__(
        self, lines: Words, row: int, synchronize: Callable[[], object] | None, memory: dict[int, Bytes]
    ) -> None:
        self.memory, self._count = memory, 0
        self._own, self._have_reached, self._synchronize = memoryview(lines[row]), bind_sweep(lines), synchronize

    def arrive(self) -> None:
        """Count this rank's arrival without waiting. Earlier stores are visible once `all_arrived` returns true."""
        if self._synchronize is not None:
            self._synchronize()
        self._own[0] = self._count = self._count + 1

    def all_arrived(self) -> bool:
        """Whether every rank of the node has arrived at the slot at least as often as this rank."""
        if not self._have_reached(self._count):
            return False
        if self._synchronize is not None:
            self._synchronize()
        return True
