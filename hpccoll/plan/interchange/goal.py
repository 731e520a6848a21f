"""A plan as a GOAL schedule, the text that LogGOPSim's txt2bin reads, so that another simulator can time it.

A rank's operations of a round wait for all of its operations in the round before that it took part in, which is how
the runtime goes on. Messages without elements are not sent, as in a real run; the signals of a barrier are, and count
as one byte (LogGOPSim charges size - 1). Local copies and the arithmetic of reductions take no time in the schedule.
Loads and stores become messages, whose ends wait for each other, and their fences are then left out; a barrier that is
made of fences is refused.

Format: `num_ranks N`, then for each rank in order `rank R { ... }` with lines `l1: send 8b to 1 tag 0`,
`l2: recv 8b from 1 tag 0` and `l2 requires l1`. Source: the grammar of txt2bin in spcl/LogGOPSim (Hoefler, Schneider
and Lumsdaine, "LogGOPSim", LSAP 2010).
"""

from __future__ import annotations

from collections.abc import Iterator

from hpccoll.errors import UsageError
from hpccoll.plan.interchange.messages import Message, messages
from hpccoll.plan.operation import Operation
from hpccoll.plan.plan import Plan
from hpccoll.plan.step import Fence

SIGNAL_BYTES = 1


def to_goal(plan: Plan, count: int, itemsize: int = 4) -> str:
    """Return `plan` as a GOAL schedule.

    Args:
        plan: a plan that `check` proves.
        count: elements of the vector, or of one block.
        itemsize: bytes an element.

    Raises:
        UsageError: a negative count, an itemsize below 1, or a barrier that holds fences.

    Cost: O(messages) time and memory.
    """
    if count < 0 or itemsize < 1:
        raise UsageError(
            f"a schedule of {count} elements of {itemsize} bytes cannot be; need count >= 0, itemsize >= 1"
        )
    if plan.operation is Operation.BARRIER and any(
        isinstance(step, Fence) for steps in plan.rounds() for step in steps
    ):
        raise UsageError(f"{plan.name} holds fences, and GOAL has messages only; write it as .json")
    sizes = plan.operation.chunk_sizes(count, plan.ranks, plan.moves().chunks).tolist()
    programs = [_Program() for _ in range(plan.ranks)]
    for t, each in enumerate(messages(plan)):
        for tag, message, nbytes in _sent(plan, t, each, sizes, itemsize):
            programs[message.source].add(t, f"send {nbytes}b to {message.dest} tag {tag}")
            programs[message.dest].add(t, f"recv {nbytes}b from {message.source} tag {tag}")
    bodies = [f"rank {rank} {{\n{''.join(program.lines)}}}\n" for rank, program in enumerate(programs)]
    return f"num_ranks {plan.ranks}\n\n" + "\n".join(bodies)


def _sent(
    plan: Plan, t: int, listed: list[Message], sizes: list[int], itemsize: int
) -> Iterator[tuple[int, Message, int]]:
    """Yield tag, message and bytes of what crosses in round t. The tag tells rounds apart; a pair keeps its order."""
    for message in listed:
        nbytes = sum(sizes[chunk] for chunk in message.send) * itemsize
        signal = plan.operation is Operation.BARRIER and not message.send
        if message.source != message.dest and (nbytes or signal):
            yield t, message, max(nbytes, SIGNAL_BYTES)


class _Program:
    """The lines of one rank."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.labels = 0
        self.round = -1
        self.here: list[int] = []  # labels of the round that is being written
        self.before: list[int] = []  # labels of the last round in which this rank took part

    def add(self, t: int, what: str) -> None:
        """Append an operation of round t."""
        if t != self.round:
            self.round, self.before, self.here = t, self.here, []
        self.labels += 1
        self.here.append(self.labels)
        self.lines.append(f"l{self.labels}: {what}\n")
        self.lines += [f"l{self.labels} requires l{label}\n" for label in self.before]
