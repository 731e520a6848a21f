"""A collective of two levels, bound: part after part through the lanes, messages of one beside the work on others.

While the messages of some parts cross between nodes, this rank reduces the next part and stores the one before: the
network is never without a message as long as there are parts left. The ranks of a node enter together, as in
executable.py, and agree whether they touch each other's buffers where those are or go through the lanes' memory. What
crosses between nodes is the same either way, so nodes may differ in that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sized
from typing import NoReturn, Protocol

from mpi4py import MPI

from hpccoll.plan import Plan
from hpccoll.runtime.arrays import BoundCall
from hpccoll.runtime.hierarchical.lanes import Lane
from hpccoll.runtime.hierarchical.parts import PartGround, bounce_count, parts_of
from hpccoll.runtime.hierarchical.strands import Action, Strand, actions_of
from hpccoll.runtime.lowering import Program
from hpccoll.runtime.messages.executable import freed
from hpccoll.runtime.shared_memory.executable import fingerprint, is_direct, where
from hpccoll.runtime.shared_memory.node import Node
from hpccoll.runtime.shared_memory.node_barrier import DIRECT, DisagreementError
from hpccoll.runtime.shared_memory.task import Task

FIRST_TAG = 8192  # above the lanes of asynchronous calls; a tag for each lane of the node
_SPIN_S, _YIELD_S = 50e-6, 100e-6
_FIRST_NAP_S, _LONGEST_NAP_S = 10e-6, 400e-6  # a core that is given away is one that the network's work can use


class Lowered(Protocol):
    """Gives the program for so many elements of each chunk, through the lanes' memory where `staged`."""

    def __call__(self, *, sizes: tuple[int, ...], staged: bool) -> Program:
        """See there."""


class MixedExecutable:
    """A collective bound to shared memory within nodes and messages between them: call it as often as you like.

    Args:
        node: the ranks of this node.
        task: the collective.
        lowered: gives the programs of parts.
        comm: all ranks.
        disagree: is called where ranks of a node came with different arguments; raises.
        under_way: the asynchronous operations of the communicator.
        progress: carries those on.
    """

    __slots__ = (
        "__weakref__",
        "_bound",
        "_comm",
        "_disagree",
        "_entry",
        "_lowered",
        "_node",
        "_own",
        "_parts",
        "_places",
        "_programs",
        "_progress",
        "_spare",
        "_stride",
        "_task",
        "_there",
        "_under_way",
        "direct",
        "live",
    )

    def __init__(
        self,
        node: Node,
        task: Task,
        lowered: Lowered,
        comm: MPI.Intracomm,
        disagree: Callable[[], NoReturn],
        under_way: Sized,
        progress: Callable[[], object],
    ) -> None:
        self._node, self._task, self._lowered, self._comm = node, task, lowered, comm
        self._disagree, self._under_way, self._progress = disagree, under_way, progress
        self._entry = fingerprint(task.facts)
        self._parts = parts_of(task)
        self.direct, self.live = is_direct(node, task), True
        self._own = where(node, task) if self.direct else (0, 0)
        self._places: tuple[int, ...] | None = None
        self._bound: dict[int, list[Action]] = {}
        self._programs: list[Program] = []
        self._stride, self._spare = 0, task.scratch(0)
        self._there: dict[int, tuple[int, int]] = {}

    @property
    def plan(self) -> Plan:
        """The plan that is carried out."""
        return self._task.plan

    @property
    def steps(self) -> tuple[BoundCall, ...]:
        """The call itself: its parts overlap, so that none of its steps can be done again by itself."""
        return (self,)

    def __call__(self) -> None:
        """Run once; blocks until this rank's part is done."""
        crossing, idle = self.begin(), Idle(self._node.crowded)
        while not crossing.done:
            moved = crossing.step()
            if self._under_way:
                self._progress()
            idle.after(moved)

    def begin(self) -> Crossing:
        """Enter together with the ranks of the node; return the collective under way.

        One collective at a time goes through a node's lanes: what is under way there is carried to its end before.
        """
        if not self.live:
            freed()
        before, idle = self._node.crossing, Idle(self._node.crowded)
        while before is not None and not before.done:
            idle.after(before.step())
            self._progress()
        for step in self._task.before:
            step()
        self._enter()
        self._node.crossing = crossing = Crossing(self._actions, self._node.lanes, len(self._parts), self._task.after)
        return crossing

    def free(self) -> None:
        """Let go of all memory; the executable cannot run after."""
        self.live = False
        self._bound.clear()
        self._programs, self._spare = [], self._task.scratch(0)

    def _enter(self) -> None:
        """Meet the ranks of the node; where they all come directly, learn where their buffers are."""
        gate = self._node.gate
        try:
            alike = gate.enter(self._entry | (DIRECT if self.direct else 0), *self._own)
        except DisagreementError:
            self._disagree()
        places = gate.places() if alike and self.direct else ()
        if places != self._places:
            self._lower(places)

    def _lower(self, places: tuple[int, ...]) -> None:
        """Lower every part for buffers that the others reach at `places`, or through the lanes where there are none."""
        self._bound.clear()
        self._places = places
        words = zip(places[::2], places[1::2], strict=True)
        self._there = dict(zip(self._node.others, words, strict=False))
        self._programs = [self._lowered(sizes=part.sizes, staged=not places) for part in self._parts]
        scratch = max(program.work + program.landing for program in self._programs)
        self._stride = scratch + (bounce_count(self._task) if places else 0)
        self._spare = self._task.scratch(self._stride * len(self._node.lanes))

    def _actions(self, number: int) -> list[Action]:
        """Return what a part does, bound when it is first run."""
        actions = self._bound.get(number)
        if actions is None:
            lane = self._node.lanes[number % len(self._node.lanes)]
            spare = self._spare[lane.number * self._stride : (lane.number + 1) * self._stride]
            program, part = self._programs[number], self._parts[number]
            ground = PartGround(self._node, self._task, program, part, lane, spare, self._there).ground
            actions = self._bound[number] = actions_of(program, ground, self._comm, FIRST_TAG + lane.number)
        return actions


