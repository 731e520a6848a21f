"""Compare calls that leave an entry in the flight recorder with calls that only count themselves.

Both sides run in turns, on communicators of the same ranks. The calls of one communicator only count themselves and
note their operation, which a call did before the flight recorder existed.

    mpirun -n 2 python bench/recorder.py --json recorder.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import patch

import numpy as np
from compare import Bench, Case, Floats, Must, Side, all_reduce_check
from script import Result, main

from hpccoll.communicator import Communicator
from hpccoll.runtime import engine
from hpccoll.runtime.recorder.call_recorder import CallRecorder

COUNTS = "counts"
ALGORITHMS = ("mpi", "ring", "shared_one_shot")


class CountingOnly(CallRecorder):
    """Counts the calls of this rank and notes the current one, but records no entry."""

    __slots__ = ()

    def begin(self, name: str, description: bytes) -> int:  # noqa: ARG002 - the description is not recorded
        """Count a call."""
        self.count += 1
        self.current = name
        return 0

    def end(self, place: int) -> None:  # noqa: ARG002 - there is no entry
        """Note the end of a call."""
        self.current = None


def measure(bench: Bench) -> Iterator[Result]:
    """Yield a case per size, algorithm and kind of call."""
    with patch.object(engine, "CallRecorder", CountingOnly):
        counting = Communicator(bench.comm)
    for nbytes in bench.sizes:
        x = np.zeros(max(nbytes // 4, 1), np.float32)
        for algorithm in ALGORITHMS:
            before, now = (comm.all_reduce_init(x, algorithm=algorithm) for comm in (counting, bench.own))
            yield compare(bench, f"{algorithm}, prepared", x, before, now)
            before.free()
            now.free()
            calls = [partial(comm.all_reduce, x, algorithm=algorithm) for comm in (counting, bench.own)]
            for call in calls * 3:
                call()
            yield compare(bench, f"{algorithm}, seen before", x, *calls)
    counting.close()


def compare(bench: Bench, name: str, x: Floats, before: Callable[[], object], now: Callable[[], object]) -> Case:
    """Compare two calls of all_reduce: one that only counts itself, and one that leaves an entry."""
    sides = [
        Side(COUNTS, before),
        Side(f"{COUNTS}, again (A/A)", before),
        Side("records", now, (Must("at most 1 us more", COUNTS, us=1.0),)),
    ]
    return bench.run(Case(name, x.nbytes, 100, sides, check=all_reduce_check(bench.comm, x)))


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", "8", measure))
