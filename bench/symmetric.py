"""Compare symmetric and ordinary buffers with the MPI library and Gloo, and with the limit of the memory.

The other libraries use ordinary buffers, on which they are faster. The floor is the time in which all ranks, at once
and without waiting for each other, read and write the bytes that they must move in the same windows.

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

LIBRARY, GLOO, FLOOR = "MPI library", "gloo", "memory alone, in the same windows"
SYMMETRIC, ORDINARY = "symmetric", "ordinary"
LARGE = 16 * MiB
TWICE = Must("2x the library", LIBRARY, times=2.0)
TILE = 2**14


def measure(bench: Bench) -> Iterator[Result]:
    """Yield cases of four operations by size, records of the floors, and geometric means over sizes."""
    gloo = _gloo(bench.comm)
    found: list[Case] = []
    for nbytes in bench.sizes:
        case = bench.run(all_reduce_case(bench, nbytes // 4, gloo))
        found.append(case)
        yield case
        if nbytes >= LARGE:
            yield floor(bench, case)
    yield from means(bench, found)
    for nbytes in bench.sizes:
        for make in (reduce_scatter_case, all_gather_case, broadcast_case):
            case = bench.run(make(bench, nbytes // 4))
            yield case
            if any(side.name == FLOOR for side in case.sides):
                yield floor(bench, case)


def _gloo(comm: MPI.Intracomm) -> TorchEngine | None:
    """Start Gloo; None if it is not available."""
    try:
        return TorchEngine(comm, "gloo")
    except HpccollError:
        return None


def all_reduce_case(bench: Bench, count: int, gloo: TorchEngine | None) -> Case:
    """Return the case that compares all_reduces on ordinary buffers (library, Gloo, hpccoll) and a symmetric buffer.

    The results are checked here, not by `Bench.run`. Collective.
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
        sides.append(Side(FLOOR, memory(bench, x), checked=False))
    sides.append(Side(SYMMETRIC, partial(own.all_reduce, x, algorithm="shared_two_shot"), tuple(musts)))
    checks = {SYMMETRIC: all_reduce_check(comm, x)}
    ordinary_check = all_reduce_check(comm, y)
    case = Case("all_reduce", x.nbytes, calls(x.nbytes), sides)
    for side in sides:
        if side.checked:
            side.wrong = comm.allreduce(checks.get(side.name, ordinary_check)(side.call))
    return case