class Crossing:
    """A collective under way through the lanes.

    Args:
        actions: gives what a part does.
        lanes: of the node; part p goes through lane p modulo their number.
        parts: how many there are.
        after: what is done when all are through.
    """

    __slots__ = ("_actions", "_after", "_following", "_lanes", "_live", "_parts", "done")

    def __init__(
        self, actions: Callable[[int], list[Action]], lanes: tuple[Lane, ...], parts: int, after: tuple[BoundCall, ...]
    ) -> None:
        self._actions, self._lanes, self._parts, self._after = actions, lanes, parts, after
        self._live: dict[int, Strand] = {}
        self._following, self.done = 0, False

    def step(self) -> bool:
        """Let every part under way go on for a moment; return whether anything was done."""
        moved, lane = False, self._following % len(self._lanes)
        if self._following < self._parts and lane not in self._live:
            self._live[lane] = Strand(self._actions(self._following), self._lanes[lane])
            self._following, moved = self._following + 1, True
        for number, strand in list(self._live.items()):
            moved |= strand.advance()
            if strand.done:
                del self._live[number]
        if not self._live and self._following == self._parts and not self.done:
            for step in self._after:
                step()
            self.done = True
        return moved

    def advance(self) -> bool:
        """Go as far as it can; return whether all is done. Never blocks."""
        while self.step():
            pass
        return self.done


class Idle:
    """What a rank does while nothing can be done: it looks again, gives its core away, and at last naps."""

    __slots__ = ("_nap", "_since", "_spins")

    def __init__(self, crowded: bool) -> None:
        self._spins = not crowded
        self._since, self._nap = 0.0, _FIRST_NAP_S

    def after(self, moved: bool) -> None:
        """Wait a little, longer the longer nothing was done; not at all where something was."""
        if moved:
            self._since, self._nap = 0.0, _FIRST_NAP_S
            return
        now = time.perf_counter()
        if not self._since:
            self._since = now
        waited = now - self._since
        if waited < _SPIN_S and self._spins:
            return
        if waited < _YIELD_S:
            os.sched_yield()
        else:
            time.sleep(self._nap)
            self._nap = min(2 * self._nap, _LONGEST_NAP_S)
