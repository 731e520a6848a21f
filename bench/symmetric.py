"""Compare symmetric and ordinary buffers with the MPI library and Gloo, and with the limit of the memory.

The other libraries use ordinary buffers, on which they are faster. The floor is the time in which all ranks, at once
and without waiting for each other, read and write the bytes that they must move, in the symmetric memory of all ranks.

    mpirun -n 2 python bench/symmetric.py --json symmetric.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import exp, log
from typing import Any

import numpy as np
from compare import Bench, Case, Floats, Must, Side, all_reduce_check
from mpi4py import MPI
from script import Result, main

from hpccoll.errors import HpccollError
from hpccoll.peers import TorchEngine
from hpccoll.plan import Operation
from hpccoll.records import SCHEMA
from hpccoll.units import MiB, format_size

LIBRARY, GLOO = "MPI library", "gloo"
FLOOR = "memory alone, in the same windows"  # of symmetric memory
SYMMETRIC, ORDINARY = "symmetric", "ordinary"
LARGE = 16 * MiB
TWICE = Must("2x the library", LIBRARY, times=2.0)
TILE = 2**14


def measure(bench: Bench) -> Iterator[Result]:
    """Yield the cases of all_reduce, then those of reduce_scatter, all_gather and broadcast, at each size.

    A record of kind `floor` follows each case that has the side FLOOR. After the cases of all_reduce come records of
    kind `mean`: the geometric mean over sizes of the speed-up over another library.
    """
    gloo = _start_gloo(bench.comm)
    all_reduce_cases: list[Case] = []
    for nbytes in bench.sizes:
        case = bench.run(all_reduce_case(bench, nbytes // 4, gloo))
        all_reduce_cases.append(case)
        yield case
        if nbytes >= LARGE:
            yield make_floor_record(bench, case)
    yield from make_mean_records(bench, all_reduce_cases)
    for nbytes in bench.sizes:
        for make in (reduce_scatter_case, all_gather_case, broadcast_case):
            case = bench.run(make(bench, nbytes // 4))
            yield case
            if any(side.name == FLOOR for side in case.sides):
                yield make_floor_record(bench, case)


def _start_gloo(comm: MPI.Intracomm) -> TorchEngine | None:
    """Start Gloo; None if it is not available."""
    try:
        return TorchEngine(comm, "gloo")
    except HpccollError:
        return None


def all_reduce_case(bench: Bench, count: int, gloo: TorchEngine | None) -> Case:
    """Return the case of all_reduce of `count` float32 elements, after a check of all results. Collective.

    The MPI library and Gloo (if not None) use an ordinary buffer; hpccoll uses an ordinary and a symmetric one. The
    results are checked here, not by `Bench.run`.
    """
    comm, own = bench.comm, bench.own
    x, y = own.empty(count, "float32"), np.zeros(count, np.float32)
    x[:] = 0
    vendor = 2.0 if MPI.get_vendor()[0] == "MPICH" else 1.0
    musts = [Must(f"{vendor:g}x the library at each size", LIBRARY, times=vendor)]
    library = partial(comm.Allreduce, MPI.IN_PLACE, [y, MPI.FLOAT], MPI.SUM)
    sides = [Side(LIBRARY, library), Side(f"{LIBRARY} (A/A)", library)]
    if gloo is not None:
        musts.append(Must("5x gloo", GLOO, times=5.0))
        sides.append(Side(GLOO, gloo.prepare(Operation.ALL_REDUCE, y, y, "sum", 0)))
    ordinary = (Must("1.3x the library", LIBRARY, times=1.3),) if x.nbytes >= LARGE else ()
    sides.append(Side(ORDINARY, partial(own.all_reduce, y, algorithm="shared_two_shot"), ordinary))
    if x.nbytes >= LARGE:
        musts.append(Must("within 1.3x of the floor", FLOOR, times=1 / 1.3))
        sides.append(Side(FLOOR, bind_least_accesses(bench, x), checked=False))
    sides.append(Side(SYMMETRIC, partial(own.all_reduce, x, algorithm="shared_two_shot"), tuple(musts)))
    checks = {SYMMETRIC: all_reduce_check(comm, x)}
    ordinary_check = all_reduce_check(comm, y)
    case = Case("all_reduce", x.nbytes, count_calls(x.nbytes), sides)
    for side in sides:
        if side.checked:
            side.wrong = comm.allreduce(checks.get(side.name, ordinary_check)(side.call))
    return case


def count_calls(nbytes: int) -> int:
    """Return the number of calls per sample: several for short messages, so that a side's data is in the caches."""
    return max(LARGE // nbytes, 1)


def bind_least_accesses(bench: Bench, x: Floats) -> Callable[[], object]:
    """Return a function that makes the fewest memory accesses of a rank in an all_reduce of `x`, in symmetric memory.

    The function reads and writes this rank's slice of every rank's `x`.
    """
    n, rank = bench.comm.size, bench.comm.rank
    low, high = len(x) * rank // n, len(x) * (rank + 1) // n
    slices = [each[low:high] for each in view_peers(bench, x)]
    tiles = [each[at : at + TILE] for at in range(0, high - low, TILE) for each in slices]
    return bind_in_order(partial(np.negative, tile, tile) for tile in tiles)


def view_peers(bench: Bench, x: Floats) -> list[Floats]:
    """Return views of every rank's `x`, which lies in symmetric memory, in rank order."""
    block = bench.own._engine.node.symmetric.find(x.__array_interface__["data"][0], x.nbytes)  # noqa: SLF001
    assert block is not None
    return [
        x if rank == bench.comm.rank else block.peers[rank].view(np.float32)[: len(x)]
        for rank in range(bench.comm.size)
    ]


def bind_in_order(steps: Iterable[Callable[[], object]]) -> Callable[[], object]:
    """Return a function that calls all `steps` in order."""
    bound = tuple(steps)

    def run() -> None:
        for step in bound:
            step()

    return run


def make_floor_record(bench: Bench, case: Case) -> dict[str, Any]:
    """Return the record that compares the side SYMMETRIC of a case with FLOOR, the limit of the memory."""
    n = bench.comm.size
    # Bytes that a rank reads and writes: S in all_reduce, n blocks in all_gather, (n - 1)/n S in broadcast.
    moved = 2 * case.nbytes * (n - 1) // n if case.name == "broadcast" else 2 * case.nbytes
    took, measured = (float(np.median(case.side(name).samples_us)) for name in (FLOOR, SYMMETRIC))
    return {
        "schema": SCHEMA,
        "kind": "floor",
        "script": bench.script,
        "case": case.name,
        "ranks": bench.comm.size,
        "nbytes": case.nbytes,
        "moved_bytes": moved,
        "floor_us": took,
        "GBps_a_rank": moved / took / 1e3,
        "measured_us": measured,
        "line": f"{format_size(case.nbytes):>8}        {case.name:<22} floor: a rank moves {moved / MiB:.0f} MiB in "
        f"the windows; {bench.comm.size} ranks at once take {took:.0f} us ({moved / took / 1e3:.1f} GB/s each); "
        f"measured {measured:.0f} us, {measured / took:.2f}x the floor",
    }


def make_mean_records(bench: Bench, cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    """Yield records of the symmetric all-reduce's geometric mean speed-up over the library and over Gloo."""
    least = 3.0 if MPI.get_vendor()[0] == "MPICH" else 2.5
    for against, times in ((LIBRARY, least), (GLOO, 5.0)):
        ratios = [
            case.ratio(case.side(SYMMETRIC), against).value
            for case in cases
            if any(side.name == against for side in case.sides)
        ]
        if not ratios:
            continue
        mean = exp(sum(map(log, ratios)) / len(ratios))
        yield {
            "schema": SCHEMA,
            "kind": "mean",
            "script": bench.script,
            "case": "all_reduce",
            "side": SYMMETRIC,
            "baseline": against,
            "ranks": bench.comm.size,
            "sizes": [case.nbytes for case in cases],
            "ratio": mean,
            "musts": [{"text": f"{times:g}x on geometric mean", "ratio": None, "holds": mean >= times}],
            "line": f"{'':8}        all_reduce             {SYMMETRIC} against {against}: mean {mean:.2f}x (geometric)",
        }


def reduce_scatter_case(bench: Bench, count: int) -> Case:
    """Return the case of the library's reduce_scatter and hpccoll's on symmetric buffers; `count` elements in all."""
    comm, own = bench.comm, bench.own
    block = count // comm.size
    x, out = (own.empty(size, "float32") for size in (block * comm.size, block))
    a, b = np.zeros(block * comm.size, np.float32), np.zeros(block, np.float32)
    x[:] = comm.rank
    library = partial(comm.Reduce_scatter_block, [a, MPI.FLOAT], [b, block, MPI.FLOAT], MPI.SUM)
    ours = partial(own.reduce_scatter, x, out=out, algorithm="shared")
    wrong = _count_wrong(comm, ours, out, comm.size * (comm.size - 1) / 2)
    return _make_case("reduce_scatter", x.nbytes, library, ours, wrong)


def all_gather_case(bench: Bench, count: int) -> Case:
    """Return the case of the library's all_gather and hpccoll's on symmetric buffers; `count` elements in all."""
    comm, own = bench.comm, bench.own
    block = count // comm.size
    x, out = (own.empty(size, "float32") for size in (block, block * comm.size))
    a, b = np.zeros(block, np.float32), np.zeros(block * comm.size, np.float32)
    x[:] = comm.rank
    library = partial(comm.Allgather, [a, MPI.FLOAT], [b, block, MPI.FLOAT])
    ours = partial(own.all_gather, x, out=out, algorithm="shared")
    wrong = _count_wrong(comm, ours, out, np.repeat(np.arange(comm.size), block))
    blocks = zip(np.split(out, comm.size), view_peers(bench, x), strict=True)
    return _make_case(
        "all_gather", out.nbytes, library, ours, wrong, bind_in_order(partial(np.copyto, *pair) for pair in blocks)
    )


def broadcast_case(bench: Bench, count: int) -> Case:
    """Return the case of the library's broadcast and hpccoll's on a symmetric buffer."""
    comm, own = bench.comm, bench.own
    x, a = own.empty(count, "float32"), np.zeros(count, np.float32)
    x[:] = 7 if comm.rank == 0 else 0
    ours = partial(own.broadcast, x, algorithm="shared")
    wrong = _count_wrong(comm, ours, x, 7)
    chunk = -(-count // comm.size)  # the root writes the first chunk to all ranks; the others read the other chunks
    each = view_peers(bench, x)
    pairs = [(other[:chunk], x[:chunk]) for other in each[1:]] if comm.rank == 0 else [(x[chunk:], each[0][chunk:])]
    library = partial(comm.Bcast, [a, MPI.FLOAT])
    return _make_case(
        "broadcast", x.nbytes, library, ours, wrong, bind_in_order(partial(np.copyto, *pair) for pair in pairs)
    )


def _count_wrong(comm: MPI.Intracomm, call: Callable[[], object], out: Floats, right: Any) -> int:
    """Call once; return the number of elements of `out` that differ from `right`, on all ranks together."""
    call()
    return int(comm.allreduce(np.count_nonzero(out != right)))


def _make_case(
    name: str,
    nbytes: int,
    library: Callable[[], object],
    ours: Callable[[], object],
    wrong: int,
    least: Callable[[], object] | None = None,
) -> Case:
    """Return the case that compares a call of the MPI library with one of hpccoll on symmetric buffers.

    Args:
        name: the operation.
        nbytes: the size of the message in bytes.
        library: the call of the MPI library.
        ours: the call of hpccoll.
        wrong: the number of wrong elements in the result of `ours`.
        least: makes the memory accesses that every implementation must make, and no others, for the side FLOOR; None
            for a case without this side.
    """
    sides = [Side(LIBRARY, library), Side(f"{LIBRARY} (A/A)", library), Side(SYMMETRIC, ours, (TWICE,), wrong=wrong)]
    if least is not None:
        sides.insert(2, Side(FLOOR, least, checked=False))
    return Case(name, nbytes, count_calls(nbytes), sides)


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", "1M,4M,16M,64M", measure))
