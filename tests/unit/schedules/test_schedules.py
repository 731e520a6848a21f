"""Every built-in schedule is proven, its idle times are the published ones, and its activations those stated."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from hpccoll.errors import DeadlockError, HpccollError, PlanError, UnknownNameError, UsageError
from hpccoll.plan import PassTimes, check_schedule, simulate_schedule
from hpccoll.plan.interchange.torch_schedules import format_schedule_csv, parse_schedule_csv
from hpccoll.plan.schedule import format_step
from hpccoll.schedules import get_schedule, list_schedule_names, list_schedules, make_schedule

TIMES = (PassTimes(), PassTimes(1, 2, 1), PassTimes(3, 2, 2), PassTimes(2, 3, 2), PassTimes(2, 1, 3))
NAMES = ("1f1b", "dualpipev", "gpipe", "interleaved_1f1b", "looped_bfs", "zb_h1", "zbv")


def format_programs(schedule):
    """Return the passes of each rank in torch's notation."""
    return [" ".join(format_step(step) for step in program) for program in schedule.select_passes().programs]


def prove(family, stages, microbatches, times):
    """Prove a schedule and compare its idle times with the published ones; return whether there are any."""
    schedule = family.plan(stages, microbatches)
    proof = check_schedule(schedule)
    assert proof.messages == 2 * microbatches * sum(
        schedule.stage_ranks[stage] != schedule.stage_ranks[stage + 1] for stage in range(stages - 1)
    )
    assert proof.activations == schedule.activations
    published = 0
    for each in times:
        simulation = simulate_schedule(schedule, each)
        idle = family.idle_time(family.shape(stages, microbatches), each)
        published += idle is not None
        assert idle is None or simulation.get_idle_times() == [idle] * schedule.ranks
        if family.name == "zbv" and idle is not None:
            for rank in range(schedule.ranks):
                own = [step for step in simulation.steps if step.rank == rank]
                assert own[-1].end - own[0].start == sum(step.end - step.start for step in own)
    return published


@pytest.mark.parametrize("name", NAMES)
def test_schedules_are_proven_and_idle_as_published(name):
    family, published = get_schedule(name), 0
    for stages in (2, 3, 4, 6, 8):
        for microbatches in (1, 2, 3, 4, 6, 8, 13, 16):
            if family.allows(stages, microbatches):
                published += prove(family, stages, microbatches, TIMES)
    assert published > 10


@pytest.mark.full
@pytest.mark.parametrize("stages", range(2, 33))
@pytest.mark.parametrize("name", NAMES)
def test_schedules_are_proven_for_all_counts(name, stages):
    family = get_schedule(name)
    for microbatches in range(1, 65):
        if family.allows(stages, microbatches):
            prove(family, stages, microbatches, TIMES[:1])


def test_definitions_allow_these_counts():
    allowed = {
        name: {(s, m) for s in range(2, 33) for m in range(1, 65) if get_schedule(name).allows(s, m)} for name in NAMES
    }
    every = {(s, m) for s in range(2, 33) for m in range(1, 65)}
    even = {(s, m) for s, m in every if s % 2 == 0}
    assert list_schedule_names() == sorted(NAMES) == [each.name for each in list_schedules()]
    assert allowed["gpipe"] == allowed["1f1b"] == allowed["zb_h1"] == every
    assert allowed["looped_bfs"] == allowed["zbv"] == even
    assert allowed["dualpipev"] == {(s, m) for s, m in even if m >= s}
    assert allowed["interleaved_1f1b"] == {(s, m) for s, m in even if m % max(1, m // (s // 2)) == 0}


def test_counts_of_zero_are_not_allowed():
    assert not any(get_schedule(name).allows(*counts) for name in NAMES for counts in [(0, 4), (4, 0), (-4, 4)])


def test_orders_are_the_published_ones():
    assert format_programs(make_schedule("gpipe", 2, 3))[0] == "0F0 0F1 0F2 0B0 0B1 0B2"
    assert format_programs(make_schedule("1f1b", 3, 4)) == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
    ]
    assert format_programs(make_schedule("1f1b", 4, 2))[0] == "0F0 0F1 0B0 0B1"
    assert format_programs(make_schedule("zb_h1", 2, 3))[1] == "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"
    assert format_programs(make_schedule("interleaved_1f1b", 4, 2)) == [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
    ]
    assert format_programs(make_schedule("looped_bfs", 4, 2))[0] == "0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0"
    assert format_programs(make_schedule("zbv", 4, 1))[0] == "0F0 3F0 3I0 3W0 0I0 0W0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("zbv", 5, 4), "zbv cannot put 5 stages on ranks with 2 each; need a multiple of 2"),
        (("dualpipev", 8, 4), "dualpipev with 4 ranks needs at least as many micro-batches as stages, 8, not 4"),
        (("interleaved_1f1b", 8, 9), "needs a multiple of 2 micro-batches, not 9"),
        (("1f1b", 4, 4, 2), "1f1b has 1 stage per rank, not 2"),
        (("looped_bfs", 4, 4, 1), "looped_bfs has at least 2 stages per rank, not 1"),
        (("gpipe", 0, 4), "gpipe cannot have 0 stages and 4 micro-batches; need at least one of each"),
    ],
)
def test_excluded_counts_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        make_schedule(*arguments)


