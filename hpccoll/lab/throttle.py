"""Program that throttles the processes of one node to a fraction of their CPU time.

    python -m hpccoll.lab.throttle PERCENT ROOT OTHER_ROOT...

The program repeatedly stops and continues all descendants of process ROOT until it receives SIGTERM. OTHER_ROOT are the
IDs of the other nodes' init processes, from whose CPU time the program estimates a node's speed without throttling.
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

CYCLE_S = 0.004  # a cycle is short compared with a measurement, and long compared with the cost of a signal
LONGEST_STOP_S = 0.200
SCAN_INTERVAL_S = 0.050  # seconds between two scans for new threads
BUSY_S = 0.0002  # a thread that runs less than this between two scans counts as sleeping
IDLE_S = 1.0  # a thread stays busy this long after it last ran: a throttled thread may not run in every interval
SMOOTHING = 0.8  # weight of the previous average in exponential averages
MAX_CREDIT_S = 0.004  # CPU time that a node may save up while it waits for other nodes
PRIORITY = -10  # nice value that lets signals go out in time; only root can set it


class BusyThreads:
    """The threads that use CPU time among the descendants of the processes `roots`, and their CPU times.

    Sleeping threads, such as those of SLURM's daemons, are left out, because stopping them has no effect and continuing
    them makes them look busy. Processes that handle SIGCONT are left out, because one of them, srun, forwards this
    signal to its tasks.
    """

    def __init__(self, roots: Iterable[int]) -> None:
        self.roots = tuple(roots)
        self.last_run_s: dict[Path, float] = {}  # CPU seconds of every thread at the last scan
        self.last_busy: dict[Path, float] = {}  # time of the scan that last found a thread busy
        self.counted_s: dict[Path, float] = {}  # CPU seconds already returned by `read_new_cpu_s`
        self.pids: list[int] = []
        self.mean_running = 0.0

    def scan(self) -> None:
        """Find the busy threads in /proc, and store the IDs of their processes in `pids`."""
        descendants = [pid for root in self.roots for pid in processes.find_descendants(root)]
        pids = [pid for pid in descendants if not processes.handles_sigcont(pid)]
        owner = {thread: pid for pid in pids for thread in processes.list_threads(pid)}
        run_s = {thread: processes.read_run_s(thread) or 0.0 for thread in owner}
        now = time.monotonic()
        for thread, seconds in run_s.items():
            if seconds - self.last_run_s.get(thread, seconds) > BUSY_S:
                self.last_busy[thread] = now
        last_busy = self.last_busy.items()
        self.last_busy = {thread: last for thread, last in last_busy if thread in run_s and now - last < IDLE_S}
        self.counted_s = {thread: self.counted_s.get(thread, run_s[thread]) for thread in self.last_busy}
        self.last_run_s = run_s
        self.pids = sorted({owner[thread] for thread in self.counted_s})

    def read_new_cpu_s(self) -> float:
        """Return the CPU seconds that the busy threads have used since the last call.

        Also updates `mean_running`, the mean number of busy threads that run or wait for a core.
        """
        total = 0.0
        for thread, before in self.counted_s.items():
            run_s = processes.read_run_s(thread)
            if run_s is not None:
                total += run_s - before
                self.counted_s[thread] = run_s
        running = sum(processes.is_runnable(thread) for thread in self.counted_s)
        self.mean_running += (running - self.mean_running) * (1 - SMOOTHING)
        return total


class CpuThrottle:
    """Limits a node's processes to a fraction of the CPU time that they would get otherwise.

    Stopping the processes for a fraction of wall-clock time is not enough, because a busy machine's scheduler favours
    threads that were stopped. The throttle therefore counts and limits CPU time. Without throttling, each running
    thread is assumed to get a whole core, or an equal share of the cores if more threads run than there are cores. If
    the average running thread of the other nodes gets less than the assumed share of a core, its share is assumed.

    The processes of the throttled node lose `percent` percent of their CPU time. `root` is the ID of the init process
    of the throttled node, and `other_roots` are the IDs of the init processes of the other nodes.
    """

    def __init__(self, percent: float, root: int, other_roots: Iterable[int]) -> None:
        self.stopped_share = percent / 100
        self.cores = len(os.sched_getaffinity(0))
        self.own, self.others = BusyThreads([root]), BusyThreads(other_roots)
        self.mean_runnable = 0.0  # mean number of runnable threads on the whole machine
        self.core_share = 1.0  # share of a core that a running thread would get unthrottled
        self.credit_s = 0.0
        self.last_step = self.last_scan = time.monotonic()
        self.own.scan()
        self.others.scan()

    def run(self) -> None:
        """Throttle until a signal ends this process."""
        while True:
            self.step()
            time.sleep(CYCLE_S * (1 - self.stopped_share))

    def step(self) -> None:
        """Count the CPU time since the last call; if it exceeds the limit, stop the node's processes for a while.

        The processes continue when the allowed CPU time reaches the used CPU time, at the latest after LONGEST_STOP_S.
        """
        now = time.monotonic()
        used_s = self.own.read_new_cpu_s()
        if now - self.last_scan > SCAN_INTERVAL_S:
            self.update_reference(now)
        allowed = (1 - self.stopped_share) * max(self.own.mean_running, 1.0) * self.core_share
        self.credit_s = min(self.credit_s - used_s + allowed * (now - self.last_step), MAX_CREDIT_S)
        self.last_step = now
        if self.credit_s < 0:
            try:
                processes.send_signal(self.own.pids, signal.SIGSTOP)
                time.sleep(min(-self.credit_s / allowed, LONGEST_STOP_S))
            finally:
                processes.send_signal(self.own.pids, signal.SIGCONT)

    def update_reference(self, now: float) -> None:
        """Update `core_share`, the share of a core that a running thread would get unthrottled, and find new threads.

        `now` is the present time of the monotonic clock in seconds.
        """
        elapsed_s, self.last_scan = now - self.last_scan, now
        self.mean_runnable += (processes.count_runnable_threads() - self.mean_runnable) * (1 - SMOOTHING)
        share = min(1.0, self.cores / max(self.mean_runnable, 1.0))
        used_s = self.others.read_new_cpu_s()
        if self.others.mean_running > 0.5:
            share = min(share, used_s / elapsed_s / self.others.mean_running)
        self.core_share += (max(share, 0.02) - self.core_share) * (1 - SMOOTHING)
        self.own.scan()
        self.others.scan()


def main() -> None:
    """Throttle the node whose init process the command line names, until this process receives SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the exit runs `finally`, which continues stopped processes
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    percent, root, *other_roots = sys.argv[1:]
    CpuThrottle(float(percent), int(root), map(int, other_roots)).run()


if __name__ == "__main__":
    main()
