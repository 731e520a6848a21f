"""Proves that a published schedule ends with right values and without data races; counts redundant transfers.

The program is executed with unlimited buffers on symbolic contents: a data chunk, and the set of ranks that contributed
to it. The proof refuses a deadlock, a read of a cell that was never written, a sum of two different chunks, a sum that
includes a contribution twice, an output with wrong contents, and a data race: two steps that are not ordered by the
program and of which one changes a cell that the other uses. Errors name the rank, the thread block, the step and the
chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from hpccoll.errors import DeadlockError, PlanError
from hpccoll.plan.published.block_program import IN_FLIGHT, BlockProgram, BlockStep, Cell, CellContents, Effect
from hpccoll.plan.published.execution import ExecutedStep, Execution, execute, has_deadlock
from hpccoll.units import format_list

MOST_BUFFERED = 8  # the largest number of buffered messages per link that is tried
_MOST_STUCK, _MOST_SENDS = 6, 4  # blocked steps, and senders of one value, that an error lists


@dataclass(frozen=True, slots=True)
class PublishedProof:
    """The proof of a published schedule.

    Args:
        executed: the steps of the schedule in an order in which they can be executed.
        buffered: the least number of buffered messages per link without a deadlock; None if it exceeds MOST_BUFFERED.
        transfers: the number of chunks that move between ranks.
        redundant: the number of moved chunks that the receiver already has or never uses.
    """

    executed: list[ExecutedStep]
    buffered: int | None
    transfers: int
    redundant: int


@dataclass(slots=True)
class _Write:
    """A value that a step wrote into a cell, with the values that it was made of and the value that it overwrote.

    `step` is None for input. The flags state whether the value came from another rank (`crossed`), whether this rank
    already had it (`known`), and whether a step has read it (`used`).
    """

    contents: CellContents
    step: BlockStep | None
    cell: Cell
    parts: tuple[_Write, ...] = ()
    replaced: _Write | None = None
    crossed: bool = False  # whether the value came from another rank
    known: bool = False  # whether the receiver already had the contents
    used: bool = field(default=False)


def prove_program(program: BlockProgram) -> PublishedProof:
    """Return the proof of `program`; raise DeadlockError or PlanError, with the place in the file, if it is wrong."""
    execution = execute(program)
    _ValueCheck(program).explain_first(execution)
    if execution.stuck:
        raise make_deadlock_error(program, execution, None)
    check = _ValueCheck(program)
    for executed in execution.executed:
        check.apply(executed)
    check.compare_outputs()
    buffered = next((k for k in range(1, MOST_BUFFERED + 1) if not has_deadlock(program, k)), None)
    return PublishedProof(execution.executed, buffered, *check.count_transfers())


def refuse_deadlock(program: BlockProgram, buffered: int) -> None:
    """Raise DeadlockError, with the blocked steps, if `program` deadlocks with at most `buffered` messages per link."""
    execution = execute(program, buffered)
    if execution.stuck:
        raise make_deadlock_error(program, execution, buffered)


def make_deadlock_error(program: BlockProgram, execution: Execution, buffered: int | None) -> DeadlockError:
    """Return an unraised error that names the blocked steps; `buffered` is the limit of messages per link."""
    listed = [f"{step.describe()} {why}" for step, why in execution.stuck]
    more = f"; and {len(listed) - _MOST_STUCK} more" if len(listed) > _MOST_STUCK else ""
    limit = "" if buffered is None else f" with {buffered} buffered message{'s' * (buffered > 1)} per link"
    stuck = {step.rank: step.words for step, _ in reversed(execution.stuck)}
    return DeadlockError(f"{program.name}: deadlock{limit}: {'; '.join(listed[:_MOST_STUCK])}{more}", stuck)


def count_traffic(program: BlockProgram, executed: Iterable[ExecutedStep]) -> dict[tuple[int, int], Fraction]:
    """Return, for each pair (source, destination) of ranks, the sent bytes divided by the whole message's bytes."""
    chunks = Counter(
        (source[0], effect.target[0])
        for step in executed
        for effect in step.step.effects
        for source in effect.sources
        if source[0] != effect.target[0]  # the cell of a message in flight has its sender's rank
    )
    return {pair: Fraction(count, program.chunks) for pair, count in chunks.items()}


