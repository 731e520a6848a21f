"""Export of a plan as a GOAL schedule, the text that txt2bin of LogGOPSim reads, so that LogGOPSim can time the plan.

As in the runtime, a rank begins a round when its operations of the previous round have completed. Empty messages are
left out, except for the signals of a barrier, which have a size of one byte (LogGOPSim charges size - 1 bytes). Local
copies and the arithmetic of reductions take no time in the schedule. Shared-memory loads and stores become messages,
and fences (barriers) are left out, since receives wait for their messages. The export refuses a barrier with fences.

A GOAL file has the line `num_ranks N`, then for each rank R a block `rank R {}` with lines such as `l1: send 8b to 1
tag 0`, `l2: recv 8b from 1 tag 0` and `l2 requires l1`. Source: the grammar of txt2bin in spcl/LogGOPSim (Hoefler,
Schneider and Lumsdaine, "LogGOPSim", LSAP 2010).
"""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.errors import UsageError
from hpccoll.plan.messages import PlanMessage, list_messages_by_round
from hpccoll.plan.operation import Operation
from hpccoll.plan.plan import Plan

SIGNAL_BYTES = 1


def to_goal(plan: Plan, count: int, itemsize: int = 4) -> str:
    """Return `plan` as text in GOAL, the input format of the simulator LogGOPSim; `check` must accept the plan.

    `count` is the number of elements of the vector, or of each rank's block.

    Raises UsageError for a negative `count`, an `itemsize` below 1, or a barrier with fences.
    """
    if count < 0 or itemsize < 1:
        size = f"{count} elements of {itemsize} bytes"
        raise UsageError(f"cannot export a schedule of {size}; need count >= 0 and itemsize >= 1")
    if plan.operation is Operation.BARRIER and plan.has_fences():
        raise UsageError(f"{plan.name} contains fences, which GOAL cannot express; write it as .json")
    sizes = plan.operation.chunk_sizes(count, plan.ranks, plan.rounds().chunks).tolist()
    programs = [GoalProgram() for _ in range(plan.ranks)]
    for t, messages in enumerate(list_messages_by_round(plan)):
        for message in messages:
            nbytes = _message_bytes(plan, message, sizes, itemsize)
            if nbytes and message.source != message.dest:  # the tag is the round
                programs[message.source].add(t, f"send {nbytes}b to {message.dest} tag {t}")
                programs[message.dest].add(t, f"recv {nbytes}b from {message.source} tag {t}")
    return format_programs(programs)


def format_programs(programs: Sequence[GoalProgram]) -> str:
    """Return the text of a GOAL file with the program of each rank."""
    bodies = [f"rank {rank} {{\n{''.join(program.lines)}}}\n" for rank, program in enumerate(programs)]
    return f"num_ranks {len(programs)}\n\n" + "\n".join(bodies)


def _message_bytes(plan: Plan, message: PlanMessage, sizes: list[int], itemsize: int) -> int:
    """Return the bytes of a message in the GOAL file, or 0 for a message that the file leaves out.

    `sizes` has the number of elements of each chunk, and `itemsize` the bytes of an element.
    """
    if plan.operation is Operation.BARRIER and not message.send:
        return SIGNAL_BYTES
    return sum(sizes[chunk] for chunk in message.send) * itemsize


class GoalProgram:
    """The lines of one rank's GOAL program, and the labels of the operations for which the next lines must wait."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.labels = 0
        self.round = -1
        self.current: list[int] = []  # labels of the round that is being written
        self.previous: list[int] = []  # labels of the rank's previous round

    def add(self, t: int, operation: str) -> None:
        """Append a GOAL operation (a line) of round t, which waits for all operations of the rank's previous round."""
        if t != self.round:
            self.round, self.previous, self.current = t, self.current, []
        self.labels += 1
        self.current.append(self.labels)
        self.lines.append(f"l{self.labels}: {operation}\n")
        self.lines += [f"l{self.labels} requires l{label}\n" for label in self.previous]