def test_an_unknown_schedule_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match="did you mean 1f1b"):
        get_schedule("1f1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0", r"rank 1: 1SEND_B0 is missing, the send .* for micro-batch 0"),
        ("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", r"rank 0, action 3 \(0B0\): it needs .* 0RECV_B0; put"),
        ("0F0,0B0\n1B0,1F0", r"rank 1, action 1 \(1B0\): it needs the forward pass 1F0; put it before"),
        ("0F0,0B0,0F0", r"rank 0, action 3 \(0F0\): it repeats action 1; remove one of them"),
        ("0F0,0I0", "rank 0: 0W0 is missing, the backward pass for weights of stage 0 for micro-batch 0; add it"),
        ("0F0,0I0,0W0,0B0", r"\(0B0\): action 2 \(0I0\) has computed this gradient; remove one of them"),
        ("0F0,1F0,0SEND_F0,1B0,0B0", r"action 3 \(0SEND_F0\): stage 1 is on the same rank, so no message is needed"),
        ("0F0,0SEND_B0,0B0", r"\(0SEND_B0\): stage 0 is the first one and has no such message; remove it"),
        ("0UNSHARD,0F0,0RESHARD,0B0", r"\(0B0\): the weights of stage 0 are not gathered; put 0UNSHARD before it"),
        ("0UNSHARD,0UNSHARD,0F0,0B0", r"action 2 \(0UNSHARD\): the weights of stage 0 are already gathered"),
        ("0UNSHARD,0F0,0B0", "rank 0: 0RESHARD is missing"),
        ("0F0,0F1,0B0,0REDUCE_GRAD,0B1", r"\(0REDUCE_GRAD\): it needs the backward pass 0B1 or 0W1; put it before"),
        ("0F0,1F0,1B0,0B0,0REDUCE_GRAD", "rank 0: 1REDUCE_GRAD is missing"),
        ("0F0,(0F1;0F1)OVERLAP_F_B,0B0,0B1", "only different passes can be computed at the same time"),
        ("0F0,1F0,1I0,0B0,1W0\n1B0", r"rank 1, action 1 \(1B0\): stage 1 is on rank 0; move the action there"),
        ("0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1\n"
         "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1",
         r"rank 0, action 3 \(0SEND_F1\) meets rank 1, action 1 \(1RECV_F0\), but needs 1RECV_F1; list the messages"),
        ("0RECV_B0,0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0",
         r"rank 0, action 1 \(0RECV_B0\) meets rank 1, action 1 \(1RECV_F0\), but needs 1SEND_B0; list the messages"),
        ("0F1,0F0,0B0,0B1\n1F0,1B0,1F1,1B1", None),
        ("0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0\n1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0", None),
        ("0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0",
         r"action 2 \(0WAIT_SEND_F0\): it needs the send of the output 0SEND_F0; put it before"),
        ("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0WAIT_SEND_F1\n"
         "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1",
         "rank 0: 0WAIT_SEND_F0 is missing, the wait for the send of the output of stage 0 for micro-batch 0; add it"),
        ("0F0,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD,1WAIT_REDUCE_GRAD,0WAIT_REDUCE_GRAD",
         r"action 6 \(0REDUCE_GRAD\): the sum of the gradients of stage 1 is not complete; put 1WAIT_REDUCE_GRAD"),
        ("0F0,1F0,1B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,0B0,0REDUCE_GRAD", "rank 0: 0WAIT_REDUCE_GRAD is missing"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(text, message):
    schedule = parse_schedule_csv(text, "mine.csv")
    if message is None:
        check_schedule(schedule)
        return
    with pytest.raises(PlanError, match=message):
        check_schedule(schedule)


def test_a_deadlock_names_the_ranks_in_the_circle():
    schedule = parse_schedule_csv("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0", "mine.csv")
    message = (
        r"deadlock: rank 0 waits at action 2 \(0B0\) for 1B0 of rank 1; rank 1 waits at .* \(1F1\) for 0F1 of rank 0"
    )
    with pytest.raises(DeadlockError, match=message) as caught:
        check_schedule(schedule)
    assert set(caught.value.stuck) == {0, 1}
    with pytest.raises(PlanError, match="has no place for messages"):
        schedule.add_messages()
    with pytest.raises(PlanError, match="has no time"):
        simulate_schedule(schedule)


def test_a_wait_for_a_send_deadlocks_if_the_receive_needs_a_later_action():
    early = "0F0,0SEND_F0,3RECV_F0,0RECV_B0,0F1,0SEND_F1,0WAIT_SEND_F1,3F0,3B0,3SEND_B0,0B0,3RECV_F1,3F1,3B1,3SEND_B1,"
    early += "0RECV_B1,0B1,0WAIT_SEND_F0"
    late = early.replace(",0WAIT_SEND_F1", "") + ",0WAIT_SEND_F1"
    others = [
        f"{s}RECV_F0,{s}F0,{s}SEND_F0,{s}RECV_B0,{s}B0,{s}SEND_B0,{s}RECV_F1,{s}F1,{s}SEND_F1,{s}RECV_B1,{s}B1,{s}SEND_B1,"
        f"{s}WAIT_SEND_F0,{s}WAIT_SEND_F1"
        for s in (1, 2)
    ]
    check_schedule(parse_schedule_csv("\n".join([late, *others]), "mine.csv"))
    message = r"rank 0 waits at action 7 \(0WAIT_SEND_F1\) for 1RECV_F1 of rank 1; rank 1 waits at .* \(1B0\)"
    with pytest.raises(DeadlockError, match=message):
        check_schedule(parse_schedule_csv("\n".join([early, *others]), "mine.csv"))


def test_more_live_activations_than_stated_are_refused():
    schedule = replace(make_schedule("gpipe", 2, 3), activations=(3, 2))
    with pytest.raises(
        PlanError, match=r"rank 1, action \d+ \(1F2\): 3 micro-batches are live on stage 1, .* at most 2"
    ):
        check_schedule(schedule)


def test_transfers_and_overlapped_passes_take_their_time():
    two = simulate_schedule(make_schedule("gpipe", 2, 1), PassTimes(2, 3, 4, 5))
    assert two.time == 2 + 5 + 2 + 7 + 5 + 7
    assert two.bubble == pytest.approx(1 - 9 / 28)
    one = simulate_schedule(make_schedule("dualpipev", 2, 2), PassTimes(1, 1, 1, 0, 2))
    overlapped = sum(len(step) == 2 for program in one.schedule.programs for step in program)
    assert (one.time, overlapped) == (11, 1)


def test_schedules_survive_both_formats():
    for family in list_schedules():
        schedule = family.plan(8, 8)
        full = parse_schedule_csv(format_schedule_csv(schedule), "x")
        assert (full.programs, full.stage_ranks, full.has_messages) == (schedule.programs, schedule.stage_ranks, True)
        waits = parse_schedule_csv(format_schedule_csv(schedule, "compute_comms_waits"), "x")
        assert waits.programs == schedule.add_waits().programs
        assert check_schedule(waits).messages == check_schedule(schedule).messages
        passes = parse_schedule_csv(format_schedule_csv(schedule, "compute_only"), "x", "compute_only")
        assert passes.add_reductions().add_messages().programs == schedule.programs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mine.csv has no actions; write a line per rank, such as 0F0,0B0"),
        ("0F0,0X0\n", r"mine.csv, line 1, column 2: '0X0' is no action; write stage, kind and micro-batch"),
        ("0F0,0F\n", r"line 1, column 2: '0F': F is for one micro-batch; write 0F0"),
        ("0F0\n0UNSHARD3\n", r"line 2, column 1: .* UNSHARD is for a stage and has no micro-batch; write 0UNSHARD"),
        ("0F0,(0F1;)OVERLAP_F_B\n", r"line 1, column 2: '\(0F1;\)OVERLAP_F_B' is no action"),
        ("99999999F0,0B0\n", r"line 1, column 1: '99999999F0' is no action"),
        ("0F0,999999B0\n", "no rank has an action of stage 1, but rank 0 has one of stage 999999"),
        ("0F0,0B999999\n", "micro-batch 1 does not occur, but micro-batch 999999 does; number"),
        ('0F0,"0B0\n1F0', r"mine.csv, line 1: unexpected end of data; write one line of comma-separated cells"),
        ("0F0,-1B0", r"column 2: '-1B0' is no action"),
    ],
)
def test_unreadable_files_name_line_and_column(text, message):
    with pytest.raises((UsageError, PlanError), match=message):
        parse_schedule_csv(text, "mine.csv")