class _ValueCheck:
    """Checks the values of a program: executes its steps on symbolic contents (a chunk and its contributing ranks).

    The object keeps the contents of all cells and, to detect data races, the steps that last used each cell.
    """

    def __init__(self, program: BlockProgram) -> None:
        self.program = program
        self.cells = {cell: _Write(contents, None, cell) for cell, contents in program.inputs.items()}
        self.writes: list[_Write] = []
        self.last_write: dict[Cell, ExecutedStep] = {}
        self.last_reads: dict[Cell, list[ExecutedStep]] = {}
        self.held: set[tuple[int, CellContents]] = {(cell[0], contents) for cell, contents in program.inputs.items()}
        self.unordered: PlanError | None = None
        self.transfers = 0  # chunks that moved between ranks

    def explain_first(self, execution: Execution) -> None:
        """Raise an error that names the cause if a step made a wrong value before the execution deadlocked."""
        if execution.stuck:
            for executed in execution.executed:
                self.apply(executed)
            misplaced = next((write for write in self.writes if self.is_misplaced(write)), None)
            if misplaced is not None and misplaced.step is not None:
                deadlock = make_deadlock_error(self.program, execution, None)
                raise DeadlockError(f"{deadlock}. Before, {self.describe_misplaced(misplaced)}", deadlock.stuck)

    def error(self, step: BlockStep, why: str) -> PlanError:
        """Return an unraised error that names the schedule and a step."""
        return PlanError(f"{self.program.name}: {step.describe()} {why}")

    def apply(self, executed: ExecutedStep) -> None:
        """Execute the effects of a step on the symbolic contents.

        Raises PlanError if a cell is read before it is written, a sum cannot be right, or a data race is found.
        """
        step = executed.step
        for effect in executed.step.effects:
            parts = []
            for source in effect.sources:
                write = self.cells.get(source)
                if write is None:
                    raise self.error(step, f"reads {_format_cell(source)}, which was never written")
                self.check_order(executed, source, write, is_write=False)
                write.used = True
                parts.append(write)
            made = self.combine(step, effect, parts)
            replaced = self.cells.get(effect.target)
            if replaced is None or replaced.contents != made.contents:
                self.check_order(executed, effect.target, replaced, is_write=True)
            made.replaced = replaced
            self.cells[effect.target] = made
            self.writes.append(made)
            self.last_write[effect.target], self.last_reads[effect.target] = executed, []
            self.note_transfer(effect, made)
        if self.unordered is not None:
            raise self.unordered

    def combine(self, step: BlockStep, effect: Effect, parts: list[_Write]) -> _Write:
        """Return the sum of the values `parts`; raise PlanError if chunks differ or a contribution occurs twice."""
        chunk, mask = parts[0].contents
        for part in parts[1:]:
            other, more = part.contents
            if other != chunk or mask & more:
                misplaced = next(
                    (made for addend in parts for made in _list_origins(addend) if self.is_misplaced(made)), None
                )
                if misplaced is not None:
                    raise PlanError(f"{self.program.name}: {self.describe_misplaced(misplaced)}")
            if other != chunk:
                raise self.error(step, f"adds chunk {other} to chunk {chunk}{_from_whom(parts)}")
            if mask & more:
                twice = _format_ranks(mask & more)
                raise self.error(step, f"adds the contribution of {twice} to chunk {chunk} a second time"
                                       f"{_from_whom(parts)}")  # fmt: skip
            mask |= more
        return _Write((chunk, mask), step, effect.target, tuple(parts))

    def check_order(self, executed: ExecutedStep, cell: Cell, write: _Write | None, *, is_write: bool) -> None:
        """Store an error in `self.unordered` if an earlier conflicting use of `cell` is not ordered before the step.

        `write` is the cell's present value (None if it has none). `is_write` tells whether the step writes the cell.
        """
        if cell[1][0] == IN_FLIGHT:
            return
        earlier = [self.last_write[cell]] if cell in self.last_write else []
        if is_write:
            earlier += self.last_reads.get(cell, [])
        else:
            self.last_reads.setdefault(cell, []).append(executed)
        for other in earlier:
            if other.step is not executed.step and executed.clock[other.block] <= other.position:
                chunk = f"chunk {write.contents[0]} in " if write is not None else ""
                verb, did = ("overwrites", "uses") if is_write else ("reads", "writes")
                self.unordered = self.unordered or self.error(
                    executed.step,
                    f"{verb} {chunk}{_format_cell(cell)}, which {other.step.describe()} {did}; "
                    "nothing orders the two steps: a dependency is missing",
                )

    def note_transfer(self, effect: Effect, made: _Write) -> None:
        """Count the transfer if the value `made` came from another rank, and mark whether this rank already had it."""
        rank = effect.target[0]
        for part in made.parts:
            if part.cell[0] != rank:  # the cell of a message in flight has its sender's rank
                made.crossed = True
                made.known |= (rank, part.contents) in self.held
                self.transfers += 1
                self.held.add((rank, part.contents))
        if effect.target[1][0] != IN_FLIGHT:
            self.held.add((rank, made.contents))

    def count_transfers(self) -> tuple[int, int]:
        """Return how many chunks were moved between ranks, and how many of those the receiver had or never used."""
        final = {id(self.cells[cell]) for cell in self.program.outputs if cell in self.cells}
        crossed = [write for write in self.writes if write.crossed]
        return self.transfers, sum(write.known or not (write.used or id(write) in final) for write in crossed)

    def compare_outputs(self) -> None:
        """Raise PlanError unless every output has its required contents at the end."""
        wrong = [cell for cell, required in self.program.outputs.items() if self.read(cell) != required]
        if not wrong:
            return
        places = {(cell[0], self.program.outputs[cell][0]) for cell in wrong} | set(wrong)
        candidates = (write for write in self.writes if self.is_misplaced(write))
        misplaced = next((w for w in candidates if w.cell in places or (w.cell[0], w.contents[0]) in places), None)
        if misplaced is not None:
            raise PlanError(f"{self.program.name}: {self.describe_misplaced(misplaced)}")
        raise PlanError(f"{self.program.name}: {self.describe_wrong(min(wrong))}")

    def read(self, cell: Cell) -> CellContents | None:
        """Return the contents of a cell, or None if it was never written."""
        write = self.cells.get(cell)
        return None if write is None else write.contents

    def is_misplaced(self, write: _Write) -> bool:
        """Whether `write` put a chunk into an output cell that requires another chunk."""
        required = self.program.outputs.get(write.cell)
        return required is not None and required[0] != write.contents[0]

    def describe_misplaced(self, write: _Write) -> str:
        """Return text for an error about a misplaced value: the step that wrote it, and the steps that sent it."""
        required = self.program.outputs[write.cell]
        step = write.step.describe() if write.step else "the input"
        return (f"{step} writes chunk {write.contents[0]} where chunk {required[0]} belongs, "
                f"{_format_cell(write.cell)}{_from_whom(list(write.parts))}")  # fmt: skip

    def describe_wrong(self, cell: Cell) -> str:
        """Return a description of a wrong output cell for an error, and of the step that is the likely cause."""
        chunk, mask = self.program.outputs[cell]
        write = self.cells.get(cell)
        where = f"in the end rank {cell[0]} chunk {chunk} is wrong ({_format_cell(cell)})"
        if write is None:
            return f"{where}: nothing writes it"
        if write.contents[0] != chunk:
            return f"{where}: it holds chunk {write.contents[0]}, {_format_step(write)}"
        missing, extra = mask & ~write.contents[1], write.contents[1] & ~mask
        faults = [f"{_format_ranks(missing)} missing"] * bool(missing) + [f"{_format_ranks(extra)} extra"] * bool(extra)
        loss, unused = self.find_loss(write, chunk, missing), self.find_unused(chunk, missing)
        cause = ""
        if loss is not None and loss.step is not None:
            cause = f"; {loss.step.describe()} overwrites a part that is used nowhere else"
        elif unused is not None and unused.step is not None:
            cause = f"; {unused.step.describe()} receives a part that nothing uses"
        return f"{where}: contributions of {', '.join(faults)}, {_format_step(write)}{cause}"

    def find_loss(self, write: _Write, chunk: int, missing: int) -> _Write | None:
        """Return the write that lost a missing contribution by replacing a value that included it, or None.

        `write` is the wrong value of an output, and `missing` a bit mask of the contributions that the output lacks.
        """

        def is_loss(made: _Write) -> bool:
            """Whether `made` replaced a value of `chunk` that has a missing contribution by a value without it."""
            old = made.replaced
            if old is None or old in made.parts or old.contents[0] != chunk:
                return False
            return bool(old.contents[1] & missing & ~made.contents[1])

        return next((made for made in _list_origins(write) if is_loss(made)), None) or next(
            (made for made in self.writes if is_loss(made) and made.replaced and not made.replaced.used), None
        )

    def find_unused(self, chunk: int, missing: int) -> _Write | None:
        """Return a received value of `chunk` that no step reads although it has a contribution of the mask `missing`.

        The result is None if every received value of this kind is read.
        """
        unused = (write for write in self.writes if write.crossed and not write.used)
        return next((made for made in unused if made.contents[0] == chunk and made.contents[1] & missing), None)


