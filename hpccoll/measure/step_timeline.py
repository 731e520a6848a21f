"""Times every step of one call on every rank, for a timeline of a real run.

Reading the clock takes about 0.2 us per step, as long as a short step, so the timeline is slower than an untimed call;
`hpccoll bench` measures that. Ranks on one host share a clock. On several hosts each rank's clock is set to zero when
it leaves a barrier, so slices of different hosts may be shifted by the barrier's exit skew; the timeline says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccoll.algorithms import Algorithm
from hpccoll.communicator import Communicator
from hpccoll.measure.workload import Workload, WorkloadSpec
from hpccoll.plan import Operation
from hpccoll.plan.simulation import Slice, Timeline
from hpccoll.runtime.arrays import NumPyModule, get_dtype
from hpccoll.runtime.job import detect_layout

if TYPE_CHECKING:
    from mpi4py import MPI

TimedStep = tuple[str, float, float]  # name, start and end in seconds
WARMUP = 3  # untimed calls before the timed one
_NAMES = {"Start": "start", "Wait": "wait"}


def measure_steps(world: MPI.Intracomm, algorithm: Algorithm, count: int, root: int = 0) -> Timeline | None:
    """Run `algorithm` on `count` float32 elements per vector or block; collective over `world`.

    Returns:
        The timeline of all ranks on rank 0, None on the others.
    """
    operation, shape = algorithm.operation, detect_layout(world)
    task = WorkloadSpec(operation, count, get_dtype("float32"), "sum", root, False, world.rank, world.size)
    workload = Workload(task, NumPyModule())
    x, out = workload.source, workload.result
    if operation is Operation.BROADCAST:
        x, out = out, None
    with Communicator(world) as comm:
        run = comm.prepare(operation, x, out=out, root=root, algorithm=algorithm)
        for _ in range(WARMUP):
            workload.reset()
            run()
        workload.reset()
        world.Barrier()
        left = perf_counter()
        found = _timed(run.calls)
        run.free()
    gathered = world.gather((left, found))
    if gathered is None:
        return None
    name = f"{algorithm.full_name} on {world.size} ranks, {count} float32 elements"
    return _timeline(name, gathered, shape.nodes)


def _timed(steps: Sequence[Callable[[], Any]]) -> list[TimedStep]:
    ends = np.empty(len(steps) + 1)
    ends[0] = perf_counter()
    for number, step in enumerate(steps, 1):
        step()
        ends[number] = perf_counter()
    return [(_name(step), float(ends[i]), float(ends[i + 1])) for i, step in enumerate(steps)]


def _name(step: Callable[[], Any]) -> str:
    """Return whether a step starts a message, waits for one, copies or reduces."""
    if isinstance(step, partial) and step.func is np.copyto:
        return "copy"
    return _NAMES.get(getattr(step, "__name__", ""), "reduce")


def _timeline(name: str, gathered: Sequence[tuple[float, list[TimedStep]]], nodes: int) -> Timeline:
    first = min(left for left, _ in gathered)
    slices = []
    for rank, (left, found) in enumerate(gathered):
        zero = first if nodes == 1 else left
        for number, (what, start, end) in enumerate(found):
            slices.append(Slice(rank, what, (start - zero) * 1e6, (end - start) * 1e6, {"step": number}))
    one, several = "measured, the clock of one host", "measured, hosts' clocks set to zero after a barrier"
    return Timeline(name, len(gathered), one if nodes == 1 else several, tuple(slices))
