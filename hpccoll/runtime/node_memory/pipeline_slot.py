"""Pipeline slots: buffers in shared memory; a slot carries one segment of a collective between a node's ranks.

A slot has one buffer and one counter for every rank of the node, and one message tag. Ranks synchronise on a slot
without blocking: a rank counts its arrival, works on other slots, and tests later whether all ranks have arrived. The
ranks of a node may therefore use the slots in different orders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpccoll.native import ArrivalCounter

if TYPE_CHECKING:
    from hpccoll.runtime.node_memory.segment import Words
    from hpccoll.runtime.node_memory.symmetric import Bytes


class PipelineSlot(ArrivalCounter):
    """One rank's handle of a pipeline slot (shared memory for one segment of a collective).

    Args:
        lines, row: see `ArrivalCounter`.
        memory: the buffer that each rank of the node has in the slot, by rank.
    """

    __slots__ = ("memory",)

    def __init__(self, lines: Words, row: int, memory: dict[int, Bytes]) -> None:
        super().__init__(lines, row)
        self.memory = memory
