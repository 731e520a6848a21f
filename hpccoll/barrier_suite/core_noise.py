"""Real load for --noise: a process that keeps this rank's core busy, so that the rank gets half of the core's time."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from types import TracebackType
from typing import Self

import psutil

# The process that disturbs a core ends when its parent ends, also if the parent is killed.
_BURN = "import os, sys\nparent = int(sys.argv[1])\nwhile os.getppid() == parent:\n    sum(range(100000))\n"
_END_S = 5.0  # time in which the process ends after SIGTERM


class CoreNoise:
    """Context manager that disturbs this rank: another process keeps the rank's core busy (`hpccoll barrier --noise`).

    The calling thread is pinned to the core on which it runs. At the end, the process is terminated and the pinning
    undone. If `active` is false, nothing is done.
    """

    def __init__(self, active: bool) -> None:
        self._active = active
        self._cores: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if self._active:
            self._cores = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {psutil.Process().cpu_num()})
            # A child process runs on the core to which this thread is pinned.
            self._process = subprocess.Popen([sys.executable, "-c", _BURN, str(os.getpid())], stdin=subprocess.DEVNULL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            os.sched_setaffinity(0, self._cores)
