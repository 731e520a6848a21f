"""Notes about the processes of a job, in the header of a recorder file: signs of life, and states of other ranks.

A thread of the rank writes the notes (watchdog.py). After a crash, the notes tell when the rank was last alive, which
line of the program it executed then, which other ranks it saw end, and whether it ended the job itself.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from threading import Lock
from typing import Final

from hpccoll.printable import escape_unprintable
from hpccoll.private_files import open_private

NOTES_AT: Final = 2048  # in the header, behind the string that tells how the program ended
# Monotonic times (ns): the last sign of life, and the moment at which the rank began to end the job; 0 if never.
NOTES: Final = struct.Struct("<qq")
LOCATION_AT: Final = NOTES_AT + 16
LOCATION_LENGTH: Final = struct.Struct("<I")
LOCATION_BYTES: Final = 500
MUTEX_AT: Final = 2688  # of a robust mutex that this process holds (process_watch.py)
MUTEX_BYTES: Final = 120  # at least the size of pthread_mutex_t
HELD_AT: Final = MUTEX_AT + MUTEX_BYTES  # a byte that is 1 once the process holds the mutex
OBSERVATIONS_AT: Final = 3072
OBSERVATION: Final = struct.Struct("<qii")  # monotonic time (ns; 0: no observation), observed rank, state
OBSERVATIONS: Final = 32
STOPPED_LETTERS: Final = "Tt"  # of `read_process_state`: stopped by a signal, by a debugger
DEAD_LETTERS: Final = "ZXx"


class ObservedState(IntEnum):
    """The state in which a rank saw the process of another rank."""

    DEAD = 1
    STOPPED = 2
    RUNNING = 3  # neither, although it writes no signs of life; it may wait for a core


@dataclass(frozen=True, slots=True)
class Observation:
    """The state in which a rank saw the process of the rank `rank` at a monotonic time."""

    time_ns: int
    rank: int
    state: ObservedState


@dataclass(frozen=True, slots=True)
class ProcessNotes:
    """The notes in a recorder file.

    Attributes:
        alive_ns: the last sign of life; None if there is none, as in a job of one rank.
        ended_job_ns: when the rank began to end the job; None if it did not.
        location: the line of the program that the rank executed at the last sign of life; empty if unknown.
        observations: the states in which the rank saw other ranks' processes.
    """

    alive_ns: int | None = None
    ended_job_ns: int | None = None
    location: str = ""
    observations: tuple[Observation, ...] = ()


class NotesWriter:
    """Writes the notes of this process into the mapped memory of its recorder file."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory, self._lock = memory, Lock()
        self._places: dict[tuple[int, bool], int] = {}  # of observations, by the rank and whether it was dead

    def write_sign_of_life(self, now_ns: int, location: str) -> None:
        """Record that this process is alive, and the line of the program that it executes."""
        text = location.encode()[:LOCATION_BYTES]
        begin = LOCATION_AT + LOCATION_LENGTH.size
        LOCATION_LENGTH.pack_into(self._memory, LOCATION_AT, 0)  # no reader sees a part of the old and the new line
        self._memory[begin : begin + len(text)] = text
        LOCATION_LENGTH.pack_into(self._memory, LOCATION_AT, len(text))
        struct.pack_into("<q", self._memory, NOTES_AT, now_ns)

    def write_end_of_job(self, now_ns: int) -> None:
        """Record that this rank ends the job now, so that the other ranks' processes will end."""
        struct.pack_into("<q", self._memory, NOTES_AT + 8, now_ns)

    def observe(self, now_ns: int, rank: int, state: ObservedState) -> None:
        """Record the state in which this rank sees another rank's process; a process that is not dead may change it.

        Only the first 32 observations are kept.
        """
        with self._lock:  # several threads observe
            place = self._places.setdefault((rank, state is ObservedState.DEAD), len(self._places))
            if place < OBSERVATIONS:
                OBSERVATION.pack_into(self._memory, OBSERVATIONS_AT + place * OBSERVATION.size, now_ns, rank, state)


def parse_notes(contents: bytes) -> ProcessNotes:
    """Return the notes in the contents of a recorder file."""
    alive, ended_job = NOTES.unpack_from(contents, NOTES_AT)
    (length,) = LOCATION_LENGTH.unpack_from(contents, LOCATION_AT)
    begin = LOCATION_AT + LOCATION_LENGTH.size
    location = escape_unprintable(contents[begin : begin + min(length, LOCATION_BYTES)].decode(errors="replace"))
    observations = []
    for index in range(OBSERVATIONS):
        time_ns, rank, state = OBSERVATION.unpack_from(contents, OBSERVATIONS_AT + index * OBSERVATION.size)
        if time_ns > 0 and state in tuple(ObservedState):
            observations.append(Observation(time_ns, rank, ObservedState(state)))
    return ProcessNotes(alive or None, ended_job or None, location, tuple(observations))


def read_sign_of_life(memory: mmap.mmap) -> int:
    """Return the time of the last sign of life in the mapped memory of a recorder file; 0 if there is none."""
    return int(NOTES.unpack_from(memory, NOTES_AT)[0])


def read_process_state(process: int) -> str:
    """Return the letter for a process's state in /proc/PID/stat, such as R if it runs or waits for a core."""
    with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as status:  # noqa: PTH123 - fast
        return status.read().rpartition(") ")[2][:1]


def read_end_of_job(path: str) -> int:
    """Return when the rank that writes a recorder file began to end the job, on its clock; 0 if it did not."""
    try:
        with os.fdopen(open_private(path), "rb") as file:
            file.seek(NOTES_AT)
            contents = file.read(NOTES.size)
    except OSError:
        return 0
    return int(NOTES.unpack(contents)[1]) if len(contents) == NOTES.size else 0
