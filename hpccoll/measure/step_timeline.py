"""Times every step of one collective call on every rank, for a timeline of a real run.

Reading the clock takes about 0.2 us per step, as long as a short step, so the timed call is slower than the calls that
`hpccoll bench` measures as a whole. Ranks on one host share a clock. On several hosts, a rank's times start when the
rank leaves a barrier, so two ranks' timelines may be shifted by the skew with which they leave the barrier. The
timeline states which clocks it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccoll.algorithms import Algorithm
from hpccoll.arrays import NumPyModule, get_dtype
from hpccoll.communicator import Communicator
from hpccoll.measure.workload import Workload, WorkloadSpec
from hpccoll.plan import Operation
from hpccoll.plan.simulation import Slice, Timeline
from hpccoll.runtime.job import detect_layout
from hpccoll.units import format_count

if TYPE_CHECKING:
    from mpi4py import MPI

StepTimes = tuple[str, float, float]  # name, start and end in seconds
WARMUP = 3  # untimed calls before the timed one
_NAMES = {"Start": "start", "Wait": "wait"}


def measure_steps(world: MPI.Intracomm, algorithm: Algorithm, count: int, root: int = 0) -> Timeline | None:
    """Time each step of one run of `algorithm`, after WARMUP untimed runs; collective over `world`.

    `count` is the number of float32 elements of the vector, or of one block in operations with a block per rank.
    Returns the timeline of all ranks on rank 0, None on the others.
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
        timed = _run_timed(run.calls)
        run.free()
    gathered = world.gather((left, timed))
    if gathered is None:
        return None
    name = f"{algorithm.full_name} on {format_count(world.size, 'rank')}, {count} float32 elements"
    return _make_timeline(name, gathered, shape.nodes)


def _run_timed(steps: Sequence[Callable[[], Any]]) -> list[StepTimes]:
    """Call the steps in order; return the kind of each, and its start and end in seconds."""
    ends = np.empty(len(steps) + 1)
    ends[0] = perf_counter()
    for number, step in enumerate(steps, 1):
        step()
        ends[number] = perf_counter()
    return [(_classify_step(step), float(ends[i]), float(ends[i + 1])) for i, step in enumerate(steps)]


def _classify_step(step: Callable[[], Any]) -> str:
    """Return the kind of a step: `start` or `wait` (of messages), `copy` or `reduce`."""
    if isinstance(step, partial) and step.func is np.copyto:
        return "copy"
    return _NAMES.get(getattr(step, "__name__", ""), "reduce")


def _make_timeline(name: str, gathered: Sequence[tuple[float, list[StepTimes]]], nodes: int) -> Timeline:
    """Return a timeline with the name `name`, for all ranks of a job on `nodes` nodes.

    `gathered` has, for each rank, the time at which it left a barrier, and its timed steps.
    """
    first = min(left for left, _ in gathered)
    slices = []
    for rank, (left, steps) in enumerate(gathered):
        zero = first if nodes == 1 else left
        for number, (step, start, end) in enumerate(steps):
            slices.append(Slice(rank, step, (start - zero) * 1e6, (end - start) * 1e6, {"step": number}))
    one, several = "measured, the clock of one host", "measured, hosts' clocks set to zero after a barrier"
    return Timeline(name, len(gathered), one if nodes == 1 else several, tuple(slices))
