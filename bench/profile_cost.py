"""Measures by how much `hpccoll profile` lengthens a call: `python bench/profile_cost.py [ddp]`.

A loop of 8-byte all-reduces on one rank runs with and without the recording, in turns. With `ddp`, forward and backward
passes of DistributedDataParallel over Gloo run in place of the loop. The output has the shortest time of each side,
because other programs on the machine only make times longer.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from hpccoll.native import replace_attribute
from hpccoll.profile.instrumentation import Instrumentation
from hpccoll.profile.recorder import RecordingOptions

CALLS, ROUNDS = 2000, 100


def time_calls(comm: MPI.Intracomm, x: np.ndarray, y: np.ndarray) -> float:
    """Return the microseconds of a call."""
    begin = time.perf_counter()
    for _ in range(CALLS):
        comm.Allreduce(x, y)
    return (time.perf_counter() - begin) / CALLS * 1e6


def compare_calls() -> None:
    """Print the times of an all-reduce of mpi4py, and their difference."""
    original = vars(MPI.Comm)["Allreduce"]
    comm, x, y = MPI.COMM_SELF, np.zeros(1), np.zeros(1)
    with tempfile.TemporaryDirectory() as directory:
        instrumentation = Instrumentation(RecordingOptions(directory))
        instrumentation.install()
        recorded = vars(MPI.Comm)["Allreduce"]
        times: dict[str, list[float]] = {"recorded": [], "plain": []}
        for _ in range(ROUNDS):
            for name, method in (("recorded", recorded), ("plain", original)):
                replace_attribute(MPI.Comm, "Allreduce", method)
                times[name].append(time_calls(comm, x, y))
        if instrumentation.recorder is not None:
            instrumentation.recorder.end()
    with_us, plain_us = (min(times[name]) for name in ("recorded", "plain"))
    print(f"recorded {with_us:.3f} us, plain {plain_us:.3f} us, a call is {with_us - plain_us:.3f} us longer")


BUCKETS, STEPS = 8, 10


def time_steps(model: Any) -> float:
    """Return the microseconds of a forward and a backward pass per bucket."""
    begin = time.perf_counter()
    for _ in range(STEPS):
        model(torch.ones(4, 32)).sum().backward()
    return (time.perf_counter() - begin) / STEPS / BUCKETS * 1e6


def compare_steps() -> None:
    """Print the times of a step of DistributedDataParallel per bucket, and their difference."""
    torch.set_num_threads(1)
    plain_reducer = dist.Reducer
    with tempfile.TemporaryDirectory() as directory:
        instrumentation = Instrumentation(RecordingOptions(directory))
        instrumentation.install()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        recorded_reducer, models = dist.Reducer, {}
        for name, reducer in (("recorded", recorded_reducer), ("plain", plain_reducer)):
            dist.Reducer = reducer
            layers = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(BUCKETS)))
            models[name] = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.004)
        times = {
            name: min(time_steps(models[name]) for _ in range(3)) for name in models
        }  # the first one makes buckets
        for _ in range(ROUNDS):
            times = {name: min(times[name], time_steps(models[name])) for name in models}
        if instrumentation.recorder is not None:
            instrumentation.recorder.end()
    dist.destroy_process_group()
    longer = times["recorded"] - times["plain"]
    print(f"recorded {times['recorded']:.1f} us, plain {times['plain']:.1f} us, a bucket takes {longer:.1f} us longer")


if __name__ == "__main__":
    compare_steps() if "ddp" in sys.argv[1:] else compare_calls()
