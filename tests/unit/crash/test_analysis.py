"""The analysis names the guilty rank and never a waiting one, and reports a tie where the recordings are ambiguous."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hpccoll.crash import (
    CallRecord,
    JobEvidence,
    ProcessState,
    RankEvidence,
    Reason,
    analyze,
    format_analysis,
    format_call,
    format_last_operations,
    format_ranks,
)
from hpccoll.crash.wait_graph import build_wait_graph

ALL_REDUCE = (("count", "1000"), ("dtype", "float64"), ("algorithm", "ring"))
STUCK_AT = 10.0


def call(number, operation="all_reduce", details=ALL_REDUCE, communicator="1", done=True, **more):
    """Return call `number`, which began at second `number` and took half a second if it is done."""
    began = more.pop("began", float(number))
    return CallRecord(communicator, number, operation, details, began, began + 0.5 if done else None, **more)


def history(done, *more, **state):
    """Return the arguments of a rank with `done` finished calls, and then the calls `more`."""
    return tuple(call(number) for number in range(1, done + 1)) + more, state


def job(*ranks, members=None, now=STUCK_AT):
    """Return the evidence of a job whose ranks have the given calls and states."""
    evidence = {
        rank: RankEvidence(rank, "node0", 100 + rank, calls, **state) for rank, (calls, state) in enumerate(ranks)
    }
    return JobEvidence(len(ranks), evidence, members or {"1": tuple(range(len(ranks)))}, now)


WAITING = history(3, call(4, done=False))
DETAILS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "count": (("count", "999"), *ALL_REDUCE[1:]),
    "dtype": (("count", "1000"), ("dtype", "int32"), ("algorithm", "ring")),
    "algorithm": (*ALL_REDUCE[:2], ("algorithm", "tree")),
}


@pytest.mark.parametrize("began", [3.9, 4.1])
def test_the_call_of_the_majority_is_awaited_also_if_the_guilty_rank_made_its_call_first(began):
    odd = history(3, call(4, "barrier", (), done=False, began=began))
    found = analyze(job(WAITING, WAITING, odd))
    assert found.guilty == (2,)
    assert found.call is not None
    assert found.call.operation == "all_reduce"
    assert (found.arrived, found.absent) == ((0, 1), (2,))


@pytest.mark.parametrize("guilty", range(4))
@pytest.mark.parametrize("argument", DETAILS)
def test_the_minority_of_different_arguments_is_guilty(guilty, argument):
    odd = history(3, call(4, details=DETAILS[argument], done=False))
    found = analyze(job(*(odd if rank == guilty else WAITING for rank in range(4))))
    assert (found.reason, found.guilty) == (Reason.MISMATCH, (guilty,))
    assert found.disagreement is not None
    assert (found.disagreement.number, found.disagreement.differing) == (4, (argument,))


def test_another_operation_is_guilty_although_it_has_ended():
    odd = history(3, call(4, "broadcast", (("root", "1"),)), call(5, done=False))
    found = analyze(job(WAITING, odd, WAITING))
    assert (found.reason, found.guilty) == (Reason.MISMATCH, (1,))
    text = format_analysis(job(WAITING, odd, WAITING), found)
    assert "rank 1 made another call than the other ranks (its last operation was in call 5 (all_reduce" in text
    assert "First disagreement, in call 4: ranks 0, 2: all_reduce, count 1000" in text
    assert "rank 1: broadcast, root 1" in text


def test_the_first_of_two_disagreements_counts():
    early = history(2, call(3, "barrier", ()), call(4, done=False))
    late = history(3, call(4, "barrier", (), done=False))
    found = analyze(job(WAITING, late, WAITING, WAITING, early))
    assert found.guilty == (4,)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_tie_is_called_a_tie(ranks):
    odd = history(3, call(4, "barrier", (), done=False))
    evidence = job(*([WAITING, odd] * (ranks // 2)))
    found = analyze(evidence)
    assert (found.reason, found.guilty, found.suspects) == (Reason.MISMATCH, (), tuple(range(ranks)))
    assert "tie" in format_analysis(evidence, found)


def test_arguments_that_a_rank_did_not_record_are_not_compared():
    without = history(3, call(4, details=ALL_REDUCE[2:], done=False))
    stopped = history(3, call(4, done=False), process=ProcessState.STOPPED)
    assert analyze(job(WAITING, without, stopped)).reason is Reason.STOPPED


@pytest.mark.parametrize("guilty", range(3))
def test_a_rank_that_does_not_arrive_is_guilty(guilty):
    evidence = job(*(history(3) if rank == guilty else WAITING for rank in range(3)))
    found = analyze(evidence)
    assert (found.reason, found.guilty, found.absent) == (Reason.ABSENT, (guilty,), (guilty,))
    text = format_analysis(evidence, found)
    assert f"rank {guilty} is in no call, and other ranks wait for it (its last operation was after call 3" in text
    assert f"not arrived rank {guilty}." in text


def test_a_rank_without_recording_is_guilty():
    full = job(WAITING, WAITING, WAITING)
    evidence = replace(full, ranks={rank: full.ranks[rank] for rank in (0, 2)})
    found = analyze(evidence)
    assert (found.reason, found.guilty) == (Reason.ABSENT, (1,))
    assert "No recording of rank 1" in format_analysis(evidence, found)


def test_an_ended_program_is_described():
    evidence = job(WAITING, history(3, ending="by sys.exit(3)"), WAITING)
    assert "rank 1 ended its program by sys.exit(3)" in format_analysis(evidence, analyze(evidence))


@pytest.mark.parametrize("inside", [True, False])
def test_a_stopped_process_is_guilty_inside_and_outside_of_the_call(inside):
    calls, _ = WAITING if inside else history(3)
    found = analyze(job(WAITING, WAITING, (calls, {"process": ProcessState.STOPPED})))
    assert (found.reason, found.guilty) == (Reason.STOPPED, (2,))


def test_the_first_process_to_die_is_guilty():
    dead = ProcessState.DEAD
    died = [
        (calls, {"process": dead, "seen_dead": at})
        for (calls, _), at in zip([WAITING] * 3, (4.3, 4.2, 4.21), strict=True)
    ]
    found = analyze(job(*died, now=None))
    assert (found.reason, found.guilty) == (Reason.DEAD, (1,))


def test_a_process_that_dies_long_after_others_wait_is_a_victim():
    """An interrupted job dies in any order; the rank for which all ranks had been waiting is the cause."""
    died = [
        (calls, {"seen_dead": at})
        for (calls, _), at in zip((WAITING, history(3), WAITING), (60.0, 60.1, 60.1), strict=True)
    ]
    assert analyze(job(*died)).guilty == (1,)


def test_waits_are_followed_across_communicators():
    """Rank 0 waits for rank 1, which waits in a group for rank 2, which computes."""
    members = {"1": (0, 1, 3), "2": (1, 2)}
    in_group = history(3, call(1, communicator="2", done=False, began=4.0))
    found = analyze(job(WAITING, in_group, history(0), WAITING, members=members))
    assert (found.reason, found.guilty) == (Reason.ABSENT, (2,))
    assert found.call is not None
    assert found.call.communicator == "2"


def test_collectives_in_different_orders_are_a_cycle():
    members = {"1": (0, 1, 2, 3), "2": (0, 1, 2, 3)}
    other = history(3, call(1, communicator="2", done=False, began=4.0))
    found = analyze(job(WAITING, WAITING, other, WAITING, members=members))
    assert (found.reason, found.guilty) == (Reason.CYCLE, (2,))
    tie = analyze(job(WAITING, WAITING, other, other, members=members))
    assert (tie.reason, tie.guilty, tie.suspects) == (Reason.CYCLE, (), (0, 1, 2, 3))


def make_message(operation, peer, **more):
    """Return the record of a message that has not ended."""
    return CallRecord("1", 0, operation, (), 4.0, None, peer, **more)


def test_two_receives_wait_for_each_other():
    found = analyze(job(history(3, make_message("recv", 1)), history(3, make_message("recv", 0)), WAITING))
    assert (found.reason, found.guilty, found.suspects) == (Reason.CYCLE, (), (0, 1))


@pytest.mark.parametrize(("source", "awaited"), [(0, set()), (None, set()), (2, {1})])
def test_a_send_waits_for_no_rank_once_its_receive_has_begun(source, awaited):
    evidence = job(history(3, make_message("send", 1)), history(3, make_message("recv", source)), history(3))
    assert build_wait_graph(evidence).waits[0] == awaited


def test_a_receive_waits_for_its_sender():
    found = analyze(job(history(3, make_message("recv", 1)), history(3), history(3)))
    assert (found.reason, found.guilty) == (Reason.ABSENT, (1,))


def test_a_rank_with_unawaited_asynchronous_calls_is_in_no_call():
    found = analyze(job(WAITING, history(3, call(4, done=False, is_awaited=False)), history(3)))
    assert (found.reason, found.guilty) == (Reason.ABSENT, (2,))
    found = analyze(job(history(4, call(5, done=False)), history(3, call(4, done=False, is_awaited=False))))
    assert found.guilty == (1,)


def test_fewer_rounds_than_all_others_are_named():
    ranks = [history(3, call(4, done=False, round=completed)) for completed in (2, 2, 1)]
    assert analyze(job(*ranks)).guilty == (2,)
    assert analyze(job(*ranks, history(3, call(4, done=False, round=1)))).guilty == ()


def test_the_rounds_of_ranks_in_one_call_are_a_number_or_a_range():
    for completed, said in (((2, 2), "2 of 6 rounds complete"), ((1, 2, 4), "1 to 4 of 6 rounds complete")):
        evidence = job(*(history(3, call(4, done=False, round=each, rounds=6)) for each in completed))
        assert f"(all_reduce, count 1000, dtype float64, algorithm ring), {said}, for 6.0 s" in format_analysis(
            evidence, analyze(evidence)
        )


def test_calls_and_last_operations_as_text():
    assert format_call(make_message("recv", None)) == "recv from any rank"
    assert format_call(make_message("send", 1)) == "send to rank 1"
    assert format_call(call(4)) == "call 4 (all_reduce, count 1000, dtype float64, algorithm ring)"
    told = format_last_operations(job(history(0, call(1, "barrier", ())), members={"1": (0, 1)}), (0, 1))
    assert told == "rank 0 after call 1 (barrier); rank 1 has no recording"


def test_nothing_is_invented():
    done = analyze(job(history(3), history(3)))
    assert (done.reason, done.guilty) == (Reason.UNKNOWN, ())
    empty = JobEvidence(2, {})
    assert analyze(empty).reason is Reason.UNKNOWN
    assert "No recording of ranks 0-1" in format_analysis(empty, analyze(empty))


def test_ranks_as_text():
    assert [format_ranks(ranks) for ranks in ((), (3,), (0, 1, 2, 5, 7, 8))] == [
        "no rank",
        "rank 3",
        "ranks 0-2, 5, 7-8",
    ]


def test_equal_ranks_share_a_line():
    evidence = job(*([WAITING] * 50), history(3), *([WAITING] * 13))
    lines = format_analysis(evidence, analyze(evidence)).splitlines()
    last = lines[lines.index("The last operation of each rank:") + 1 :]
    assert len(last) == 2
    assert last[0].startswith("  ranks 0-49, 51-63: in call 4 (all_reduce")
    assert last[0].endswith(", for 6.0 s")
    assert last[1].endswith(", which ended 6.5 s ago")
