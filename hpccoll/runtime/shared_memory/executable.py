"""A collective by loads and stores, bound to buffers: entered together, run in tiles, or in blocks through the arena.

Directly, where every rank's touched buffers are symmetric, or ordinary memory that its neighbours can read: ranks tell
each other where those are when they enter, and bind again where that has changed. Through the arena otherwise. Ranks
that come in different ways find out at the entry, and all take the arena.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from hpccoll.plan import Plan
from hpccoll.runtime.arrays import BoundCall
from hpccoll.runtime.lowering import MemoryKind
from hpccoll.runtime.messages.executable import freed
from hpccoll.runtime.shared_memory.bind import bound
from hpccoll.runtime.shared_memory.direct import Direct
from hpccoll.runtime.shared_memory.node import Node
from hpccoll.runtime.shared_memory.node_barrier import DIRECT, FINGERPRINT, DisagreementError, Gate
from hpccoll.runtime.shared_memory.staged import staged_steps
from hpccoll.runtime.shared_memory.symmetric import token
from hpccoll.runtime.shared_memory.task import Task, local

REMOTE_LEAST = 256 * 2**10  # bytes of a buffer from which system calls cost less than copies through the arena


def fingerprint(facts: Sequence[object]) -> int:
    """Return a number for the arguments of a collective that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(facts).encode(), digest_size=8).digest()) & FINGERPRINT


class _MixedError(Exception):
    """Some ranks came directly, some by way of the arena."""


def _enter_alike(gate: Gate, entry: int) -> None:
    if not gate.enter(entry):
        raise _MixedError


class NodeExecutable:
    """A collective bound to a node's shared memory: call it as often as you like.

    Args:
        node: the ranks of the node, which are all ranks.
        task: the collective.
        disagree: is called where ranks came with different arguments; raises.
    """

    __slots__ = (
        "__weakref__",
        "_disagree",
        "_entry",
        "_node",
        "_own",
        "_places",
        "_steps",
        "_task",
        "_variants",
        "direct",
        "live",
    )

    def __init__(self, node: Node, task: Task, direct: bool, disagree: Callable[[], NoReturn]) -> None:
        self._node, self._task, self._disagree = node, task, disagree
        self._entry = fingerprint(task.facts)
        self.direct, self.live = direct, True
        self._own = where(node, task)
        self._places: tuple[int, ...] | None = None
        self._steps: list[BoundCall] = []
        self._variants: dict[int, tuple[list[BoundCall], int]] = {}

    @property
    def plan(self) -> Plan:
        """The plan that is carried out."""
        return self._task.plan

    @property
    def steps(self) -> tuple[BoundCall, ...]:
        """What the latest call did, in order, to be done again step by step."""
        gate = self._node.gate
        if self.direct and self._places is not None:
            return (partial(gate.enter, self._entry | DIRECT, *self._own), *self._steps)
        return tuple(self._variants[gate.half][0] if gate.half in self._variants else ())

    def __call__(self) -> None:
        """Run once; blocks until this rank's part is done."""
        if not self.live:
            freed()
        for step in self._task.before:
            step()
        try:
            alike = self._run_direct() if self.direct else self._run_staged()
            if not alike:
                self._run_staged()
        except DisagreementError:
            self._disagree()
        for step in self._task.after:
            step()

    def free(self) -> None:
        """Let go of all memory; the executable cannot run after."""
        self.live, self._steps = False, []
        self._variants.clear()

    def _run_direct(self) -> bool:
        gate = self._node.gate
        if not gate.enter(self._entry | DIRECT, *self._own):
            return False
        places = gate.places()
        if places != self._places:
            self._bind(places)
        for step in self._steps:
            step()
        return True

    def _run_staged(self) -> bool:
        gate = self._node.gate
        half = gate.half
        if half not in self._variants:
            enter = partial(_enter_alike, gate, self._entry)
            self._variants[half] = staged_steps(self._node, self._task, half, enter)
        steps, last = self._variants[half]
        try:
            for step in steps:
                step()
        except _MixedError:
            return False
        gate.half = last
        return True

    def _bind(self, places: tuple[int, ...]) -> None:
        program = self._task.lowered(None)
        there = dict(zip(self._node.others, zip(places[::2], places[1::2], strict=True), strict=True))
        ground = Direct(self._node, self._task, program, there).ground()
        gate = self._node.gate
        # The first meeting is behind us: it told where the others' buffers are.
        steps = bound(local(program), ground, gate.fence, _nothing)
        self._steps = [step for step in steps if step is not _nothing]
        self._places = places


def _nothing() -> None:
    """Stands for the meeting that has taken place."""


def where(node: Node, task: Task) -> tuple[int, int]:
    """Return where input and output of this rank are, as others can find them: a token, an address, or 0 for none."""
    words = []
    for buffer in (task.source, task.result):
        block = node.symmetric.find(buffer.address, buffer.nbytes) if buffer else None
        words.append(0 if buffer is None else token(block, buffer.address) if block else buffer.address)
    return words[0], words[1]


def is_direct(node: Node, task: Task) -> bool:
    """Whether the others can touch what they need of this rank's buffers where it is.

    Args:
        node: the ranks of the node.
        task: the collective.
    """
    program = task.lowered(None)
    if program.uses_arena:  # what others touch of it is in no user's memory
        return False
    touched = program.accessed
    for memory, buffer in ((MemoryKind.SOURCE, task.source), (MemoryKind.RESULT, task.result)):
        if memory not in touched or buffer is None or not buffer.nbytes:
            continue
        if node.symmetric.find(buffer.address, buffer.nbytes) is None and (
            node.remote is None or buffer.nbytes < REMOTE_LEAST
        ):
            return False
    return True
