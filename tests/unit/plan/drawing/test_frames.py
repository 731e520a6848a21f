"""The story of a plan: every picture is drawn from it, so it must be what the plan does, round by round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm, list_algorithms
from hpccoll.plan.drawing.frames import Story, tell
from hpccoll.plan.operation import Operation
from hpccoll.plan.plan import Plan
from hpccoll.plan.replay import replay
from hpccoll.plan.rounds import Rounds

RANKS = (1, 3, 5, 8, 16)
EVERY = [pytest.param(each, n, id=f"{each.full_name}-{n}") for each in list_algorithms() for n in RANKS]


def story_of(name: str, ranks: int, root: int = 0, chunks: int = 1) -> Story:
    operation, _, algorithm = name.partition("/")
    return tell(get_algorithm(Operation.named(operation), algorithm).plan(ranks, root, chunks))


def test_the_ring_of_five_has_its_two_phases():
    story = story_of("all_reduce/ring", 5)
    assert [frame.phase for frame in story.frames] == ["", *["reduce-scatter"] * 4, *["all-gather"] * 4]
    scattered, gathered = story.frames[4], story.frames[8]
    assert (scattered.done == np.eye(5, dtype=bool)).all()
    assert gathered.done.all()
    sent = np.zeros(5, int)
    for frame in story.frames:
        assert len(frame.messages) == (5 if frame.number else 0)
        for message in frame.messages:
            sent[message.source] += len(message.out)
            # All-gather is the reduce-scatter backwards, so it travels the other way around.
            assert message.dest == (message.source + (1 if message.reduces else -1)) % 5
            assert message.reduces == (frame.phase == "reduce-scatter")
    assert (sent == 2 * (5 - 1)).all()  # in chunks of K/N: 2 (N - 1) K/N


def test_contributions_fill_up_one_a_round():
    story = story_of("all_reduce/ring", 5)
    most = [int(frame.counts.sum(axis=-1).max()) for frame in story.frames[:5]]
    assert most == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("each", "n"), EVERY)
def test_every_algorithm_ends_with_all_that_is_wanted(each, n):
    plan = each.plan(n, n - 1, 2)
    story = tell(plan)
    assert len(story.frames) == plan.whole().count + 1
    assert [frame.number for frame in story.frames] == list(range(len(story.frames)))
    if plan.operation is Operation.BARRIER:
        assert story.frames[-1].done.all()
    else:
        wanted = plan.operation.wanted(np.arange(n), n, story.chunks, plan.root)
        assert (story.frames[-1].done == wanted).all()


@pytest.mark.parametrize(("each", "n"), [case for case in EVERY if str(case.id).startswith("all_reduce/")])
def test_what_ranks_hold_after_each_round_is_what_a_replay_gives(each, n):
    plan = each.plan(n, 0, 2)
    rounds, story = plan.whole(), tell(plan)
    inputs = [np.full(rounds.chunks, 1 << rank, np.int64) for rank in range(n)]
    for frame in story.frames:
        cut = replace(plan, make=lambda rank, t=frame.number: Rounds(t, rounds.chunks, plan.make(rank).at), cost=None)
        held = np.array(replay(cut, rounds.chunks, inputs, np.add))
        assert (held == (frame.counts.astype(np.int64) << np.arange(n)).sum(axis=-1)).all()


def test_a_round_reads_what_stood_at_its_start():
    story = story_of("all_reduce/recursive_doubling", 4)
    assert story.frames[1].counts[:, 0].tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]


def test_moved_blocks_keep_the_name_of_where_they_started():
    story = story_of("all_to_all/bruck", 5)
    last = story.frames[-1]
    for rank in range(5):
        for frm in range(5):
            assert np.nonzero(last.counts[rank, 5 + frm])[0].tolist() == [frm]
            assert last.source[rank, 5 + frm] == rank


def test_a_barrier_is_told_as_news():
    story = story_of("barrier/dissemination", 5)
    assert story.frames[1].counts[1, 0].tolist() == [1, 1, 0, 0, 0]
    assert not story.frames[2].done.any()
    assert story.frames[3].done.all()


@pytest.mark.parametrize(
    ("name", "ranks", "chunks", "phases"),
    [
        ("all_reduce/tree", 8, 1, ["reduce"] * 3 + ["broadcast"] * 3),
        ("all_reduce/rabenseifner", 8, 1, ["reduce-scatter"] * 3 + ["all-gather"] * 3),
        ("all_reduce/recursive_doubling", 8, 1, [""] * 3),
        ("all_reduce/recursive_doubling", 5, 1, ["reduce"] * 3 + ["copy"]),
        ("all_reduce/double_tree", 8, 2, ["reduce"] * 3 + ["reduce and broadcast"] + ["broadcast"] * 3),
        ("reduce/tree", 8, 1, [""] * 3),
    ],
)
def test_phases_have_the_names_of_what_happens_in_them(name, ranks, chunks, phases):
    assert [frame.phase for frame in story_of(name, ranks, 0, chunks).frames[1:]] == phases


def test_a_wrong_plan_is_told_as_it_is():
    ring = get_algorithm(Operation.ALL_REDUCE, "ring").plan(4)
    broken = Plan(ring.operation, "cut_short", 4, 0, lambda rank: Rounds(5, 4, ring.make(rank).at))
    assert not tell(broken).frames[-1].done.all()


def test_the_subtitle_counts():
    assert story_of("broadcast/tree", 3, 2).about == "3 ranks, 2 rounds, 1 chunk a rank, root 2"
    assert story_of("barrier/tree", 2).about == "2 ranks, 2 rounds"
    plan = get_algorithm(Operation.ALL_REDUCE, "ring").plan(4)
    assert tell(plan, (2, 2)).about == "4 ranks, 6 rounds, 4 chunks a rank, 2 nodes"
