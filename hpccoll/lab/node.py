"""The first process of a node: prepares it, starts slurmd, and can make the node slow. Run as a program of its own.

It reads words from standard input: `go` when the link is there, `slow PERCENT`; and ends the node when that closes.
Started with the bare interpreter, so that a node costs 20 ms and needs nothing of the project: only this file.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

CYCLE_S = 0.010  # short against what is measured, long against what a signal costs
LONGEST_STOP_S = 0.050
LOOK_S = 0.050  # between two looks for new processes
PR_SET_CHILD_SUBREAPER = 36


def processes() -> dict[int, int]:
    """Return all processes that can be seen, each with its parent."""
    found = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names are all that is wanted, a thousand times a second
        if entry.isdecimal():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
                found[int(entry)] = int(fields.split()[1])
            except (OSError, IndexError):
                continue  # ended meanwhile
    return found


def below(root: int) -> list[int]:
    """Return the processes that descend from process `root`."""
    parents = processes()
    found: list[int] = []
    level = {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += level
    return found


def handles_cont(pid: int) -> bool:
    """Whether a process acts on SIGCONT, as srun does, which hands it on to all its tasks: such are never stopped."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return True
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (signal.SIGCONT - 1) & 1)


def send(pids: list[int], number: int) -> None:
    """Send a signal to all that are still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def reap() -> None:
    """Collect every process that has ended: as their first process, a node inherits all orphans."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


class Brake:
    """Stops the node's processes for a share of the time."""

    def __init__(self) -> None:
        self.share = 0.0
        self.began = self.looked = 0.0
        self.stopped_s = 0.0
        self.pids: list[int] = []

    def set(self, percent: float) -> None:
        """Stop them for that percentage of the time from now on."""
        self.share, self.began, self.looked, self.stopped_s = percent / 100, time.monotonic(), 0.0, 0.0

    def turn(self) -> None:
        """Stop them for as long as they are behind their share, whatever the machine made of the last turns."""
        now = time.monotonic()
        if now - self.looked > LOOK_S:
            self.pids = [pid for pid in below(os.getpid()) if not handles_cont(pid)]
            self.looked = now
        owed = self.share * (now + CYCLE_S - self.began) - self.stopped_s
        if owed > 0:
            send(self.pids, signal.SIGSTOP)
            start = time.monotonic()
            try:
                time.sleep(min(owed, LONGEST_STOP_S))
            finally:
                send(self.pids, signal.SIGCONT)
            self.stopped_s += time.monotonic() - start

    def rest_s(self) -> float | None:
        """How long until the next turn; None where the node runs freely."""
        return CYCLE_S * (1 - self.share) if self.share else None


def prepare(name: str, task: dict[str, list[str] | str]) -> None:
    """Give the node its name, shared memory, /tmp and address; the link is there already."""
    socket.sethostname(name)
    mount = ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs"]
    subprocess.run([*mount, "/dev/shm"], check=True)  # noqa: S108 - the node's own
    tmp = str(task["tmp"])
    subprocess.run([*mount, tmp], check=True)
    for share in task["shares"]:
        inside = Path(tmp + share.removeprefix("/tmp"))  # noqa: S108 - what the node's own /tmp would hide
        if Path(share).is_dir():
            inside.mkdir(parents=True, exist_ok=True)
        else:
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.touch()
        subprocess.run(["mount", "--rbind", share, str(inside)], check=True)
    subprocess.run(["mount", "--rbind", tmp, "/tmp"], check=True)  # noqa: S108 - see above
    subprocess.run(["ip", "-batch", "-"], input=str(task["ip"]), text=True, check=True)


def end() -> None:
    """End everything that this node started; what it leaves behind while dying, too."""
    for _ in range(100):
        pids = below(os.getpid())
        reap()
        if not pids:
            return
        send(pids, signal.SIGKILL)
        time.sleep(0.01)


def serve(daemon: list[str]) -> None:
    """Start slurmd, then do what standard input says until it closes."""
    process = subprocess.Popen(daemon, stdin=subprocess.DEVNULL)
    process.returncode = 0  # reaped here with all others
    brake, pending = Brake(), b""
    while True:
        rest = brake.rest_s()
        ready, _, _ = select.select([0], [], [], 0.2 if rest is None else rest)
        reap()
        if ready:
            read = os.read(0, 4096)
            if not read:
                return
            *lines, pending = (pending + read).split(b"\n")
            for line in lines:
                brake.set(float(line.split()[1]))
        if brake.share:
            brake.turn()


def main() -> int:
    """Be the node that the only argument describes."""
    task = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if task["apart"]:
        if os.read(0, 3) != b"go\n":
            return 1
        prepare(task["name"], task)
    else:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans come here, and end with the node
    try:
        serve(task["slurmd"])
    finally:
        end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
