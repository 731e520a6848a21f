"""Measure the overhead of `hpccoll bench` by comparing its `mpi` engine with a hand-written mpi4py loop.

The code of `hpccoll bench` times the engine and validates every result. Each iteration starts after a barrier; where
every rank has a core, another side starts in windows of a global clock. The first loop in mpi4py reads
time.perf_counter before and after each call, and starts each call after a barrier, so its times contain the skew of
the barrier. The second loop times several calls without barriers between them, and divides by their number, as the
Intel MPI Benchmarks do. Start windows are compared with the second loop up to 1 KiB. Longer messages stay in caches in
the second loop, so they are compared with the first loop. All sides use the same buffers, with the same contents.

    mpirun -n 2 python bench/mpi_engine.py --json mpi_engine.jsonl
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from compare import Bench, Case, Must, Side
from mpi4py import MPI
from script import Result, main

from hpccoll.arrays import NUMPY, get_dtype
from hpccoll.measure.contenders import prepare_peer
from hpccoll.measure.interleaved import Contender, InterleavedBenchmark, TimingOptions
from hpccoll.measure.iteration_start import WindowStarter
from hpccoll.measure.stopping import StoppingRule
from hpccoll.measure.workload import Workload, WorkloadSpec
from hpccoll.peers import MpiEngine
from hpccoll.plan import Operation
from hpccoll.runtime import job

ENGINE, IN_WINDOWS = "mpi engine of hpccoll bench", "mpi engine, start windows"
LOOP, BACK_TO_BACK = "loop", "loop without barriers"
CALLS, LATENCY_BYTES = 20, 1024  # calls in a sample without barriers; largest message whose time is mostly latency
METHOD = TimingOptions(StoppingRule(5, 2000, 0.025, 1.0), warmup=1, check=True, seed=0)


def agree_with(loop: str) -> Must:
    """Return the requirement that a side agree with a loop."""
    return Must(f"within 5 % or 1 us of the {loop}", loop, share=0.05, us=1.0, both_ways=True)


def measure(bench: Bench) -> Iterator[Result]:
    """Yield a case for each size, out of place and in place."""
    for nbytes in bench.sizes:
        for in_place in (False, True):
            yield bench.run(engine_case(bench, max(nbytes // 4, 1), in_place))


def engine_case(bench: Bench, count: int, in_place: bool) -> Case:
    """Return the case of the engine, timed by the code of `hpccoll bench`, and of the loop, on the same buffers."""
    comm = bench.comm
    task = WorkloadSpec(Operation.ALL_REDUCE, count, get_dtype("float32"), "sum", 0, in_place, comm.rank, comm.size)
    workload = Workload(task, NUMPY)
    contender = prepare_peer(MpiEngine(comm), workload)
    benchmark = InterleavedBenchmark(comm, workload, [contender], METHOD)
    benchmark.warm_up(contender)
    loops = [by_hand(comm, workload, in_place) for _ in range(2)]
    sides = [
        Side(LOOP, loops[0][0], seconds=loops[0][1]),
        Side("loop again (A/A)", loops[1][0], seconds=loops[1][1]),
        Side(BACK_TO_BACK, loops[0][0], seconds=loops[0][2]),
        Side(ENGINE, contender.call, (agree_with(LOOP),), seconds=lambda: benchmark.time_iteration(contender)[0]),
    ]
    if comm.size > 1 and not job.detect_layout(comm).oversubscribed:
        windows = InterleavedBenchmark(comm, workload, [contender], METHOD, WindowStarter(comm))
        must = agree_with(BACK_TO_BACK if count * 4 <= LATENCY_BYTES else LOOP)
        sides.append(
            Side(IN_WINDOWS, contender.call, (must,), seconds=lambda: time_in_window(comm, windows, contender))
        )

    def check(call: Callable[[], object]) -> int:
        workload.reset()
        call()
        return workload.count_wrong()

    name = "in place" if in_place else "out of place"
    return Case(name, count * 4, 1, sides, check=check, late=lambda: (ENGINE, contender.wrong or 0))


def time_in_window(comm: MPI.Intracomm, windows: InterleavedBenchmark, contender: Contender) -> float:
    """Return this rank's seconds of an iteration that all ranks started in time; repeat late iterations."""
    while True:
        windows.starter.refresh()
        contender.start = windows.starter.method
        timed = windows.time_iteration(contender)
        if not comm.allreduce(timed.late, MPI.LOR):
            return timed.seconds


def by_hand(
    comm: MPI.Intracomm, workload: Workload, in_place: bool
) -> tuple[Callable[[], None], Callable[[], float], Callable[[], float]]:
    """Return an all-reduce in plain mpi4py, and functions that time one call and CALLS calls, in seconds per call."""
    x: Any = workload.source
    out: Any = workload.result
    data = workload.make_inputs()[comm.rank]

    def call() -> None:
        if in_place:
            comm.Allreduce(MPI.IN_PLACE, [x, MPI.FLOAT])
        else:
            comm.Allreduce([x, MPI.FLOAT], [out, MPI.FLOAT])

    def seconds(calls: int = 1) -> float:
        out[:] = 0
        x[:] = data
        comm.Barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begin) / calls

    return call, seconds, lambda: seconds(CALLS)


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", "8,1K,64K,1M,16M", measure))
