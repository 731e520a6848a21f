"""Measure how much of an asynchronous all_reduce a matrix product hides, in one process per rank.

The product of two square matrices uses one thread, and takes at least twice as long as hpccoll's
all_reduce. The sides are an
asynchronous all_reduce with the product between its start and its wait, over hpccoll and over gloo; each all_reduce
alone; and the product alone. The hidden share of a backend is 1 - (both - product) / all_reduce, with the times of the
same round. Run it with two cores per rank.

    OMP_NUM_THREADS=1 mpirun -n 2 python bench/async_overlap.py --json async_overlap.jsonl
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from compare import Bench, Case, Side
from script import Result, main

import hpccoll.torch  # noqa: F401 - registers the backend
from hpccoll.records import SCHEMA
from hpccoll.statistics import Interval, ratio_of_medians

GLOO, OWN, PRODUCT = "gloo", "hpccoll", "product alone"
LEAST_HIDDEN = 0.8
PILOTS = 5


def measure(bench: Bench) -> Iterator[Result]:
    """Yield the case of each size, followed by the hidden shares."""
    torch.set_num_threads(1)
    dist.init_process_group(OWN)
    groups = {GLOO: dist.new_group(backend=GLOO), OWN: dist.group.WORLD}
    for nbytes in bench.sizes:
        x = torch.zeros(nbytes // 4)
        multiply = make_product(bench, partial(dist.all_reduce, x))
        sides = [Side(f"{name} alone", partial(dist.all_reduce, x, group=group)) for name, group in groups.items()]
        sides.append(Side(PRODUCT, multiply, checked=False))
        sides += [Side(name, partial(overlap, x, group, multiply)) for name, group in groups.items()]
        case = bench.run(Case("all_reduce beside a product", nbytes, 1, sides))
        yield case
        yield make_record(bench, case)
    dist.destroy_process_group()


def overlap(x: torch.Tensor, group: Any, multiply: Callable[[], object]) -> None:
    """Start an all_reduce, multiply, and wait for the all_reduce."""
    work = dist.all_reduce(x, group=group, async_op=True)
    multiply()
    work.wait()


def make_product(bench: Bench, communicate: Callable[[], object]) -> Callable[[], object]:
    """Return a product of matrices of one size on all ranks, which takes at least twice as long as `communicate`."""
    width = 256
    while True:
        a = torch.ones(width, width)
        out = torch.empty(width, width)
        multiply = partial(torch.mm, a, a, out=out)
        times_s = bench.comm.bcast([time_call(communicate), time_call(multiply)])
        if times_s[1] >= 2 * times_s[0]:
            return multiply
        width = width * 5 // 4


def time_call(call: Callable[[], object]) -> float:
    """Return the smallest seconds of a call."""
    times_s = []
    for _ in range(PILOTS):
        begin = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - begin)
    return min(times_s)


def make_record(bench: Bench, case: Case) -> dict[str, Any]:
    """Return the record of the hidden shares; hpccoll must hide at least LEAST_HIDDEN."""
    product = np.array(case.side(PRODUCT).samples_us)
    hidden = {}
    for name in (GLOO, OWN):
        # A difference of less than 1 us counts as 1 us, because samples must be positive.
        exposed = np.maximum(np.array(case.side(name).samples_us) - product, 1.0)
        shown = ratio_of_medians(exposed, np.array(case.side(f"{name} alone").samples_us))
        hidden[name] = Interval(1 - shown.value, 1 - shown.high, 1 - shown.low, shown.coverage)
    own = hidden[OWN]
    holds = own.value >= LEAST_HIDDEN
    shares = ", ".join(f"{each.value:.0%} [{each.low:.0%}, {each.high:.0%}] {name}" for name, each in hidden.items())
    return {
        "schema": SCHEMA,
        "kind": "overlap",
        "script": bench.script,
        "case": case.name,
        "ranks": bench.comm.size,
        "nbytes": case.nbytes,
        "hidden": {name: each.value for name, each in hidden.items()},
        "musts": [{"text": f"at least {LEAST_HIDDEN:.0%} hidden", "ratio": asdict(own), "holds": holds}],
        "line": f"{case.name}: hidden share: {shares} (at least {LEAST_HIDDEN:.0%}: {'holds' if holds else 'MISSED'})",
    }


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(__doc__ or "", "1M,16M,64M", measure))
