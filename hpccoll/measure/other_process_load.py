"""Measures how many cores other programs keep busy while a benchmark runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from mpi4py import MPI

BUSY = 0.2  # busy cores of other programs above which measurements are doubtful


class OtherProcessLoad:
    """Measures how many cores other programs keep busy, for jobs on one node; the constructor is collective."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm, self._begin, self._busy = comm, time.perf_counter(), self._sum_busy_s(comm)

    def measure_busy_cores(self) -> float:
        """Return the mean number of cores that other programs kept busy since this object was created; collective."""
        busy = self._sum_busy_s(self._comm) - self._busy
        return max(0.0, float(self._comm.bcast(busy / (time.perf_counter() - self._begin))))

    @staticmethod
    def _sum_busy_s(comm: MPI.Intracomm) -> float:
        """Return the CPU seconds that other programs have used on this node since it booted; collective over `comm`.

        The CPU seconds of the ranks of `comm` are subtracted from those of all processes.
        """
        mine, spent = psutil.Process().cpu_times(), psutil.cpu_times()
        ranks = comm.allreduce(mine.user + mine.system)
        return float(sum(spent) - spent.idle - getattr(spent, "iowait", 0.0) - getattr(spent, "guest", 0.0) - ranks)
