"""The brake: makes the processes of a node slow, whether the machine is idle or full. A program of its own.

    python -m hpccoll.lab.throttle PERCENT ROOT OTHER...

Everything below process ROOT is slowed until this program is told to end; OTHER are the roots of the other nodes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from hpccoll.lab import processes

CYCLE_S = 0.004  # short against what is measured, long against what a signal costs
LONGEST_STOP_S = 0.200
LOOK_S = 0.050  # between two looks for new processes, and at other nodes
WORK_S = 0.0002  # who runs less from one look to the next mostly sleeps
IDLE_S = 1.0  # after which one that worked counts no more; a braked one may have no turn for a while
MEMORY = 0.8  # of what was seen in the last turns
AHEAD_S = 0.004  # running time that a node may save up while it waits for others
FIRST = -10  # the nice level at which signals are sent in time; as root only


class BusyThreads:
    """The threads below some processes that do work, and how long they run.

    Those that mostly sleep, as SLURM's do, are left out: to stop them changes nothing, and each time they are let go
    they look like busy ones. So is what handles SIGCONT (srun), which would hand it on to all its tasks.
    """

    def __init__(self, roots: Iterable[int]) -> None:
        self.roots = tuple(roots)
        self.noted: dict[Path, float] = {}
        self.worked: dict[Path, float] = {}  # when it was last seen to
        self.ran: dict[Path, float] = {}
        self.pids: list[int] = []
        self.running = 0.0

    def look(self) -> None:
        """Find those that worked since the last look."""
        found = [pid for root in self.roots for pid in processes.below(root) if not processes.handles_cont(pid)]
        owner = {thread: pid for pid in found for thread in processes.threads(pid)}
        noted = {thread: processes.ran_s(thread) or 0.0 for thread in owner}
        now = time.monotonic()
        for thread, ran in noted.items():
            if ran - self.noted.get(thread, ran) > WORK_S:
                self.worked[thread] = now
        self.worked = {each: last for each, last in self.worked.items() if each in noted and now - last < IDLE_S}
        self.ran = {thread: self.ran.get(thread, noted[thread]) for thread in self.worked}
        self.noted = noted
        self.pids = sorted({owner[thread] for thread in self.ran})

    def used_s(self) -> float:
        """Return how long all of them together have run since this was last asked; note how many run now."""
        total = 0.0
        for thread, before in self.ran.items():
            ran = processes.ran_s(thread)
            if ran is not None:
                total += ran - before
                self.ran[thread] = ran
        now = sum(processes.is_runnable(thread) for thread in self.ran)
        self.running += (now - self.running) * (1 - MEMORY)
        return total


class CpuThrottle:
    """Lets a node's processes run for a part of the time that they would have without it, by stopping all of them.

    To stop them for a share of the clock would not do: on a machine that is full, who has stood still goes first when
    it may run again, and makes up for it. So their running time is counted, and held to a part of what they would have:
    a core for each running thread, or its share of the cores where more threads than cores run; but no more than the
    running threads of the other nodes get.
    """

    def __init__(self, percent: float, root: int, others: Iterable[int]) -> None:
        self.share = percent / 100
        self.cores = len(os.sched_getaffinity(0))
        self.own, self.others = BusyThreads([root]), BusyThreads(others)
        self.everywhere = 0.0
        self.fair = 1.0
        self.ahead_s = 0.0
        self.last = self.looked = time.monotonic()
        self.own.look()
        self.others.look()

    def run(self) -> None:
        """Brake until told to end."""
        while True:
            self.turn()
            time.sleep(CYCLE_S * (1 - self.share))

    def turn(self) -> None:
        """Count what they ran, and stop them for as long as it was too much."""
        now = time.monotonic()
        used_s = self.own.used_s()
        if now - self.looked > LOOK_S:
            self.estimate(now)
        allowed = (1 - self.share) * max(self.own.running, 1.0) * self.fair
        self.ahead_s = min(self.ahead_s - used_s + allowed * (now - self.last), AHEAD_S)
        self.last = now
        if self.ahead_s < 0:
            try:
                processes.send(self.own.pids, signal.SIGSTOP)
                time.sleep(min(-self.ahead_s / allowed, LONGEST_STOP_S))
            finally:
                processes.send(self.own.pids, signal.SIGCONT)

    def estimate(self, now: float) -> None:
        """Look again who is there, and what share of a core a running thread gets."""
        passed_s, self.looked = now - self.looked, now
        self.everywhere += (processes.running_everywhere() - self.everywhere) * (1 - MEMORY)
        fair = min(1.0, self.cores / max(self.everywhere, 1.0))
        used_s = self.others.used_s()
        if self.others.running > 0.5:
            fair = min(fair, used_s / passed_s / self.others.running)
        self.fair += (max(fair, 0.02) - self.fair) * (1 - MEMORY)
        self.own.look()
        self.others.look()


def main() -> None:
    """Brake what the arguments name."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that nothing is left standing
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, FIRST)
    percent, root, *others = sys.argv[1:]
    CpuThrottle(float(percent), int(root), map(int, others)).run()


if __name__ == "__main__":
    main()