def test_fuzzed_files_are_read_or_refused_in_one_paragraph():
    rng = random.Random(3)
    letters = "0123456789FBIW,;()_SENDRCVOLAP\n\r\t \"\x00\u00e9'"
    original = format_schedule_csv(make_schedule("dualpipev", 4, 4))
    refused = 0
    for _ in range(400):
        text = list(original)
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(text))
            text[at : at + rng.randrange(3)] = rng.choices(letters, k=rng.randrange(3))
        try:
            check_schedule(parse_schedule_csv("".join(text), "mine.csv"))
        except HpccollError as error:
            refused += 1
            message = str(error)
            assert not set(message) & set("\r\n\x00")
            assert re.search(r"line \d+|rank \d+|mine.csv: (no rank|micro-batch)", message), message
    assert refused > 300


def test_the_format_for_passes_has_no_messages():
    with pytest.raises(
        UsageError, match=r"line 1, column 2: 0SEND_F0 is no pass, .*; remove the cell, or read the file as"
    ):
        parse_schedule_csv("0F0,0SEND_F0", "mine.csv", "compute_only")
    with pytest.raises(PlanError, match=r"it needs the receive of .* 0RECV_B0; put it before"):
        check_schedule(parse_schedule_csv("0F0,0B0\n1F0,1B0", "mine.csv", "compute_comms"))
