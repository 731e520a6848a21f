"""Runs a staged program, which copies through slots, on arrays that are given at each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpccoll.runtime.arrays import FlatArray
from hpccoll.runtime.node_memory.node import NodeMemory
from hpccoll.runtime.recorder.call_recorder import Begin, CallRecorder
from hpccoll.runtime.unbound_program import Memories, Step


@dataclass(frozen=True, slots=True)
class StagedProgram:
    """A staged program for any arrays; other ranks may run the same call by an executable of their own.

    `begin` records the beginning of a call, and `state` its end. `before_entry` are the steps of the first segment
    before `NodeBarrier.enter`. `segments` are all other steps, by segment. Segments use the slots in turn. `memories`
    has, by the number of a slot, all memories of a segment except input and output.
    """

    state: CallRecorder
    begin: Begin
    node: NodeMemory
    entry: int
    facts: Sequence[object]
    before_entry: Sequence[Step]
    segments: Sequence[Sequence[Step]]
    memories: Mapping[int, Memories]

    def __call__(self, source: FlatArray, result: FlatArray) -> None:
        place = self.begin()
        try:
            self._run(source, result)
        except BaseException:
            self.state.fail(place)
            raise
        self.state.end(place)

    def _run(self, source: FlatArray, result: FlatArray) -> None:
        """Run once on an input and an output."""
        node, alike = self.node, None
        slot = node.next_slot
        memories = (source, result, *self.memories[slot])
        while not alike:
            for step in self.before_entry:
                step(memories)
            alike = node.barrier.enter(self.entry)
            if alike is None:
                node.raise_mismatch(self.facts)
        for steps in self.segments:
            memories = (source, result, *self.memories[slot])
            for step in steps:
                step(memories)
            slot = (slot + 1) % len(node.slots)
        node.next_slot = slot
