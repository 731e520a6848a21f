"""The processes of a node, as /proc shows them: who descends from whom, and how much they run."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def _parents() -> dict[int, int]:
    """Return all processes that can be seen, each with its parent."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError):  # ended meanwhile
                found[int(entry.name)] = int(_after_name(entry / "stat")[1])
    return found


def _after_name(stat: Path) -> list[str]:
    """Return the fields that follow the name, which may hold anything: state, parent, ..."""
    return stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()


def below(root: int) -> list[int]:
    """Return the processes that descend from process `root`."""
    parents = _parents()
    found: list[int] = []
    level = {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += level
    return found


def handles_cont(pid: int) -> bool:
    """Whether a process acts on SIGCONT, as srun does, which hands it on to all its tasks."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return True
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (signal.SIGCONT - 1) & 1)


def threads(pid: int) -> list[Path]:
    """Return the threads of a process; none if it has ended."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def ran_s(thread: Path) -> float | None:
    """Return how long a thread has run so far; None if it has ended."""
    try:
        return int((thread / "schedstat").read_text(encoding="ascii").split()[0]) * 1e-9
    except (OSError, IndexError):
        return None


def is_runnable(thread: Path) -> bool:
    """Whether a thread runs or waits for a core."""
    try:
        return _after_name(thread / "stat")[0] == "R"
    except (OSError, IndexError):
        return False


def running_everywhere() -> int:
    """Return how many threads of the whole machine run or wait for a core."""
    return int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0])


def send(pids: list[int], number: int) -> None:
    """Send a signal to all that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap() -> dict[int, int]:
    """Collect every process that has ended, orphans included, which are inherited; return their exit statuses."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended


def adopt() -> None:
    """Become the parent of orphans, as the first process of a namespace is: so that they end with this process."""
    import ctypes  # here, where it is not needed on every start

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end() -> None:
    """End everything that this process started; what it leaves behind while dying, too."""
    for _ in range(100):
        pids = below(os.getpid())
        reap()
        if not pids:
            return
        send(pids, signal.SIGKILL)
        time.sleep(0.01)
