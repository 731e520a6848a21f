"""Notes about the processes of a job, in the header of a recorder file: signs of life, and states of other ranks.

A thread of each rank writes the notes through the rank's `FlightRecorder` (hpccoll/failures/endings.py). After a crash,
the notes tell when the rank was last alive, which line of the program it executed then, which other ranks it saw end,
and whether it ended the job itself.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from hpccoll.printable import escape_unprintable
from hpccoll.private_files import open_private

NOTES_AT: Final = 2048  # in the header, behind the string that tells how the program ended
# Monotonic times (ns): the last sign of life, and the moment at which the rank began to end the job; 0 if never.
NOTES: Final = struct.Struct("<qq")
LOCATION_AT: Final = NOTES_AT + 16
LOCATION_LENGTH: Final = struct.Struct("<I")
LOCATION_BYTES: Final = 500
MUTEX_AT: Final = 2688  # of a robust mutex that this process holds (failures/process_watch.py)
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
    """The state of the process of rank `rank`, as another rank saw it at a monotonic time."""

    time_ns: int
    rank: int
    state: ObservedState


@dataclass(frozen=True, slots=True)
class ProcessNotes:
    """The notes about processes in a recorder file; times are nanoseconds of the rank's monotonic clock.

    Attributes:
        alive_ns: when the rank wrote the last sign of life; None if it wrote none, as in a job of one rank.
        ended_job_ns: when the rank began to end the job; None if it did not.
        location: the line of the program that the rank executed at the last sign of life; empty if unknown.
        observations: the states in which the rank saw other ranks' processes.
    """

    alive_ns: int | None = None
    ended_job_ns: int | None = None
    location: str = ""
    observations: tuple[Observation, ...] = ()


def parse_notes(contents: bytes) -> ProcessNotes:
    """Return the notes about processes in the contents of a recorder file."""
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
    """Return the monotonic time (ns) of the last sign of life in a recorder file's mapped memory; 0 if none exists."""
    return int(NOTES.unpack_from(memory, NOTES_AT)[0])


def read_process_state(process: int) -> str:
    """Return the letter for a process's state in /proc/PID/stat, such as R if it runs or waits for a core."""
    with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as status:  # noqa: PTH123 - fast
        return status.read().rpartition(") ")[2][:1]


def read_end_of_job(path: str) -> int:
    """Return the monotonic time (ns) at which the rank of a recorder file began to end the job.

    Return 0 if the rank has not ended the job, or if the file cannot be read.
    """
    try:
        with os.fdopen(open_private(path), "rb") as file:
            file.seek(NOTES_AT)
            contents = file.read(NOTES.size)
    except OSError:
        return 0
    return int(NOTES.unpack(contents)[1]) if len(contents) == NOTES.size else 0
