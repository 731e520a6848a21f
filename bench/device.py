"""Compare symmetric device memory with ordinary device buffers, the MPI library, Gloo and NCCL, and a copy.

The script needs a GPU; ranks may share a GPU. CUDA events on each rank's current stream measure the times. The floor is
the time to move the bytes that all ranks of a device must load and store in a two-shot all-reduce, at the rate of one
rank that copies device memory alone.

    mpirun -n 2 python bench/device.py --require --json device.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from compare import Bench, Case, Must, Side
from script import Result, main

from hpccoll.arrays import Buffer, as_buffer, get_array_module
from hpccoll.errors import HpccollError
from hpccoll.peers import MpiEngine, TorchEngine
from hpccoll.plan import Operation
from hpccoll.records import SCHEMA
from hpccoll.units import MiB, format_size

SYMMETRIC, ORDINARY, LIBRARY = "symmetric", "ordinary, by messages", "MPI library"
LARGE = 256 * MiB
SHARE = 0.7  # fraction of the copy's rate that a large all-reduce must reach
COPIES = 20


def measure(bench: Bench) -> Iterator[Result]:
    """Yield the case of each size, followed by a record that compares the symmetric all-reduce with the floor."""
    get_array_module("cuda", bench.own.local_rank)  # selects this rank's device, before memory is allocated
    peers = list(_peers(bench))
    for nbytes in bench.sizes:
        case = bench.run(_case(bench, nbytes // 4, peers))
        yield case
        yield _floor(bench, case)


def _peers(bench: Bench) -> Iterator[TorchEngine | MpiEngine]:
    """Start and yield the other libraries that can use device memory; report those that cannot on standard error."""
    yield MpiEngine(bench.comm)
    for backend in ("gloo", "nccl"):
        try:
            yield TorchEngine(bench.comm, backend)
        except HpccollError as error:
            if bench.comm.rank == 0:
                print(f"# left out: {backend}: {error}", file=sys.stderr)


def _case(bench: Bench, count: int, peers: list[TorchEngine | MpiEngine]) -> Case:
    """Prepare and check all sides of an all-reduce of `count` float32 elements; collective."""
    own = bench.own
    x = own.cupy_empty(count)
    given = as_buffer(x, "x", writable=True)
    plain = given.module.empty(count, given.dtype)
    for flat in (x, plain):
        flat.fill(0)
    sides = [_side(ORDINARY, partial(own.all_reduce, plain, algorithm="ring"), given)]
    sides.append(_side(f"{ORDINARY} (A/A)", partial(own.all_reduce, plain, algorithm="ring"), given))
    musts: list[Must] = []
    for peer in peers:
        name = LIBRARY if peer.name == "mpi" else peer.name
        try:
            sides.append(_side(name, peer.prepare(Operation.ALL_REDUCE, plain, plain, "sum", 0), given))
        except HpccollError as error:
            if bench.comm.rank == 0:
                print(f"# left out: {name}: {error}", file=sys.stderr)
            continue
        if peer.name == "gloo" and x.nbytes >= LARGE:
            musts.append(Must("5x gloo", name, times=5.0))
    sides.append(_side(SYMMETRIC, partial(own.all_reduce, x, algorithm="shared_two_shot"), given, tuple(musts)))
    checked = {SYMMETRIC: x}
    for side in sides:
        side.wrong = bench.comm.allreduce(_wrong(bench, side.call, checked.get(side.name, plain)))
    return Case("all_reduce", x.nbytes, 1, sides)


def _side(name: str, call: Callable[[], object], buffer: Buffer, musts: tuple[Must, ...] = ()) -> Side:
    return Side(name, call, musts, seconds=partial(_seconds, call, buffer.module))


def _seconds(call: Callable[[], object], module: Any) -> float:
    """Return the seconds of one call after a barrier, measured by events on the current stream."""
    from mpi4py import MPI

    begin, end, seconds = module.make_stream_timer()
    module.synchronize()
    MPI.COMM_WORLD.Barrier()
    begin()
    call()
    end()
    return float(seconds())


def _wrong(bench: Bench, call: Callable[[], object], x: Any) -> int:
    """Run an all-reduce of known data in `x`; return this rank's number of wrong elements, and zero `x`."""
    pattern = np.arange(len(x), dtype=np.float32) % 7
    x.set(pattern + bench.comm.rank)
    call()
    n = bench.comm.size
    wrong = int(np.count_nonzero(x.get() != n * pattern + n * (n - 1) / 2))
    x.fill(0)
    return wrong


def _floor(bench: Bench, case: Case) -> dict[str, Any]:
    """Compare the symmetric all-reduce with a copy of device memory, which rank 0 times while the others wait."""
    comm = bench.comm
    given = as_buffer(bench.own.cupy_empty(case.nbytes, "uint8"), "x", writable=True)
    other = given.module.empty(case.nbytes, given.dtype)
    comm.Barrier()
    copies = [_copy(given, other) for _ in range(COPIES)] if comm.rank == 0 else []
    rate = comm.bcast(2 * case.nbytes / float(np.median(copies)) if copies else None)
    gpu = bench.own._engine.node.device  # noqa: SLF001 - whether ranks share a device
    assert gpu is not None
    devices = len(set(comm.allgather(gpu.device)))
    moved = 2 * case.nbytes * comm.size // devices
    floor_us = moved / rate * 1e6
    measured = float(np.median(case.side(SYMMETRIC).samples_us))
    share = floor_us / measured
    must = {"text": f"{SHARE:.0%} of the copy's rate", "ratio": None, "holds": share >= SHARE}
    return {
        "schema": SCHEMA,
        "kind": "floor",
        "script": bench.script,
        "case": case.name,
        "ranks": comm.size,
        "nbytes": case.nbytes,
        "moved_bytes": moved,
        "floor_us": floor_us,
        "GBps_a_rank": rate / 1e9,
        "measured_us": measured,
        "musts": [must] if case.nbytes >= LARGE else [],
        "line": f"{format_size(case.nbytes):>8}        {case.name:<22} floor: {moved / MiB:.0f} MiB a device, copied "
        f"at {rate / 1e9:.0f} GB/s in {floor_us:.0f} us; measured {measured:.0f} us, {share:.0%} of that rate",
    }


def _copy(given: Buffer, other: Any) -> float:
    """Return the seconds of one copy within the device."""
    timer = given.module.make_stream_timer()
    assert timer is not None
    begin, end, seconds = timer
    begin()
    given.module.bind_copy(other, given.flat)()
    end()
    return float(seconds())


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", "1M,16M,256M", measure))
