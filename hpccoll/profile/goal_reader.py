"""Reads a GOAL schedule as a profile: the text for LogGOPSim's txt2bin, with `calc`, `send` and `recv`.

GOAL has no times of messages, no collectives and no call sites. The operations of a schedule are simulated
(task_graph.py) with an assumed time per message. The times of `calc` are nanoseconds. Processors and network
interfaces (`cpu`, `nic`) are ignored: a rank does one thing at a time. Source: the grammar of txt2bin in
spcl/LogGOPSim.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from hpccoll.errors import UsageError
from hpccoll.profile.foreign_profile import make_foreign_profile
from hpccoll.profile.load import JobProfile
from hpccoll.profile.task_graph import NOTE, Task, TaskSimulation

_OPERATION: Final = re.compile(
    r"(?:(?P<label>[A-Za-z]\w*)\s*:\s*)?"
    r"(?:calc\s+(?P<ns>\d+)|(?P<kind>send|recv)\s+(?P<nbytes>\d+)\s*b\s+(?P<way>to|from)\s+(?P<peer>-1|\d+)"
    r"(?:\s+tag\s+(?P<tag>-1|\d+))?)(?:\s+cpu\s+\d+)?(?:\s+nic\s+\d+)?"
)
_NEED: Final = re.compile(r"(?P<label>[A-Za-z]\w*)\s+(?P<verb>requires|irequires)\s+(?P<needed>[A-Za-z]\w*)")
_RANK: Final = re.compile(r"rank\s+(\d+)\s*\{")
_SIZE: Final = re.compile(r"num_ranks\s+(\d+)")
_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_WAYS: Final = {"send": "to", "recv": "from"}


@dataclass(slots=True)
class _RankProgram:
    """The tasks of one rank of a GOAL file; `labels` has the indices of tasks by their labels."""

    tasks: list[Task] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def read_goal(path: Path) -> JobProfile:
    """Return the job of a GOAL file, a schedule for the simulator LogGOPSim, as a profile with simulated times.

    Raises:
        UsageError: the file cannot be read, a line is not valid GOAL, or some ranks would wait forever.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as GOAL ({error}); give the text, not the binary file") from error
    return parse_goal(text, path)


def parse_goal(text: str, path: Path) -> JobProfile:
    """Return the job of a GOAL file's text as a profile, with simulated times.

    `path` is the name of the file in error messages. Raises the errors of `read_goal`.
    """
    programs: list[_RankProgram] = []
    program: _RankProgram | None = None
    lines = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text).splitlines()
    for number, line in enumerate(map(str.strip, lines), 1):
        where = f"{path}:{number}"
        if match := _SIZE.fullmatch(line):
            programs = [_RankProgram() for _ in range(int(match[1]))]
        elif match := _RANK.fullmatch(line):
            if int(match[1]) >= len(programs):
                raise UsageError(f"{where}: rank {match[1]} is not among the {len(programs)} ranks of num_ranks")
            program = programs[int(match[1])]
        elif line == "}" and program is not None:
            program = None
        elif line and program is None:
            raise UsageError(f"{where}: {line!r} is outside of a rank; write num_ranks N, or rank R {{")
        elif line and program is not None:
            _add_line(program, line, where, len(programs))
    if not programs or program is not None:
        raise UsageError(f"{path}: {'ends inside of a rank' if program else 'has no num_ranks'}; complete the file")
    world = tuple(range(len(programs)))
    simulation = TaskSimulation([of_rank.tasks for of_rank in programs], (world,))
    return make_foreign_profile(path, simulation.run(), simulation.list_ends(), (world,), (NOTE,))


def _add_line(program: _RankProgram, line: str, where: str, size: int) -> None:
    """Add to a rank the task that a line of GOAL states, or the dependency of a task on another one.

    Args:
        program: the tasks of the rank so far.
        line: the line, without comments.
        where: the file and line number, for error messages.
        size: the number of ranks in the GOAL file.
    """
    if match := _NEED.fullmatch(line):
        unknown = [match[name] for name in ("label", "needed") if match[name] not in program.labels]
        if unknown:
            raise UsageError(f"{where}: label {unknown[0]} is not defined above this line; define it there")
        task, needed = program.labels[match["label"]], program.labels[match["needed"]]
        before = program.tasks[task]
        if match["verb"] == "requires":
            program.tasks[task] = replace(before, needs=(*before.needs, needed))
        else:
            program.tasks[task] = replace(before, start_needs=(*before.start_needs, needed))
        return
    match = _OPERATION.fullmatch(line)
    if match is None or (match["kind"] and match["way"] != _WAYS[match["kind"]]):
        raise UsageError(f"{where}: {line!r} is no GOAL; write for example l1: send 8b to 1 tag 0")
    if match["label"]:
        program.labels[match["label"]] = len(program.tasks)
    if match["kind"] is None:
        program.tasks.append(Task("calc", 1e-9 * int(match["ns"])))
        return
    peer = int(match["peer"])
    if peer >= size or (peer < 0 and match["kind"] == "send"):
        raise UsageError(f"{where}: there is no rank {peer}; the ranks are 0 to {size - 1}")
    program.tasks.append(Task(match["kind"], nbytes=int(match["nbytes"]), peer=peer, tag=int(match["tag"] or 0)))
