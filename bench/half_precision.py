"""Compare all-reduces of float16 and bfloat16 with float32, with equal numbers of bytes, in host memory.

All sides run the same prepared algorithm on separate buffers and differ only in the element type. They add the same
small integers, which each type represents exactly.

    mpirun -n 2 python bench/half_precision.py --json half_precision.jsonl
    mpirun -n 2 python bench/half_precision.py --algorithm auto
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from compare import Bench, Case, Must, Side
from script import Result, main

from hpccoll.arrays import get_dtype

BASELINE = "float32"
MUST = Must("at most 2x slower", BASELINE, share=1.0)  # may take 100 % longer than float32


def measure(bench: Bench, algorithm: str) -> Iterator[Result]:
    """Yield a case for each size."""
    for nbytes in bench.sizes:
        prepared = [side(bench, name, nbytes, algorithm) for name in ("float32", "float32", "float16", "bfloat16")]
        sides = [made for made, _ in prepared]
        sides[1].name = f"{BASELINE} again (A/A)"
        sides[2].musts = sides[3].musts = (MUST,)
        checks = {id(made.call): check for made, check in prepared}
        yield bench.run(Case(f"all_reduce, {algorithm}", nbytes, 1, sides, check=partial(known, checks)))


def side(bench: Bench, name: str, nbytes: int, algorithm: str) -> tuple[Side, Callable[[], int]]:
    """Return a prepared all-reduce as a side, and a function that runs it and returns the number of wrong elements."""
    comm, dtype = bench.comm, get_dtype(name)
    pattern = np.arange(max(nbytes // dtype.itemsize, 1)) % 7
    x = (pattern + 1 + comm.rank).astype(dtype.numpy)
    out = np.zeros_like(x)
    call = bench.own.all_reduce_init(x, out=out, algorithm=algorithm)
    total = (comm.size * pattern + comm.size * (comm.size + 1) // 2).astype(dtype.numpy)

    def check() -> int:
        out[:] = 0
        call()
        return int(np.count_nonzero(out != total))

    return Side(name, call), check


def known(checks: dict[int, Callable[[], int]], call: Callable[[], object]) -> int:
    """Run the check that belongs to a side's call; return the number of wrong elements."""
    return checks[id(call)]()


if __name__ == "__main__":
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--algorithm", default="ring")
    algorithm, sys.argv[1:] = (found := options.parse_known_args())[0].algorithm, found[1]
    sys.exit(main(__doc__ or "", "1M,4M,16M", partial(measure, algorithm=algorithm)))
