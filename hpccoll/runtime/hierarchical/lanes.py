"""Lanes: what lets a node carry several parts of a message through its shared memory at once.

Each lane has a piece of memory of every rank, a word of each to meet by, and a tag of its own for messages. Ranks meet
in a lane without standing still: a rank says that it has come, goes on with other lanes, and asks later whether all
have. So the ranks of a node need not take turns among lanes in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hpccoll.runtime.shared_memory.symmetric import Bytes

LANES: Final = 6  # parts under way at once: enough to keep a link busy while some meet, reduce and store
LANE_BYTES: Final = 2 * 2**20 + 64 * 2**10  # of each rank; parts of a chunk differ by an element


class Lane:
    """One lane, as a rank sees it.

    Args:
        number: which; all ranks number alike.
        own: this rank's word of 64 bits, zero at first.
        others: the words of the other ranks of the node.
        sync: orders memory where the machine does not; see gate.py.
        memory: the lane's piece of memory of a rank.
    """

    __slots__ = ("_count", "_others", "_own", "_sync", "memory", "number")

    def __init__(
        self,
        number: int,
        own: memoryview,
        others: Sequence[memoryview],
        sync: Callable[[], object] | None,
        memory: Callable[[int], Bytes],
    ) -> None:
        self.number, self.memory = number, memory
        self._own, self._others, self._sync = own, tuple(others), sync
        self._count = 0

    def arrive(self) -> None:
        """Say that this rank has come; what it stored before is there for who finds that all have."""
        if self._sync is not None:
            self._sync()
        self._own[0] = self._count = self._count + 1

    def passed(self) -> bool:
        """Whether all ranks have come as often as this one."""
        count = self._count
        for other in self._others:
            if other[0] < count:
                return False
        if self._sync is not None:
            self._sync()
        return True
