"""Read descendants, threads and CPU times of processes from /proc, send them signals, and reap children."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def _read_parents() -> dict[int, int]:
    """Return a dict from the ID of each visible process to the ID of its parent."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError):  # the process has ended meanwhile
                parents[int(entry.name)] = int(_read_stat(entry / "stat")[1])
    return parents


def _read_stat(stat: Path) -> list[str]:
    """Return the fields of a /proc stat file that follow the command name: the state, the parent, and so on."""
    return stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()


def find_descendants(root: int) -> list[int]:
    """Return the process IDs of the descendants of process `root`, without `root` itself."""
    parents = _read_parents()
    descendants: list[int] = []
    level = {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        descendants += level
    return descendants


def handles_sigcont(pid: int) -> bool:
    """Whether a process has a handler for SIGCONT, or has ended; in both cases it must not be stopped.

    srun handles SIGCONT: srun forwards the signal to its tasks.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return True
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (signal.SIGCONT - 1) & 1)


def list_threads(pid: int) -> list[Path]:
    """Return the /proc directories of the threads of a process; an empty list if the process has ended."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def read_run_s(thread: Path) -> float | None:
    """Return the CPU seconds that a thread, given by its /proc directory, has used; None if the thread has ended."""
    try:
        return int((thread / "schedstat").read_text(encoding="ascii").split()[0]) * 1e-9
    except (OSError, IndexError):
        return None


def is_runnable(thread: Path) -> bool:
    """Whether a thread, given by its /proc directory, runs or waits for a core; false if it has ended."""
    try:
        return _read_stat(thread / "stat")[0] == "R"
    except (OSError, IndexError):
        return False


def count_runnable_threads() -> int:
    """Return the number of threads on the whole machine that run or wait for a core."""
    return int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0])


def send_signal(pids: list[int], number: int) -> None:
    """Send signal `number` to each process in `pids` that still exists."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap_children() -> dict[int, int]:
    """Reap all children that have ended, including adopted orphans; return exit statuses by ID; do not wait."""
    statuses: dict[int, int] = {}
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return statuses


def become_subreaper() -> None:
    """Make this process the parent of its orphaned descendants, as the init process of a PID namespace is."""
    import ctypes  # imported here because only flat mode needs it

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> None:
    """Kill all descendants of this process, including new ones, and wait until they end (at most about a second)."""
    for _ in range(100):
        pids = find_descendants(os.getpid())
        reap_children()
        if not pids:
            return
        send_signal(pids, signal.SIGKILL)
        time.sleep(0.01)
