"""A trace of a real run contains every rank's steps, one after the other, within the run."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from hpccoll.algorithms import get_algorithm
from hpccoll.measure.step_timeline import measure_steps
from hpccoll.plan import Operation
from hpccoll.plan.drawing.trace import make_trace

pytestmark = pytest.mark.mpi

NAMES = ["all_reduce/ring", "broadcast/tree", "gather/tree", "all_to_all/pairwise", "barrier/dissemination"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [0, 1000])
def test_a_measured_run_has_a_trace(name, count):
    world = MPI.COMM_WORLD
    operation, _, algorithm = name.partition("/")
    timeline = measure_steps(world, get_algorithm(Operation.from_name(operation), algorithm), count)
    if world.rank:
        assert timeline is None
        return
    assert timeline is not None
    assert "clock of one host" in timeline.clock
    assert {each.name for each in timeline.slices} <= {"start", "wait", "copy", "reduce"}
    if world.size > 1 and operation == "barrier":
        assert {each.rank for each in timeline.slices} == set(range(world.size))
    ends = [0.0] * world.size
    for each in timeline.slices:
        assert each.start_us >= ends[each.rank] - 1e-3
        assert each.duration_us >= 0
        ends[each.rank] = each.start_us + each.duration_us
        assert ends[each.rank] <= timeline.duration_us
    assert len([event for event in make_trace(timeline)["traceEvents"] if event["ph"] == "X"]) == len(timeline.slices)


def test_a_reducing_rank_is_seen_to_reduce():
    world = MPI.COMM_WORLD
    timeline = measure_steps(world, get_algorithm(Operation.ALL_REDUCE, "ring"), 1000)
    if timeline is not None and world.size > 1:
        names = [each.name for each in timeline.slices]
        assert names.count("reduce") == world.size * (world.size - 1)
        assert names.count("start") == names.count("wait") == 2 * world.size * 2 * (world.size - 1)