def calls(nbytes: int) -> int:
    """Return the number of calls per sample: several for short messages, so that the caches hold the side's data."""
    return max(LARGE // nbytes, 1)


def memory(bench: Bench, x: Floats) -> Callable[[], object]:
    """Return a function that makes a rank's fewest accesses: reads and writes its slice of every rank's `x`."""
    n, rank = bench.comm.size, bench.comm.rank
    low, high = len(x) * rank // n, len(x) * (rank + 1) // n
    slices = [each[low:high] for each in windows(bench, x)]
    tiles = [each[at : at + TILE] for at in range(0, high - low, TILE) for each in slices]
    return in_turn(partial(np.negative, tile, tile) for tile in tiles)


def windows(bench: Bench, x: Floats) -> list[Floats]:
    """Return views of every rank's `x`, which lies in symmetric memory, in rank order."""
    block = bench.own._engine.node.symmetric.find(x.__array_interface__["data"][0], x.nbytes)  # noqa: SLF001
    assert block is not None
    return [
        x if rank == bench.comm.rank else block.peers[rank].view(np.float32)[: len(x)]
        for rank in range(bench.comm.size)
    ]


def in_turn(steps: Iterable[Callable[[], object]]) -> Callable[[], object]:
    """Return a function that calls these steps in order."""
    bound = tuple(steps)

    def touch() -> None:
        for step in bound:
            step()

    return touch


def floor(bench: Bench, case: Case) -> dict[str, Any]:
    """Return the record that compares a symmetric collective with the memory's limit, the case's side FLOOR."""
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


def means(bench: Bench, cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
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
    """Return the case that compares reduce_scatters of `count` elements: the library's, and on symmetric buffers."""
    comm, own = bench.comm, bench.own
    block = count // comm.size
    x, out = (own.empty(size, "float32") for size in (block * comm.size, block))
    a, b = np.zeros(block * comm.size, np.float32), np.zeros(block, np.float32)
    x[:] = comm.rank
    library = partial(comm.Reduce_scatter_block, [a, MPI.FLOAT], [b, block, MPI.FLOAT], MPI.SUM)
    ours = partial(own.reduce_scatter, x, out=out, algorithm="shared")
    wrong = _wrong(comm, ours, out, comm.size * (comm.size - 1) / 2)
    return _pair("reduce_scatter", x.nbytes, library, ours, wrong)


def all_gather_case(bench: Bench, count: int) -> Case:
    """Return the case that compares all_gathers of `count` elements in all: the library's, and on symmetric buffers."""
    comm, own = bench.comm, bench.own
    block = count // comm.size
    x, out = (own.empty(size, "float32") for size in (block, block * comm.size))
    a, b = np.zeros(block, np.float32), np.zeros(block * comm.size, np.float32)
    x[:] = comm.rank
    library = partial(comm.Allgather, [a, MPI.FLOAT], [b, block, MPI.FLOAT])
    ours = partial(own.all_gather, x, out=out, algorithm="shared")
    wrong = _wrong(comm, ours, out, np.repeat(np.arange(comm.size), block))
    blocks = zip(np.split(out, comm.size), windows(bench, x), strict=True)
    return _pair("all_gather", out.nbytes, library, ours, wrong, in_turn(partial(np.copyto, *pair) for pair in blocks))


def broadcast_case(bench: Bench, count: int) -> Case:
    """Return the case that compares broadcasts of `count` elements: the library's, and on a symmetric buffer."""
    comm, own = bench.comm, bench.own
    x, a = own.empty(count, "float32"), np.zeros(count, np.float32)
    x[:] = 7 if comm.rank == 0 else 0
    ours = partial(own.broadcast, x, algorithm="shared")
    wrong = _wrong(comm, ours, x, 7)
    chunk = -(-count // comm.size)  # the root writes the first chunk to all ranks; the others read the other chunks
    each = windows(bench, x)
    pairs = [(other[:chunk], x[:chunk]) for other in each[1:]] if comm.rank == 0 else [(x[chunk:], each[0][chunk:])]
    library = partial(comm.Bcast, [a, MPI.FLOAT])
    return _pair("broadcast", x.nbytes, library, ours, wrong, in_turn(partial(np.copyto, *pair) for pair in pairs))


def _wrong(comm: MPI.Intracomm, call: Callable[[], object], out: Floats, right: Any) -> int:
    """Run `call` once; return the number of elements of `out`, on all ranks together, that differ from `right`."""
    call()
    return int(comm.allreduce(np.count_nonzero(out != right)))


def _pair(
    name: str,
    nbytes: int,
    library: Callable[[], object],
    ours: Callable[[], object],
    wrong: int,
    least: Callable[[], object] | None = None,
) -> Case:
    """Return a case whose sides are the library (twice), hpccoll, and, if given, `least` (side FLOOR).

    Args:
        name: the operation.
        nbytes: size of the message.
        library: calls the library's collective.
        ours: calls hpccoll's collective.
        wrong: the number of wrong elements in hpccoll's result.
        least: makes the memory accesses that every implementation must make, and no others.
    """
    sides = [Side(LIBRARY, library), Side(f"{LIBRARY} (A/A)", library), Side(SYMMETRIC, ours, (TWICE,), wrong=wrong)]
    if least is not None:
        sides.insert(2, Side(FLOOR, least, checked=False))
    return Case(name, nbytes, calls(nbytes), sides)


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", "1M,4M,16M,64M", measure))
