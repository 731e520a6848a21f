"""The memories of a program that touches buffers where they are: this rank's own, windows, other processes' memory."""

from __future__ import annotations

from hpccoll.runtime.arrays import FlatArray
from hpccoll.runtime.lowering import OWN, MemoryKind, MemoryRange, Program
from hpccoll.runtime.shared_memory.bind import REMOTE_TILE, Ground
from hpccoll.runtime.shared_memory.node import Node
from hpccoll.runtime.shared_memory.symmetric import is_token, parsed
from hpccoll.runtime.shared_memory.task import Task


class Direct:
    """Finds the elements of places.

    Args:
        node: the ranks of the node.
        task: the collective.
        program: what is run.
        there: where the inputs and outputs of the other ranks are: a token, an address, or 0 for none.
    """

    def __init__(self, node: Node, task: Task, program: Program, there: dict[int, tuple[int, int]]) -> None:
        self._node, self._task, self._there = node, task, there
        landing, bounce = program.work + program.landing, 2 * (REMOTE_TILE // task.dtype.itemsize)
        spare = task.scratch(landing + bounce)
        self._own = {
            MemoryKind.SOURCE: task.source.flat if task.source else spare[:0],
            MemoryKind.RESULT: task.result.flat if task.result else spare[:0],
            MemoryKind.WORK: spare[: program.work],
            MemoryKind.LANDING: spare[program.work : landing],
        }
        self._bounce = spare[landing:]
        self._windows = {
            (memory, owner): self._window(owner, words[memory])
            for owner, words in there.items()
            for memory in (MemoryKind.SOURCE, MemoryKind.RESULT)
        }

    def ground(self) -> Ground:
        """Return them for binding."""
        task = self._task
        return Ground(
            self._view, self._address, task.module, task.function, task.dtype.itemsize, self._node.remote, self._bounce
        )

    def _window(self, owner: int, word: int) -> FlatArray | None:
        if not is_token(word):
            return None
        number, offset = parsed(word)
        piece = self._node.symmetric.numbered(number).pieces[owner][offset:]
        itemsize = self._task.dtype.itemsize
        return piece[: len(piece) // itemsize * itemsize].view(self._task.dtype.numpy)

    def _view(self, place: MemoryRange) -> FlatArray | None:
        flat = self._own[place.memory] if place.owner == OWN else self._windows[place.memory, place.owner]
        return None if flat is None else flat[place.start : place.stop]

    def _address(self, place: MemoryRange) -> int:
        if place.owner == OWN:
            begin = self._task.module.get_address(self._own[place.memory])
        else:
            begin = self._there[place.owner][place.memory]
        return begin + place.start * self._task.dtype.itemsize
