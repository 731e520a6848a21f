"""Ends the processes of MPI jobs that tests have started, such as ranks that wait for ever after their launcher died.

Launchers start ranks in sessions of their own, so that no process group has them all. Tests therefore set the variable
MARK in the environment of a job; all of its processes inherit it. `python tests/remaining_processes.py VALUE` ends the
processes that have MARK=VALUE in their environment, and prints how many there were.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

MARK: Final = "JOB_OF_TEST"


def find_processes(value: str) -> list[int]:
    """Return the ids of this user's processes, without this one, whose environment has MARK=VALUE."""
    found, entry = [], f"{MARK}={value}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # the process has ended, or belongs to another user
            if entry in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


def end_processes(value: str) -> int:
    """Kill the processes of `find_processes`; return how many there were."""
    found = find_processes(value)
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return len(found)


def print_stacks(value: str) -> None:
    """Let the Python processes of `find_processes` print their stacks, if PYTHONFAULTHANDLER is set, and end."""
    for process in find_processes(value):
        with suppress(OSError):
            if Path(f"/proc/{process}/exe").samefile(sys.executable):
                os.kill(process, signal.SIGABRT)


if __name__ == "__main__":
    ended = end_processes(sys.argv[1])
    if ended:
        print(f"== ended {ended} processes that the tests had left")
