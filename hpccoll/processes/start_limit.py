"""Ends a process whose start of MPI takes too long."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

# This program kills its parent process with a message unless it reads something from standard input in time.
# The watchdog is a process, because no Python thread or signal handler would run while MPI_Init hangs in C.
_WATCHDOG: Final = """
import os, select, signal, sys
limit, parent, message = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if not select.select([0], [], [], limit)[0] and os.getppid() == parent:
    sys.stderr.write(message + "\\n")
    sys.stderr.flush()
    os.kill(parent, signal.SIGKILL)
"""


@contextmanager
def kill_after(limit_s: float, message: str) -> Iterator[None]:
    """Context manager: if its body takes longer than `limit_s` seconds, print `message` and kill this process."""
    command = [sys.executable, "-S", "-E", "-c", _WATCHDOG, str(limit_s), str(os.getpid()), message]
    watchdog = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):
            watchdog.communicate(b"done")
