"""A pipeline task runs one segment of a two-level collective in a slot (shared memory of a node), and never blocks.

`PipelineTask.advance` returns instead of waiting, and is called again later. `PipelineTask.advance` also returns after
CALLS_PER_POLL local calls, so that the messages of other tasks make progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from mpi4py import MPI

from hpccoll.runtime.address_space import AddressSpace
from hpccoll.runtime.hierarchical.local_steps import LocalSteps
from hpccoll.runtime.instructions import split_groups
from hpccoll.runtime.lowering import Copy, NodeFence, Program, Receive, Reduce, Send, Wait
from hpccoll.runtime.node_memory.pipeline_slot import PipelineSlot

CALLS_PER_POLL = 4  # so many calls take about as long as one tile's message
_CALL, _POST, _WAIT, _FENCE = range(4)
Action: TypeAlias = tuple[int, Any]


def bind_actions(
    program: Program, space: AddressSpace, local: LocalSteps, comm: MPI.Intracomm, tag: int
) -> list[Action]:
    """Return the actions of a task, in order: calls, messages to post, messages to wait for, fences."""
    actions: list[Action] = []
    group: list[Reduce | Copy] = []

    def add_group() -> None:
        """Append the steps of the pending reduces and copies to `actions`."""
        actions.extend((_CALL, number) for each in split_groups(group) for number in local.add(each))
        group.clear()

    for index, step in enumerate(program.instructions):
        if isinstance(step, Reduce | Copy):
            group.append(step)
            continue
        add_group()
        match step:
            case Receive(peer, place) | Send(peer, place):
                post = comm.Isend if isinstance(step, Send) else comm.Irecv
                message = [space.module.as_bytes(space.own_view(place)), MPI.BYTE]
                actions.append((_POST, (index, partial(post, message, peer, tag))))
            case Wait(start):
                actions.append((_WAIT, start))
            case NodeFence():
                actions.append((_FENCE, None))
    add_group()
    calls = local.bind()
    return [(kind, calls[argument] if kind == _CALL else argument) for kind, argument in actions]


class PipelineTask:
    """A segment in flight; it begins when the node's ranks have finished the previous segment in the same slot."""

    __slots__ = ("_actions", "_arrived", "_begun", "_next", "_requests", "_slot", "done")

    def __init__(self, actions: Sequence[Action], slot: PipelineSlot) -> None:
        self._actions, self._slot = actions, slot
        self._next, self._begun, self._arrived, self.done = 0, False, False, False
        self._requests: dict[int, MPI.Request] = {}

    def advance(self) -> bool:
        """Carry out actions without blocking, at most CALLS_PER_POLL calls; return whether anything was done."""
        if not self._begun:
            if not self._slot.all_arrived():
                return False
            self._begun = True
        first, calls, actions = self._next, CALLS_PER_POLL, self._actions
        while calls and self._next < len(actions):
            kind, argument = actions[self._next]
            if kind == _CALL:
                argument()
                calls -= 1
            elif kind == _POST:
                self._requests[argument[0]] = argument[1]()
            elif kind == _WAIT:
                if not self._requests[argument].Test():
                    break
                del self._requests[argument]
            elif not self._pass_fence():
                break
            self._next += 1
        if self._next == len(actions):
            self._slot.arrive()  # the slot is free for the next segment once all ranks have arrived
            self.done = True
        return self.done or self._next > first

    def is_settled(self) -> bool:
        """Whether the messages are complete, and the node's ranks have arrived where this rank has."""
        return MPI.Request.Testall(list(self._requests.values())) and self._slot.all_arrived()

    def _pass_fence(self) -> bool:
        """Count this rank's arrival at the fence once; return whether all ranks have arrived. Never blocks."""
        if not self._arrived:
            self._slot.arrive()
            self._arrived = True
        if not self._slot.all_arrived():
            return False
        self._arrived = False
        return True
