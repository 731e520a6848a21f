"""Measure how much of the communication of a data-parallel step its backward pass hides, on several nodes.

The model has 8 linear layers of 384 x 384 (4.5 MiB of gradients, in buckets of one layer), and a batch of 3072 rows
per rank. The sides are the step with gradient buckets, the step whose buckets are summed after the backward pass, the
step without communication, and the communication without a step. The hidden share of a side is 1 - (step - step without
communication) / communication, with the steps of the same round. The last line compares the hidden share with the
largest share that a model of the step allows: the layers' gradients are complete at even intervals of the backward
pass, which takes two thirds of the step, and the link carries one bucket after the other.

    hpccoll lab run --link 400M --nodes 2 -- srun --mpi=pmi2 -N2 -n2 python bench/train_overlap.py
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from compare import Bench, Case, Must, Side
from script import Result, main
from torch import nn
from torch_backend import ALONE, Call
from train_step import make_dp_step

from hpccoll.parallel.axis_group import AxisGroup, MeshGroups
from hpccoll.parallel.mesh import Mesh
from hpccoll.records import SCHEMA
from hpccoll.statistics import Interval, ratio_of_medians
from hpccoll.train.trainer import keep_freed_memory

LAYERS, WIDTH, ROWS = 8, 384, 3072
BUCKET_BYTES = 4 * WIDTH * (WIDTH + 1)  # one layer
NBYTES = LAYERS * BUCKET_BYTES
OVERLAPPED, AFTERWARDS, LINK = "overlapped", "after the backward pass", "communication alone"
LEAST_HIDDEN = 0.6


def measure(bench: Bench) -> Iterator[Result]:
    """Yield the case of the training step, and the hidden shares."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    keep_freed_memory()
    dp = MeshGroups.create(bench.own, Mesh(dp=bench.comm.size)).dp
    x = torch.randn(ROWS, WIDTH)
    must = Must("no slower", AFTERWARDS)
    sides = [
        Side(AFTERWARDS, step := make_dp_step(make_model(), dp, x, BUCKET_BYTES, overlaps=False)),
        Side(f"{AFTERWARDS}, again (A/A)", step),
        Side(OVERLAPPED, make_dp_step(make_model(), dp, x, BUCKET_BYTES), (must,)),
        Side(ALONE, make_local_step(make_model(), x), checked=False),
        Side(LINK, make_communication(dp), checked=False),
    ]
    case = bench.run(Case("DP step", NBYTES, 1, sides))
    yield case
    yield make_overlap_record(bench, case)


def make_model() -> nn.Sequential:
    """Return the model, with the same parameters on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def make_local_step(model: nn.Module, x: Any) -> Call:
    """Return a training step on this rank alone, without communication."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def make_communication(dp: AxisGroup) -> Call:
    """Return the all_reduces of a step, one after the other."""
    buffers = [dp.empty(BUCKET_BYTES // 4, torch.zeros(1)).zero_() for _ in range(LAYERS)]

    def communicate() -> None:
        for buffer in buffers:
            dp.all_reduce(buffer)

    return communicate


def find_largest_hidden_share(backward_us: float, communication_us: float) -> float:
    """Return the largest share of the communication that the backward pass can hide, with a bucket per layer."""
    done_us = 0.0
    for layer in range(1, LAYERS + 1):
        done_us = max(done_us, layer * backward_us / LAYERS) + communication_us / LAYERS
    return 1 - (done_us - backward_us) / communication_us


def make_overlap_record(bench: Bench, case: Case) -> dict[str, Any]:
    """Return the record of the hidden shares; at least LEAST_HIDDEN must be hidden if the model allows it."""
    alone, link = (np.array(case.side(name).samples_us) for name in (ALONE, LINK))
    # A difference of less than 1 us counts as 1 us, because samples must be positive.
    exposed = {name: np.maximum(case.side(name).samples_us - alone, 1.0) for name in (OVERLAPPED, AFTERWARDS)}
    ratios = {name: ratio_of_medians(samples, link) for name, samples in exposed.items()}
    hidden = {name: 1 - ratio.value for name, ratio in ratios.items()}
    communication_us, overlapped = float(np.median(link)), ratios[OVERLAPPED]
    largest = find_largest_hidden_share(float(np.median(alone)) * 2 / 3, communication_us)
    holds = hidden[OVERLAPPED] >= min(LEAST_HIDDEN, largest)
    share = Interval(hidden[OVERLAPPED], 1 - overlapped.high, 1 - overlapped.low, overlapped.coverage)
    shares = ", ".join(f"{value:.0%} {name}" for name, value in hidden.items())
    return {
        "schema": SCHEMA,
        "kind": "overlap",
        "script": bench.script,
        "case": case.name,
        "ranks": bench.comm.size,
        "nbytes": case.nbytes,
        "communication_us": communication_us,
        "hidden": hidden,
        "largest_hidden": largest,
        "musts": [{"text": f"at least {LEAST_HIDDEN:.0%} hidden", "ratio": asdict(share), "holds": holds}],
        "line": f"{case.name}: hidden share of {communication_us:.0f} us of communication: {shares}; "
        f"at most {largest:.0%} by the model (at least {LEAST_HIDDEN:.0%}: {'holds' if holds else 'MISSED'})",
    }


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(__doc__ or "", "16M", measure))
