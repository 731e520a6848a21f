"""Compare the collectives of mpi4py programs over hpccoll with plain mpi4py, in batches of calls, in turns.

With HPCCOLL_MPI4PY_AFTER=100, hpccoll carries out calls earlier than in programs, because a batch is short.

The first cases are mpi4py's collectives of Python objects: a number, a small dict and arrays. The next cases are those
of buffers, on arrays of up to 64 MiB. Then the collectives of arrays of 1 MiB as objects are measured again, because
plain mpi4py becomes faster: once a process has freed larger arrays, glibc keeps the memory of pickles, which it gave
back to the system in each call until then. The next case is a call that hpccoll passes on to the MPI library. Each of
the last cases runs a whole program of docs/programs, first with plain communicators and then with those of hpccoll, in
the same process.

    mpirun -n 2 python bench/mpi4py_dropin.py --json mpi4py_dropin.jsonl
"""

from __future__ import annotations

import io
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from compare import Bench, Case, Must, Side
from mpi4py import MPI
from script import Result, main

from hpccoll.mpi4py import wrap
from hpccoll.units import KiB, MiB

os.environ.setdefault("HPCCOLL_MPI4PY_AFTER", "100")  # hpccoll carries out calls soon, to measure calls in the long run
BATCH, FEWEST_CALLS, BATCH_BYTES = 100, 2, 4 * MiB  # calls per sample: fewer of long messages
OBJECT_BATCH = 30
PLAIN, OURS = "mpi4py", "over hpccoll"
DOCS_PROGRAMS = Path(__file__).parents[1] / "docs" / "programs"
PROGRAM_ARGUMENTS = {"jacobi": ["256", "100"], "conjugate_gradients": ["800"], "k_means": ["8000", "8"]}
SMALL = KiB  # bytes up to which hpccoll must be at least as fast
FAST_FROM, FAST_TIMES = 256 * KiB, 2.0  # bytes from which Allreduce must be FAST_TIMES times as fast
OBJECT_CALLS = "bcast", "allreduce", "allgather", "gather", "scatter"
OBJECT_TIMES = {"allreduce": 5.0, "bcast": 3.0}  # of arrays of 1 MiB
AFTER_LARGER = "after larger arrays"


