"""Schedules equal those of torch.distributed.pipelining, and files are converted in both directions and formats."""

from __future__ import annotations

from unittest import mock

import pytest

from hpccoll.errors import PlanError
from hpccoll.plan import check_schedule
from hpccoll.plan.interchange.torch_schedules import CsvFormat, format_schedule_csv, parse_schedule_csv
from hpccoll.plan.schedule import format_step
from hpccoll.schedules import make_schedule
from tests.requirements import skip_or_fail

try:
    from torch.distributed.pipelining import schedules as torch_schedules
    from torch.distributed.pipelining.stage import PipelineStage
except ImportError:
    skip_or_fail("torch.distributed.pipelining cannot be imported")

pytestmark = pytest.mark.slow
CASES = [
    *[("gpipe", "ScheduleGPipe", 4, m) for m in (1, 7)],
    ("1f1b", "Schedule1F1B", 4, 7),
    *[("interleaved_1f1b", "ScheduleInterleaved1F1B", 8, m) for m in (3, 8, 10)],
    *[("looped_bfs", "ScheduleLoopedBFS", 8, m) for m in (2, 9)],
    *[("zb_h1", "ScheduleInterleavedZeroBubble", 4, m) for m in (1, 4, 12)],
    *[("zbv", "ScheduleZBVZeroBubble", 8, m) for m in (1, 5, 12)],
    *[("dualpipev", "ScheduleDualPipeV", 8, m) for m in (8, 13)],
]
HAS_WAITS = hasattr(torch_schedules, "_add_wait_send")  # torch from 2.15
WAIT_SUM = "WAIT_REDUCE_GRAD"
WITH_MESSAGES: CsvFormat = "compute_comms_waits" if HAS_WAITS else "compute_comms"  # torch's compute_comms


def make_torch(name, schedule):
    """Return torch's passes, the same with messages, and a runtime of torch; no stage has a module."""
    ranks, stages, microbatches = schedule.ranks, schedule.stages, schedule.microbatches
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.submod, stage.num_stages = 0, ranks, None, stages
    if name == "Schedule1F1B":  # the list of torch 2.13 begins with micro-batch 1 on the last rank; torch runs another
        order = dict(
            enumerate([[torch_schedules._Action.from_str(cell) for cell in row] for row in format_passes(schedule)])
        )
    elif name == "ScheduleGPipe":
        order = torch_schedules.ScheduleGPipe(stage, microbatches)._get_pipeline_order()
    else:
        order = getattr(torch_schedules, name)([stage] * (stages // ranks), microbatches).pipeline_order
    passes = {
        rank: [each for each in row if each is not None and not each.computation_type.value.endswith("REDUCE_GRAD")]
        for rank, row in order.items()
    }
    runtime = torch_schedules._PipelineScheduleRuntime([stage] * (stages // ranks), microbatches)
    runtime.pipeline_order = passes
    runtime._prepare_schedule_with_comms(passes)
    # torch from 2.15 places messages after waits for sums, which moves messages; such waits are left out here.
    reduced = {
        rank: [each for each in torch_schedules._add_reduce_grad(row, microbatches) if not str(each).endswith(WAIT_SUM)]
        for rank, row in passes.items()
    }
    with_messages = torch_schedules._add_send_recv(reduced, schedule.stage_ranks.__getitem__, stages)
    return passes, torch_schedules._add_wait_send(with_messages) if HAS_WAITS else with_messages, runtime


def format_passes(schedule):
    """Return the passes of each rank in torch's notation."""
    return format_programs(schedule.select_passes())


def format_rows(rows):
    """Return torch's actions of each rank as strings."""
    return [[str(each) for each in rows[rank] if each is not None] for rank in sorted(rows)]


def format_programs(schedule):
    """Return the steps of each rank in torch's notation."""
    return [[format_step(step) for step in program] for program in schedule.programs]


@pytest.mark.parametrize(("name", "theirs", "stages", "microbatches"), CASES)
def test_passes_messages_and_activations_are_those_of_torch(name, theirs, stages, microbatches):
    schedule = make_schedule(name, stages, microbatches)
    passes, with_messages, _ = make_torch(theirs, schedule)
    assert format_passes(schedule) == format_rows(passes)
    rows = format_programs(schedule.add_waits() if HAS_WAITS else schedule)
    assert [[cell for cell in row if not cell.endswith(WAIT_SUM)] for row in rows] == format_rows(with_messages)
    # torch's simulation knows neither the sum of gradients nor overlapped passes.
    parts = {
        rank: [part for each in row for part in (each.sub_actions or (each,)) if part.microbatch_index is not None]
        for rank, row in with_messages.items()
    }
    simulated = torch_schedules._simulate_comms_compute(parts, schedule.stage_ranks.__getitem__, stages)
    proof = check_schedule(schedule)
    assert (proof.activations, proof.rank_activations) == count_live(simulated, stages)


def count_live(steps, stages):
    """Return the most live micro-batches of each stage and of each rank in torch's simulated time steps."""
    most, rank_most = [0] * stages, []
    live = [0] * stages
    for rank in sorted(steps):
        held = peak = 0
        for action in (each for each in steps[rank] if each is not None):
            change = {"F": 1, "B": -1, "W": -1}.get(action.computation_type.value, 0)
            live[action.stage_index] += change
            held += change
            most[action.stage_index] = max(most[action.stage_index], live[action.stage_index])
            peak = max(peak, held)
        rank_most.append(peak)
    return tuple(most), tuple(rank_most)


@pytest.mark.parametrize(("name", "theirs", "stages", "microbatches"), [CASES[i] for i in (2, 4, 15)])
def test_files_go_both_ways(tmp_path, name, theirs, stages, microbatches):
    schedule = make_schedule(name, stages, microbatches)
    _, _, runtime = make_torch(theirs, schedule)
    file = tmp_path / "schedule.csv"
    for csv_format in ("compute_only", "compute_comms"):
        runtime._dump_csv(str(file), csv_format)
        found = parse_schedule_csv(file.read_text(), "torch.csv")
        check_schedule(found)
        assert (found.ranks, found.stage_ranks, found.microbatches) == (
            *(schedule.ranks, schedule.stage_ranks, schedule.microbatches),
        )
        text = format_schedule_csv(schedule, "compute_only" if csv_format == "compute_only" else WITH_MESSAGES)
        file.write_text(text)
        runtime._load_csv(str(file), csv_format)
        rows = runtime.pipeline_order if csv_format == "compute_only" else runtime.pipeline_order_with_comms
        assert [",".join(row) for row in format_rows(rows)] == text.splitlines()


def test_torch_accepts_a_send_that_is_never_received_and_check_refuses_it(tmp_path):
    schedule = make_schedule("1f1b", 2, 2)
    text = format_schedule_csv(schedule, WITH_MESSAGES).replace("1RECV_F1,", "")
    file = tmp_path / "schedule.csv"
    file.write_text(text)
    _, _, runtime = make_torch("Schedule1F1B", schedule)
    runtime._load_csv(str(file), "compute_comms")
    with pytest.raises(PlanError, match=r"rank 1, action \d+ \(1F1\): it needs the receive of the input 1RECV_F1"):
        check_schedule(parse_schedule_csv(text, "schedule.csv"))
