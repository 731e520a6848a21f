"""Reads a trace of liballprof: the text file of one rank, with a line per MPI call.

A line has the name of the MPI function, the begin in microseconds, the arguments in the order of MPI's C interface, and
the end, separated by colons. Of a communicator, a line has the handle, the rank in it and its size; of a datatype, its
number, size and extent; of requests and buffers, the addresses. A call that MPI makes within another call interrupts
the line of the outer call after its begin. Source: gencode.py and mpi_header.h in src/liballprof of spcl/LogGOPSim.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpccoll.errors import UsageError
from hpccoll.private_files import read_limited

_MOST_BYTES: Final = 2**30
_HEADER: Final = b"# htor's PMPI Tracer"
_HEAD_LINE: Final = re.compile(rb"^MPI_\w+:(-|\d+(\.\d+)?):", re.MULTILINE)
_MPICH_WORLD: Final = 0x44000000  # the handle MPI_COMM_WORLD
_TIME: Final = r"\d{1,15}(\.\d+)?"
_LINE: Final = re.compile(rf"MPI_\w+:(-:(.*:)?{_TIME}|{_TIME}:(.*:)?(-|{_TIME}))")
_INNER_CALL: Final = re.compile(r"(?<=.)(?=MPI_)")
_CLOCKS: Final = re.compile(r"^# (?:Finalize )?clockdiff: (-?\d+\.\d+)", re.MULTILINE)
# The arguments of MPI functions, a letter each. b, n, t, v: buffer, number, datatype and numbers for all ranks;
# B, N, T, V: those of the receive buffer; d, s, g: destination, source and tag; r: root; c: communicator; q, m: address
# of requests and their number; D: displacements; x: others.
_COLLECTIVES: Final = {
    "Allreduce": "bBntxc", "Reduce": "bBntxrc", "Scan": "bBntxc", "Exscan": "bBntxc", "Reduce_scatter_block": "bBntxc",
    "Reduce_scatter": "bBvtxc", "Bcast": "bntrc", "Allgather": "bntBNTc", "Alltoall": "bntBNTc", "Gather": "bntBNTrc",
    "Scatter": "bntBNTrc", "Allgatherv": "bntBVDTc", "Gatherv": "bntBVDTrc", "Scatterv": "bvDtBNTrc",
    "Alltoallv": "bvDtBVDTc", "Alltoallw": "bvDxBVDxc", "Barrier": "c",
}  # fmt: skip
_ARGUMENTS: Final = {
    **_COLLECTIVES, **{f"I{name.lower()}": f"{letters}q" for name, letters in _COLLECTIVES.items()},
    **dict.fromkeys(("Send", "Ssend", "Bsend", "Rsend"), "bntdgc"), "Recv": "bntsgcx", "Irecv": "bntsgcq",
    **dict.fromkeys(("Isend", "Issend", "Ibsend", "Irsend"), "bntdgcq"), "Recv_init": "bntsgcq",
    **dict.fromkeys(("Send_init", "Ssend_init", "Bsend_init", "Rsend_init"), "bntdgcq"),
    "Sendrecv": "bntdgBNTsxcx", "Sendrecv_replace": "bntdgsxcx", "Start": "q", "Startall": "mq", "Wait": "qx",
    "Waitall": "mqx", "Waitany": "mqxx", "Waitsome": "mqxxx", "Test": "qxx", "Testall": "mqxx", "Testany": "mqxxx",
    "Testsome": "mqxxx",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AllprofCall:
    """An MPI call of a trace.

    Args:
        where: the file and the number of the line.
        name: the name of the function without `MPI_`.
        begin_s, end_s: the begin and the end of the call in seconds.
        fields: the arguments as strings.
        arguments: the arguments by the letters of _ARGUMENTS, as strings; empty for functions that are not there.
    """

    where: str
    name: str
    begin_s: float
    end_s: float
    fields: tuple[str, ...]
    arguments: dict[str, str]

    def get_int(self, letter: str) -> int:
        """Return the whole number that is the argument `letter`; 0 if the function has no such argument."""
        return parse_int(self.arguments.get(letter, "0"), self.where)

    def get_size(self, letter: str) -> int:
        """Return the bytes of an element of the datatype that is the argument `letter`."""
        return parse_int(self.arguments[letter].split(",")[1], self.where)

    def list_counts(self, letter: str) -> list[int]:
        """Return the numbers for all ranks that are the argument `letter`."""
        return [parse_int(count, self.where) for count in self.arguments[letter].split(",")]

    def get_own_rank(self) -> int:
        """Return the rank of the calling process in the communicator of the call; 0 for calls without one."""
        return parse_int(self.arguments["c"].split(",")[1], self.where) if "c" in self.arguments else 0

    @property
    def is_start(self) -> bool:
        """Whether the call starts operations with requests."""
        return "q" in self.arguments and self.name.startswith(("I", "Start"))

    @property
    def is_wait(self) -> bool:
        """Whether the call waits for all requests among its arguments."""
        return self.name in {"Wait", "Waitall"}


@dataclass(frozen=True, slots=True)
class AllprofTrace:
    """The calls of one rank of a trace.

    Args:
        path: the path of the file.
        host: the name of the rank's host; empty if the file does not state it.
        calls: the calls in the order in which they ended.
        is_of_mpich: whether the trace has the constants of MPICH and of libraries derived from MPICH.
        request_bytes: the bytes of a request in an array: 4 for MPICH and for Fortran, 8 for pointers of Open MPI.
        clock_drift_s: how far the difference to the clock of rank 0 changed from MPI_Init to MPI_Finalize.
    """

    path: Path
    host: str
    calls: tuple[AllprofCall, ...]
    is_of_mpich: bool
    request_bytes: int
    clock_drift_s: float

    @property
    def start_s(self) -> float:
        """The time at which MPI was initialized, or the begin of the first call of a trace without MPI_Init."""
        starts = (call.end_s for call in self.calls if call.name in {"Init", "Init_thread"})
        return next(starts, self.calls[0].begin_s)


def is_allprof(path: Path) -> bool:
    """Whether a regular file begins like a trace of liballprof; a pipe is not read."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError:
        return False
    return head.startswith(_HEADER) or _HEAD_LINE.search(head) is not None


