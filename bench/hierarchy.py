"""Compare two-level collectives with flat ones and the MPI library's own, and with the limit of the nodes' links.

--link-mbit states the rate of each node's link. Every case of a large message then ends with a record of kind `floor`:
the least time in which the busiest node can send its bytes, and the ratio of each side's time to it. Every case of a
short message ends with a record of the fastest side.

    hpccoll lab run --link 400M -- srun --mpi=pmi2 -N4 --ntasks-per-node=2 python bench/hierarchy.py --link-mbit 400
    hpccoll lab run --latency 1ms -- srun --mpi=pmi2 -N4 --ntasks-per-node=2 python bench/hierarchy.py --sizes 8,1K,8K
    HPCCOLL_RANKS_PER_NODE=2 mpirun -n 4 python bench/hierarchy.py --sizes 8,64K,1M
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from compare import Bench, Case, Must, Side
from script import Result, main

from hpccoll import peers
from hpccoll.arrays import ArrayModule, get_dtype
from hpccoll.measure.buffers import make_buffer_module
from hpccoll.measure.contenders import prepare_own, prepare_peer
from hpccoll.measure.workload import Workload, WorkloadSpec
from hpccoll.plan import Operation
from hpccoll.records import SCHEMA
from hpccoll.runtime.job import detect_layout
from hpccoll.units import KiB, MiB, format_size

LIBRARY, AGAIN = "MPI library", "MPI library (A/A)"
LARGE = 4 * MiB
# The algorithms to time: first two-level algorithms, then flat algorithms.
TIMED = {
    Operation.ALL_REDUCE: ("hierarchical_ring", "hierarchical_doubling", "ring", "recursive_doubling"),
    Operation.REDUCE_SCATTER: ("hierarchical_ring", "hierarchical_bruck", "ring"),
    Operation.ALL_GATHER: ("hierarchical_ring", "hierarchical_bruck", "ring"),
    Operation.BROADCAST: ("hierarchical_chain", "hierarchical_tree", "chain"),
}
WITHIN, OTHERS = {Operation.ALL_REDUCE: 1.06}, 1.15  # largest allowed ratio to the floor
TIMES = 1.9  # required speed, as a multiple of the library's


def measure(bench: Bench) -> Iterator[Result]:
    """Yield the case of each size and operation, followed by a record of kind `floor` or `fastest`."""
    module = make_buffer_module("host", bench.own, 2 * max(bench.sizes) + 64 * KiB)
    engine = peers.start_engine("mpi", bench.comm)
    for nbytes in bench.sizes:
        for operation in TIMED if nbytes >= LARGE else (Operation.ALL_REDUCE,):
            case, free = prepare_case(bench, operation, nbytes, module, engine)
            yield bench.run(case)
            yield (
                make_floor_record(bench, operation, case)
                if nbytes >= LARGE and bench.link_mbit
                else make_fastest_record(bench, case)
            )
            for each in free:
                each()
    engine.close()


def prepare_case(
    bench: Bench, operation: Operation, nbytes: int, module: ArrayModule, engine: peers.LibraryEngine
) -> tuple[Case, list[Callable[[], None]]]:
    """Return the case of an operation, with the MPI library, `auto` and the algorithms TIMED as sides.

    Also returns functions that free what the sides use.
    """
    comm, blocks = bench.comm, bench.comm.size if operation.has_blocks else 1
    count, in_place = max(nbytes // 4 // blocks, 1), not operation.has_blocks
    task = WorkloadSpec(operation, count, get_dtype("float32"), "sum", 0, in_place, comm.rank, comm.size)
    workload = Workload(task, module)
    large = nbytes >= LARGE
    library = prepare_peer(engine, workload)
    ready = {name: prepare_own(bench.own, workload, name) for name in ("auto", *TIMED[operation])}
    must = (Must(f"{TIMES}x the library", LIBRARY, times=TIMES),) if large and operation is Operation.ALL_REDUCE else ()
    sides = [Side(LIBRARY, library.call), Side(AGAIN, library.call)]
    sides += [Side(name, each.call, must if name == TIMED[operation][0] else ()) for name, each in ready.items()]

    def check(call: Callable[[], object]) -> int:
        workload.reset()
        call()
        return workload.count_wrong()

    case = Case(operation.value, count * blocks * 4, 1, sides, before=workload.reset, check=check)
    return case, [library.free, *(each.free for each in ready.values())]


def make_floor_record(bench: Bench, operation: Operation, case: Case) -> dict[str, Any]:
    """Return the record that compares every side with the least time in which the busiest node can send its bytes."""
    nodes = detect_layout(bench.comm).nodes
    once = (nodes - 1) / nodes
    share = {Operation.ALL_REDUCE: 2 * once, Operation.BROADCAST: 1.0}.get(operation, once)
    least_us = share * case.nbytes / (bench.link_mbit / 8)
    took = {side.name: float(np.median(side.samples_us)) / least_us for side in case.sides}
    first, limit = TIMED[operation][0], WITHIN.get(operation, OTHERS)
    found = {"value": took[first], "low": took[first], "high": took[first], "coverage": 0.0}
    told = ", ".join(f"{name} {ratio:.3f}x" for name, ratio in took.items() if name != AGAIN)
    holds = took[first] <= limit
    return _record(bench, case, "floor") | {
        "nodes": nodes,
        "link_mbit": bench.link_mbit,
        "floor_us": least_us,
        "times_the_floor": took,
        "musts": [{"text": f"{first} within {limit}x of the link's limit", "ratio": found, "holds": holds}],
        "line": f"{format_size(case.nbytes):>8}        {case.name:<22} the link alone takes {least_us:.0f} us: {told}; "
        f"{first} at most {limit}x: {'holds' if holds else 'MISSED'}",
    }


def make_fastest_record(bench: Bench, case: Case) -> dict[str, Any]:
    """Return the record that names the fastest side of the case, and has the time of `auto` divided by its time."""
    medians = {side.name: float(np.median(side.samples_us)) for side in case.sides if side.name != AGAIN}
    best = min((name for name in medians if name != "auto"), key=lambda name: medians[name])
    ratio = case.ratio(case.side(best), "auto")
    holds = ratio.low <= 1.05
    return _record(bench, case, "fastest") | {
        "median_us": medians,
        "fastest": best,
        "auto": asdict(ratio),
        "musts": [{"text": "auto within 1.05x of the fastest", "ratio": asdict(ratio), "holds": holds}],
        "line": f"{format_size(case.nbytes):>8}        {case.name:<22} fastest {best} {medians[best]:.0f} us; "
        f"auto {ratio.value:.2f}x [{ratio.low:.2f},{ratio.high:.2f}]: {'holds' if holds else 'MISSED'}",
    }


def _record(bench: Bench, case: Case, kind: str) -> dict[str, Any]:
    """Return the fields that every record of a case begins with."""
    head = {"schema": SCHEMA, "kind": kind, "script": bench.script, "case": case.name}
    return head | {"ranks": bench.comm.size, "nbytes": case.nbytes}


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", "8,1K,16K,128K,1M,16M", measure))
