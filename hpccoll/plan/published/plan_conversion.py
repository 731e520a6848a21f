"""Conversion of a proven program of thread blocks to a plan, which can be drawn, simulated, exported and run.

A plan has no scratch buffer, and its messages are part of rounds. A message that a rank receives only into scratch is
sent in the round in which its contents are reduced or copied into the output. A partial sum that a rank sends on
without storing it is stored in the rank's chunk. A message is sent in the first round, after its contents exist, in
which the receiver's chunk may change. If the sender overwrites the contents before this round, the conversion refuses
the program. Switch operations become messages between ranks.

If a program cuts each block of an all-to-all into equal pieces that all travel over the same links, the plan sends the
whole block where the program sends the first piece.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hpccoll.errors import PlanError
from hpccoll.plan.interchange.json_plans import make_listed_rounds
from hpccoll.plan.messages import PlanMessage
from hpccoll.plan.operation import Operation
from hpccoll.plan.plan import Plan
from hpccoll.plan.published.block_program import IN_FLIGHT, BlockProgram, Cell, CellContents, Effect
from hpccoll.plan.published.execution import ExecutedStep
from hpccoll.plan.step import Op

PlanCell: TypeAlias = tuple[int, int]  # rank and chunk of the plan
_START = -1  # stands for the round that wrote the input


@dataclass(slots=True)
class _Version:
    """The contents of a plan's chunk (`cell`: rank and chunk number) until the chunk is overwritten.

    Args:
        cell: the rank and the number of the chunk.
        written: the round that wrote the contents; -1 for input.
        mask: a bit mask of the contributing ranks.
        read: the last round that reads the contents.
        overwritten: the round that overwrites the contents, or None.
    """

    cell: PlanCell
    written: int
    mask: int
    read: int = _START
    overwritten: int | None = None


@dataclass(slots=True)
class _RoundList:
    """The messages of each round of a plan under construction, and tables to find the message for a further chunk.

    `writers[t][cell]` is the index of the last message of round t that writes the cell (rank, chunk), and
    `latest[t][source, dest, op]` the index of the last message between two ranks with the same operation.
    """

    messages: dict[int, list[PlanMessage]] = field(default_factory=dict)
    writers: dict[int, dict[PlanCell, int]] = field(default_factory=dict)
    latest: dict[int, dict[tuple[int, int, Op], int]] = field(default_factory=dict)

    def add(self, t: int, source: PlanCell, target: PlanCell, op: Op) -> None:
        """Add the transfer of chunk `source` to chunk `target` (rank and chunk number each) to round t.

        `op` states a copy or a reduction. Chunks between the same two ranks share a message unless this changes the
        order of writes to a chunk.
        """
        listed, writers = self.messages.setdefault(t, []), self.writers.setdefault(t, {})
        latest, ends = self.latest.setdefault(t, {}), (source[0], target[0], op)
        at = latest.get(ends, -1)
        if writers.get(target, -1) < at:
            old = listed[at]
            listed[at] = PlanMessage(*ends[:2], (*old.send, source[1]), (*old.recv, target[1]), op)
        else:
            at = latest[ends] = len(listed)
            listed.append(PlanMessage(source[0], target[0], (source[1],), (target[1],), op))
        writers[target] = at

    def list_rounds(self) -> list[list[PlanMessage]]:
        """Return the messages of each round, in the order of rounds."""
        return [self.messages[t] for t in sorted(self.messages)]


def convert_to_plan(program: BlockProgram, executed: Sequence[ExecutedStep]) -> Plan:
    """Return the plan of a proven program, made from its executed steps; raise PlanError if no plan can express it.

    The plan is not proven; `check` proves it.
    """
    if not program.plan_chunks:
        why = program.remarks[0] if program.remarks else "its chunks do not fit those of a plan"
        raise PlanError(f"{program.name} cannot be a plan: {why}")
    # A schedule may cut each block of an all-to-all into pieces.
    pieces = program.chunks // program.ranks**2 if program.operation is Operation.ALL_TO_ALL else 1
    if pieces > 1:
        _require_equal_routes(program, executed, pieces)
    converter = _Converter(program, pieces)
    for step in executed:
        for effect in step.step.effects:
            converter.apply(effect)
    rounds = converter.rounds.list_rounds()
    name = "".join(letter if letter.isalnum() or letter in "_.+-" else "-" for letter in program.name)[:80]
    make = make_listed_rounds(program.ranks, program.plan_chunks, [(messages, []) for messages in rounds])
    return Plan(program.operation, name or "published", program.ranks, 0, make)


def _require_equal_routes(program: BlockProgram, executed: Sequence[ExecutedStep], pieces: int) -> None:
    """Raise PlanError unless all pieces of each all-to-all block cross each pair of ranks equally often."""
    routes: dict[int, Counter[tuple[int, int, int]]] = {piece: Counter() for piece in range(pieces)}
    for chunk, source, dest in _list_crossings(program, executed):
        routes[chunk % pieces][chunk // pieces, source, dest] += 1
    if any(route != routes[0] for route in routes.values()):
        raise PlanError(f"{program.name} cannot be a plan: the {pieces} pieces of a block take different routes")


def _list_crossings(program: BlockProgram, executed: Sequence[ExecutedStep]) -> Iterator[tuple[int, int, int]]:
    """Yield (chunk, source rank, destination rank) for every chunk that the executed steps move between ranks."""
    contents: dict[Cell, CellContents] = dict(program.inputs)
    for step in executed:
        for effect in step.step.effects:
            contents[effect.target] = contents[effect.sources[0]]
            for source in effect.sources:
                if source[0] != effect.target[0] and source[1][0] != IN_FLIGHT:
                    yield contents[source][0], source[0], effect.target[0]
                elif source[1][0] == IN_FLIGHT:
                    yield contents[source][0], source[0], step.step.rank


class _Converter:
    """Turns the effects of a program's steps into messages of a plan's rounds, and tracks the contents of chunks.

    `pieces` is the number of pieces of each block of an all-to-all, 1 for other operations.
    """

    def __init__(self, program: BlockProgram, pieces: int) -> None:
        self.program, self.pieces = program, pieces
        self.rounds = _RoundList()
        self.current: dict[PlanCell, _Version] = {}
        self.terms: dict[Cell, tuple[_Version, ...]] = {}  # the versions whose sum a cell holds
        self.contents: dict[Cell, int] = {}  # the chunk of the collective's data in a cell
        for cell, (chunk, mask) in program.inputs.items():
            if cell in program.homes:
                place = cell[0], program.homes[cell]
                self.terms[cell] = (self.current.setdefault(place, _Version(place, _START, mask)),)
            self.contents[cell] = chunk

    def apply(self, effect: Effect) -> None:
        """Turn one effect into messages; for a cell that the plan does not have, only record the contents."""
        target, chunk = effect.target, self.contents[effect.sources[0]]
        self.contents[target] = chunk
        if self.pieces > 1 and chunk % self.pieces:
            return
        terms = tuple(version for source in effect.sources for version in self.terms[source])
        if target in self.program.homes:
            self.terms[target] = (self.store((target[0], self.program.homes[target]), terms),)
        elif target[1][0] == IN_FLIGHT and (len(terms) != 1 or terms[0].cell[0] != target[0]):
            # A rank can only send a single value that it has in a chunk of the plan.
            self.terms[target] = (self.store((target[0], self.find_place(chunk)), terms),)
        else:
            self.terms[target] = terms

    def find_place(self, chunk: int) -> int:
        """Return the plan's chunk in which a rank stores a data chunk that the program passes on without storing it.

        Raises PlanError for an all-to-all, whose plan has no such chunk.
        """
        if self.program.operation is Operation.ALL_TO_ALL:
            raise PlanError(f"{self.program.name} cannot be a plan: ranks pass blocks on from scratch")
        return chunk

    def store(self, place: PlanCell, terms: tuple[_Version, ...]) -> _Version:
        """Add the messages that bring the sum of `terms` into the plan's chunk `place`; return its new contents."""
        version = self.current.get(place)
        others = [term for term in terms if term is not version]
        reduces = len(others) < len(terms)
        for term in others:
            version = self.move(term, place, reduces=reduces)
            reduces = True
        if version is None:
            raise PlanError(f"{self.program.name} cannot be a plan: a chunk has no contents")
        return version

    def move(self, source: _Version, place: PlanCell, *, reduces: bool) -> _Version:
        """Add a transfer of `source` into chunk `place`, in the earliest round that fits; return the new contents.

        `reduces` states whether the transfer is reduced into the chunk rather than copied. Published formats leave the
        order of a reduction's operands open. The plan puts the operand with the lowest contributor first, so that two
        ranks that exchange their sums get the same bits.
        """
        old, op, mask = self.current.get(place), Op.COPY, source.mask
        if reduces and old is not None:
            op, mask = Op.INCOMING_FIRST if _lowest(source.mask) < _lowest(old.mask) else Op.OWN_FIRST, mask | old.mask
        t = source.written + 1
        if old is not None:
            t = max(t, old.read, old.written + (op is Op.COPY), 0)
        if source.overwritten is not None and t > source.overwritten:
            where = f"rank {source.cell[0]} overwrites chunk {source.cell[1]} before the plan could send it"
            raise PlanError(f"{self.program.name} cannot be a plan: {where} (the program keeps a copy in scratch)")
        source.read = max(source.read, t)
        made = _Version(place, t, mask)
        if old is not None:
            old.overwritten = t
        self.current[place] = made
        self.rounds.add(t, source.cell, place, op)
        return made


def _lowest(mask: int) -> int:
    """Return the value of the lowest set bit of a mask, such as 4 for 0b1100; 0 if no bit is set."""
    return mask & -mask