def read_trace(path: Path) -> AllprofTrace:
    """Return the trace of one rank, with times of rank 0's clock.

    Raises:
        UsageError: the file cannot be read, a line is no call, or the file ends before MPI_Finalize.
    """
    try:
        text = read_limited(path, _MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as a trace of liballprof ({error}); copy the file again") from error
    host = re.search(r"# hostname: ([\w-]*)", text)
    offsets_us = [float(offset) for offset in _CLOCKS.findall(text)] or [0.0]  # although liballprof writes the unit s
    calls: list[AllprofCall] = []
    where = str(path)
    for where, line in _join_lines(text, path):
        calls.append(_parse_line(line, where, offsets_us[0]))
    if not calls or calls[-1].name != "Finalize":
        reason = f"ends before MPI_Finalize, with {calls[-1].name if calls else 'no call'}"
        raise UsageError(f"{where}: {reason}; copy the file after the job has ended, or record the job again")
    is_of_mpich = f":{_MPICH_WORLD}," in text
    is_fortran = any(call.arguments.get("c", "").startswith("0,") for call in calls)  # Open MPI's world is 0 there
    request_bytes = 4 if is_of_mpich or is_fortran else 8
    return AllprofTrace(
        path,
        host[1] if host else "",
        tuple(calls),
        is_of_mpich,
        request_bytes,
        1e-6 * abs(offsets_us[-1] - offsets_us[0]),
    )


def _join_lines(text: str, path: Path) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each call, for error messages; the parts of interrupted lines are joined."""
    begun: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if line.startswith(":") and begun:
            yield f"{path}:{number}", begun.pop() + line
            continue
        *outer, inner = _INNER_CALL.split(line)
        begun += outer
        yield f"{path}:{number}", inner


def _parse_line(line: str, where: str, offset_us: float) -> AllprofCall:
    """Return the call of a line at the place `where`, with `offset_us` added to its times.

    A time that is missing, as that before MPI_Init, is the other time of the line.
    """
    function, *fields = line.split(":")
    name = function.removeprefix("MPI_")
    is_call = _LINE.fullmatch(line) is not None
    times = [1e-6 * (float(time) + offset_us) for time in (fields[0], fields[-1]) if time != "-"] if is_call else []
    if not times or times[-1] < times[0]:
        remedy = "copy the file again, or record the job again by liballprof"
        raise UsageError(f"{where}: {line[:80]!r} is not of the form MPI_NAME:BEGIN:ARGUMENTS:END; {remedy}")
    arguments, place = dict[str, str](), 1
    for letter in _ARGUMENTS.get(name, ""):
        place += letter in "vVD"  # the address of an array comes before its numbers
        if place < len(fields) - 1:
            arguments[letter] = fields[place]
        place += 1
    is_complete = all(arguments[letter].count(",") == 2 for letter in "tTc" if letter in arguments)
    if name in _ARGUMENTS and (place != len(fields) - 1 or not is_complete):
        remedy = "copy the file again, or record the job by liballprof in place of liballprof2"
        raise UsageError(f"{where}: {line[:80]!r} is cut off, or lacks the sizes of datatypes; {remedy}")
    return AllprofCall(where, name, times[0], times[-1], tuple(fields[1:-1]), arguments)


def parse_int(text: str, where: str) -> int:
    """Return the whole number `text`; raise UsageError, which names the line `where`, if it is none."""
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"{where}: {text!r} is no whole number; copy the file again") from error