def _list_origins(write: _Write) -> Iterator[_Write]:
    """Yield a value and all values that it was made of, directly or indirectly, each once, the latest first."""
    waiting, seen = [write], {id(write)}
    while waiting:
        made = waiting.pop(0)
        yield made
        for part in made.parts:
            if id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)


def _format_step(write: _Write) -> str:
    """Return the step that wrote a value, for an error message."""
    return f"written by {write.step.describe()}" if write.step else "which no step writes"


def _format_cell(cell: Cell) -> str:
    """Return a cell as text such as `o[3] of rank 1`."""
    return f"{cell[1]}[{cell[2]}] of rank {cell[0]}"


def _format_ranks(mask: int) -> str:
    """Return the ranks of a bit mask as text such as `ranks 0, 2`, with at most eight numbers."""
    ranks = [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
    return f"rank{'s' * (len(ranks) > 1)} {format_list(ranks)}"


def _from_whom(parts: list[_Write]) -> str:
    """Return text that lists the last sends, at most `_MOST_SENDS`, by which the received value among `parts` arrived.

    The last send comes first. The text is empty if no value of `parts` was received.
    """
    part = next((part for part in parts if part.cell[1][0] == IN_FLIGHT and part.step), None)
    sends = [] if part is None else [made.step for made in _list_origins(part) if made.cell[1][0] == IN_FLIGHT]
    return "".join(f", which {step.describe()} sent" for step in sends[:_MOST_SENDS] if step)
