"""Compare calls of communicators with on_failure="raise" with calls of default communicators, without any failure.

All communicators have the same ranks, in a job that can go on after the death of a rank. Each side has a communicator
of its own, with its own shared memory. The thread that asks MPI for dead ranks runs during all calls. The last record
has the time that the thread takes to ask.

    mpirun --with-ft ulfm -n 2 python bench/failure_cost.py --json failure_cost.jsonl
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
from compare import Bench, Case, Must, Side, all_reduce_check
from script import Result, main

from hpccoll.communicator import Communicator
from hpccoll.failures.endings import get_endings
from hpccoll.failures.survival import TICK_S
from hpccoll.records import SCHEMA

END, RAISE = 'on_failure="end"', 'on_failure="raise"'
SHORT, LONG = ("shared_one_shot", "recursive_doubling"), ("shared_two_shot", "ring")
SHORT_BYTES, LOOKS = 4096, 2000


def measure(bench: Bench) -> Iterator[Result]:
    """Yield a case per size and algorithm, then the record of the thread that asks MPI for dead ranks."""
    ending, raising = Communicator(bench.comm), Communicator(bench.comm, on_failure="raise")
    for nbytes in bench.sizes:
        x = np.zeros(max(nbytes // 4, 1), np.float32)
        for algorithm in SHORT if nbytes <= SHORT_BYTES else LONG:
            comms = bench.own, ending, raising
            first, second, raising_call = (partial(comm.all_reduce, x, algorithm=algorithm) for comm in comms)
            sides = [
                Side(END, first),
                Side(f"{END}, another one (A/A)", second),
                Side(RAISE, raising_call, (Must("no slower", END),)),
            ]
            batch = 100 if nbytes <= SHORT_BYTES else 1
            yield bench.run(Case(algorithm, nbytes, batch, sides, check=all_reduce_check(bench.comm, x)))
    yield time_looks(bench)
    raising.close()
    ending.close()


def time_looks(bench: Bench) -> Result:
    """Return a record of the time in which this rank asks MPI for dead ranks once, as its thread does."""
    endings = get_endings()
    watches = list(endings._watches.values())  # noqa: SLF001 - what the thread passes
    with endings.lock:
        begin = time.perf_counter()
        for _ in range(LOOKS):
            endings.survival.look(watches)
        us = (time.perf_counter() - begin) / LOOKS * 1e6
    share = us * 1e-6 / TICK_S
    line = f"{'':>8} the thread asks MPI {1 / TICK_S:.0f} times a second, {us:.1f} us each: {share:.4%} of a core"
    return {"schema": SCHEMA, "kind": "failure_watch", "script": bench.script, "us": us, "line": line}


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", "8,16M", measure))
