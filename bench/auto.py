"""Compare `algorithm="auto"` with every algorithm, the MPI library and Gloo, on the same buffers.

The best side has the smallest median of a case. The minimum of many medians is biased low; the A/A row shows by how
much. The requirement is that `auto` takes at most 1.5 us longer than the best, or that the lower end of the 95 %
interval of auto / best is at most 1.05.

    mpirun -n 2 python bench/auto.py --json auto.jsonl
    mpirun -n 2 hpccoll tune all_reduce --output t.json; HPCCOLL_TUNING=t.json mpirun -n 2 python bench/auto.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from compare import Bench, Case, Side
from script import Result, main

from hpccoll import peers
from hpccoll.algorithms import list_algorithm_names
from hpccoll.arrays import ArrayModule, get_dtype
from hpccoll.errors import HpccollError, UsageError
from hpccoll.measure.buffers import PreallocatedModule, make_buffer_module
from hpccoll.measure.contenders import prepare_own, prepare_peer
from hpccoll.measure.workload import Workload, WorkloadSpec
from hpccoll.plan import Operation
from hpccoll.records import SCHEMA
from hpccoll.statistics import ratio_of_medians
from hpccoll.units import format_size

AUTO, AGAIN = "auto", "auto again (A/A)"
SHARE, US = 1.05, 1.5
BUFFERS = ("host", "symmetric")
MORE = 8192  # extra bytes, so that each of two buffers can begin at a page boundary


def measure(bench: Bench) -> Iterator[Result]:
    """Yield the case of each kind of buffer and size, followed by a record that judges auto."""
    engines, _ = peers.start_engines(bench.comm, ("mpi", "gloo"))
    for buffer in BUFFERS:
        module = make_buffer_module(buffer, bench.own, 2 * max(bench.sizes) + MORE)
        for nbytes in bench.sizes:
            case, free = contest(bench, buffer, module, nbytes, engines)
            yield bench.run(case)
            yield make_auto_record(bench, case, buffer)
            for each in free:
                each()
    for engine in engines:
        engine.close()


def contest(
    bench: Bench, buffer: str, module: ArrayModule, nbytes: int, engines: list[peers.LibraryEngine]
) -> tuple[Case, list[Callable[[], None]]]:
    """Prepare all algorithms and engines on one all-reduce in place; return the case, and functions that free them."""
    if isinstance(module, PreallocatedModule):
        module.rewind()
    comm, count = bench.comm, max(nbytes // 4, 1)
    workload = Workload(
        WorkloadSpec(Operation.ALL_REDUCE, count, get_dtype("float32"), "sum", 0, True, comm.rank, comm.size), module
    )
    ready = [("auto", prepare_own(bench.own, workload, "auto")), (AGAIN, prepare_own(bench.own, workload, "auto"))]
    for name in list_algorithm_names(Operation.ALL_REDUCE):
        try:
            ready.append((name, prepare_own(bench.own, workload, name)))
        except UsageError:  # the algorithm needs shared memory, but the ranks are on several nodes
            continue
    for engine in engines:
        try:
            ready.append((engine.name, prepare_peer(engine, workload)))
        except HpccollError:
            continue
    sides = [Side(name, contender.call) for name, contender in ready]

    def check(call: Callable[[], object]) -> int:
        workload.reset()
        call()
        return workload.count_wrong()

    case = Case(f"all_reduce, {buffer}", count * 4, 1, sides, before=workload.reset, check=check)
    return case, [contender.free for _, contender in ready]


def make_auto_record(bench: Bench, case: Case, buffer: str) -> dict[str, Any]:
    """Return the record of kind `auto`, which compares auto with the fastest other side and with the noise."""
    auto, again, *others = case.sides
    best = min(others, key=_median)
    ratio, noise = (ratio_of_medians(auto.samples_us, side.samples_us) for side in (best, again))
    holds = ratio.low <= SHARE or _median(auto) <= _median(best) + US
    line = (
        f"{format_size(case.nbytes):>8}        auto / best, {buffer:<10} {_median(auto):10.2f} us / {best.name} "
        f"{_median(best):.2f} us: {ratio.value:.2f}x [{ratio.low:.2f},{ratio.high:.2f}], A/A {noise.value:.2f}x "
        f"[{noise.low:.2f},{noise.high:.2f}]: {'holds' if holds else 'MISSED'}"
    )
    return {
        "schema": SCHEMA,
        "kind": "auto",
        "script": bench.script,
        "case": case.name,
        "ranks": bench.comm.size,
        "nbytes": case.nbytes,
        "auto_us": _median(auto),
        "best": best.name,
        "best_us": _median(best),
        "ratio": asdict(ratio),
        "noise": asdict(noise),
        "musts": [{"text": f"within {SHARE}x or {US} us of the best", "ratio": asdict(ratio), "holds": holds}],
        "line": line,
    }


def _median(side: Side) -> float:
    """Return the median of a side's samples in microseconds."""
    return float(np.median(side.samples_us))


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", "8,64,1K,16K,64K,256K,1M,4M,16M,64M", measure))
