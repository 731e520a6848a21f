"""A strand: one part of a collective on its way through a lane. It never blocks.

A strand is a program bound to memory: calls, messages to start, messages to wait for, meetings. Where it would have to
wait it says so and is asked again later; after a few calls it pauses, so that the messages of other strands get on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from mpi4py import MPI

from hpccoll.runtime.arrays import ArrayModule, BoundCall, FlatArray
from hpccoll.runtime.hierarchical.lanes import Lane
from hpccoll.runtime.lowering import Copy, NodeFence, Program, Receive, Reduce, Send, Wait
from hpccoll.runtime.shared_memory.bind import Ground, bound

CALLS = 4  # tiles between two looks at the messages under way: about as long as a message of one tile takes
_CALL, _START, _WAIT, _MEET = range(4)
Post: TypeAlias = Callable[[], MPI.Request]
Action: TypeAlias = tuple[int, Any]


def actions_of(program: Program, ground: Ground, comm: MPI.Intracomm, tag: int) -> list[Action]:
    """Return what a strand does, in order."""
    actions: list[Action] = []
    group: list[Reduce | Copy] = []
    for index, step in enumerate(program.instructions):
        if isinstance(step, Reduce | Copy):
            group.append(step)
            continue
        actions.extend(_calls(group, ground))
        group = []
        match step:
            case Receive(peer, place) | Send(peer, place):
                post = comm.Isend if isinstance(step, Send) else comm.Irecv
                message = _message(ground.module, ground.local(place))
                actions.append((_START, (index, partial(post, message, peer, tag))))
            case Wait(start):
                actions.append((_WAIT, start))
            case NodeFence():
                actions.append((_MEET, None))
    actions.extend(_calls(group, ground))
    return actions


def _calls(group: Sequence[Reduce | Copy], ground: Ground) -> Iterator[Action]:
    return ((_CALL, call) for call in bound(group, ground, _never, None))


def _never() -> None:
    """Stands for meetings, of which a group of joins and copies has none."""


def _message(module: ArrayModule, flat: FlatArray) -> Any:
    return [module.as_bytes(flat), MPI.BYTE]


class Strand:
    """A part under way.

    Args:
        actions: what it does.
        lane: where; it begins when all ranks have left what went through the lane before.
    """

    __slots__ = ("_actions", "_at", "_begun", "_flying", "_lane", "_met", "done")

    def __init__(self, actions: Sequence[Action], lane: Lane) -> None:
        self._actions, self._lane = actions, lane
        self._at, self._begun, self._met, self.done = 0, False, False, False
        self._flying: dict[int, MPI.Request] = {}

    def advance(self) -> bool:
        """Go as far as it can, but for CALLS calls at most; return whether anything was done."""
        if not self._begun:
            if not self._lane.passed():
                return False
            self._begun = True
        begin, calls, actions = self._at, CALLS, self._actions
        while calls and self._at < len(actions):
            kind, what = actions[self._at]
            if kind == _CALL:
                what()
                calls -= 1
            elif kind == _START:
                self._flying[what[0]] = what[1]()
            elif kind == _WAIT:
                if not self._flying[what].Test():
                    break
                del self._flying[what]
            elif not self._meets():
                break
            self._at += 1
        if self._at == len(actions):
            self._lane.arrive()  # the lane is free for the next part once all say so
            self.done = True
        return self.done or self._at > begin

    def _meets(self) -> bool:
        if not self._met:
            self._lane.arrive()
            self._met = True
        if not self._lane.passed():
            return False
        self._met = False
        return True


def calls_of(actions: Sequence[Action]) -> tuple[BoundCall, ...]:
    """Return the calls among actions, for tests and pictures."""
    return tuple(what for kind, what in actions if kind == _CALL)