def measure(bench: Bench) -> Iterator[Result]:
    """Yield the cases of buffers, of Python objects, of a call passed on to the MPI library, and of programs."""
    plain, ours = bench.comm, wrap(bench.comm.Dup())
    for name in OBJECT_CALLS:
        for label, obj in make_objects().items():
            if name != "allreduce" or label != "dict":
                yield bench.run(make_object_case(name, label, obj, plain, ours))
    for name in ("Allreduce", "Bcast", "Reduce", "Allgather", "Alltoall", "Reduce_scatter_block", "Gather", "Scatter"):
        for nbytes in bench.sizes:
            yield bench.run(make_buffer_case(name, nbytes, plain, ours))
    for name in OBJECT_CALLS:
        yield bench.run(make_object_case(name, f"1 MiB, {AFTER_LARGER}", np.ones(MiB // 8), plain, ours))
    yield bench.run(make_passed_case(plain, ours))
    for name in PROGRAM_ARGUMENTS:
        yield bench.run(make_program_case(DOCS_PROGRAMS / f"{name}.py", plain, ours))
    ours.Free()


def make_sides(calls: dict[str, Callable[[], object]], *musts: Must) -> list[Side]:
    """Return the sides of a case: plain mpi4py twice, then mpi4py over hpccoll, which must meet `musts`."""
    return [Side(PLAIN, calls[PLAIN]), Side(f"{PLAIN} again (A/A)", calls[PLAIN]), Side(OURS, calls[OURS], musts)]


def bind_calls(name: str, arguments: tuple[Any, ...], plain: Any, ours: Any) -> dict[str, Callable[[], object]]:
    """Return, by side, the call of method `name` with `arguments` on each of both communicators."""
    return {PLAIN: partial(getattr(plain, name), *arguments), OURS: partial(getattr(ours, name), *arguments)}


def make_buffer_case(name: str, nbytes: int, plain: Any, ours: Any) -> Case:
    """Return the case of a collective on arrays of `nbytes` bytes, or with one such block per rank."""
    n, count = plain.size, max(nbytes // 8, 1)
    block, other = np.ones(count), np.ones(count)  # not np.zeros, whose unwritten pages share memory
    whole, target = np.ones(count * n), np.ones(count * n)
    arguments: dict[str, tuple[Any, ...]] = {
        "Allreduce": (block, other),
        "Bcast": (block,),
        "Reduce": (block, other),
        "Allgather": (block, whole),
        "Alltoall": (whole, target),
        "Reduce_scatter_block": (whole, block),
        "Gather": (block, whole),
        "Scatter": (whole, block),
    }
    calls = bind_calls(name, arguments[name], plain, ours)
    must = Must("at most 5 % slower", PLAIN, share=0.05)
    if nbytes <= SMALL:
        must = Must("at least as fast", PLAIN)
    elif name == "Allreduce" and nbytes >= FAST_FROM:
        must = Must("twice as fast", PLAIN, times=FAST_TIMES)
    batch = min(BATCH, max(BATCH_BYTES // max(nbytes, 1), FEWEST_CALLS))
    return Case(name, max(nbytes, 8), batch, make_sides(calls, must))


def make_objects() -> dict[str, Any]:
    """Return the objects of the cases by their labels."""
    return {"number": 3.5, "dict": {"a": 1, "b": [2.0, "c"]}, "1 KiB": np.ones(KiB // 8), "1 MiB": np.ones(MiB // 8)}


def make_object_case(name: str, label: str, obj: Any, plain: Any, ours: Any) -> Case:
    """Return the case of a collective of Python objects."""
    given = [obj] * plain.size if name == "scatter" else obj
    calls = bind_calls(name, (given,), plain, ours)
    times = OBJECT_TIMES.get(name, 0.0) if label.startswith("1 MiB") else 0.0
    must = (
        Must(f"{times:g} times as fast", PLAIN, times=times) if times else Must("at most 5 % slower", PLAIN, share=0.05)
    )
    nbytes = getattr(obj, "nbytes", 8)
    batch = min(OBJECT_BATCH, max(BATCH_BYTES // nbytes, FEWEST_CALLS))
    return Case(f"{name} of {label}", nbytes, batch, make_sides(calls, must))


def make_passed_case(plain: Any, ours: Any) -> Case:
    """Return the case of a reduction that hpccoll leaves to the MPI library."""
    x, y = np.ones(1, np.int64), np.ones(1, np.int64)
    calls = bind_calls("Allreduce", (x, y, MPI.LAND), plain, ours)
    return Case("Allreduce by LAND", 8, BATCH, make_sides(calls, Must("at most 0.15 us more", PLAIN, us=0.15)))


def make_program_case(path: Path, plain: Any, ours: Any) -> Case:
    """Return the case of the program `path`, which runs with each of both communicators as MPI.COMM_WORLD."""

    def run(comm: Any) -> None:
        constants = vars(MPI)
        world, arguments = MPI.COMM_WORLD, sys.argv
        constants["COMM_WORLD"], sys.argv = comm, [str(path), *PROGRAM_ARGUMENTS[path.stem]]
        try:
            with redirect_stdout(io.StringIO()):
                runpy.run_path(str(path), run_name="__main__")
        finally:
            constants["COMM_WORLD"], sys.argv = world, arguments

    calls: dict[str, Callable[[], object]] = {PLAIN: partial(run, plain), OURS: partial(run, ours)}
    return Case(f"program {path.stem}", 8, 1, make_sides(calls))


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", "8,1K,16K,256K,4M,64M", measure))
