"""`record_history` returns the contents of all chunks after each round, from which pictures are drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm, list_algorithms
from hpccoll.plan import Operation, Plan, Rounds, replay
from hpccoll.plan.drawing.history import PlanHistory, record_history

RANKS = (1, 3, 5, 8, 16)
ALGORITHMS_AND_RANKS = [pytest.param(each, n, id=f"{each.full_name}-{n}") for each in list_algorithms() for n in RANKS]


def make_history(name: str, ranks: int, root: int = 0, chunks: int = 1) -> PlanHistory:
    """Return the history of an algorithm's plan; `name` is OPERATION/ALGORITHM, such as `all_reduce/ring`."""
    operation, _, algorithm = name.partition("/")
    return record_history(get_algorithm(Operation.from_name(operation), algorithm).plan(ranks, root, chunks))


def test_a_ring_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    history = make_history("all_reduce/ring", 5)
    assert [frame.phase for frame in history.frames] == ["", *["reduce-scatter"] * 4, *["all-gather"] * 4]
    scattered, gathered = history.frames[4], history.frames[8]
    assert (scattered.done == np.eye(5, dtype=bool)).all()
    assert gathered.done.all()
    sent = np.zeros(5, int)
    for frame in history.frames:
        assert len(frame.messages) == (5 if frame.number else 0)
        for message in frame.messages:
            sent[message.source] += len(message.send)
            # All-gather is the reduce-scatter backwards, so it travels the other way around.
            assert message.dest == (message.source + (1 if message.reduces else -1)) % 5
            assert message.reduces == (frame.phase == "reduce-scatter")
    assert (sent == 2 * (5 - 1)).all()  # in chunks of K/N: 2 (N - 1) K/N


def test_each_round_of_a_ring_reduce_scatter_adds_one_contribution():
    history = make_history("all_reduce/ring", 5)
    largest_counts = [int(frame.counts.sum(axis=-1).max()) for frame in history.frames[:5]]
    assert largest_counts == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("algorithm", "n"), ALGORITHMS_AND_RANKS)
def test_every_history_ends_with_complete_outputs(algorithm, n):
    plan = algorithm.plan(n, n - 1, 2)
    history = record_history(plan)
    assert len(history.frames) == plan.moves().count + 1
    assert [frame.number for frame in history.frames] == list(range(len(history.frames)))
    if plan.operation is Operation.BARRIER:
        assert history.frames[-1].done.all()
    else:
        wanted = plan.operation.output_mask(np.arange(n), n, history.chunks, plan.root)
        assert (history.frames[-1].done == wanted).all()


@pytest.mark.parametrize(
    ("algorithm", "n"), [case for case in ALGORITHMS_AND_RANKS if str(case.id).startswith("all_reduce/")]
)
def test_counts_after_each_round_equal_those_of_replay(algorithm, n):
    plan = algorithm.plan(n, 0, 2)
    rounds, history = plan.moves(), record_history(plan)
    inputs = [np.full(rounds.chunks, 1 << rank, np.int64) for rank in range(n)]
    for frame in history.frames:
        cut = replace(plan, make=lambda rank, t=frame.number: Rounds(t, rounds.chunks, plan.make(rank).at), cost=None)
        held = np.array(replay(cut, rounds.chunks, inputs, np.add))
        assert (held == (frame.counts.astype(np.int64) << np.arange(n)).sum(axis=-1)).all()


def test_messages_have_the_contents_at_the_start_of_their_round():
    history = make_history("all_reduce/recursive_doubling", 4)
    assert history.frames[1].counts[:, 0].tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]


def test_origin_has_the_initial_chunk_of_moved_blocks():
    history = make_history("all_to_all/bruck", 5)
    last = history.frames[-1]
    for rank in range(5):
        for source in range(5):
            assert np.nonzero(last.counts[rank, 5 + source])[0].tolist() == [source]
            assert last.origin[rank, 5 + source] == rank


def test_counts_of_a_barrier_are_the_known_arrivals():
    history = make_history("barrier/dissemination", 5)
    assert history.frames[1].counts[1, 0].tolist() == [1, 1, 0, 0, 0]
    assert not history.frames[2].done.any()
    assert history.frames[3].done.all()


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
def test_phases_are_named_after_collectives(name, ranks, chunks, phases):
    assert [frame.phase for frame in make_history(name, ranks, 0, chunks).frames[1:]] == phases


def test_an_incomplete_plan_has_a_history_without_complete_outputs():
    ring = get_algorithm(Operation.ALL_REDUCE, "ring").plan(4)
    broken = Plan(ring.operation, "cut_short", 4, 0, lambda rank: Rounds(5, 4, ring.make(rank).at))
    assert not record_history(broken).frames[-1].done.all()


def test_the_subtitle_has_the_numbers_of_ranks_rounds_and_chunks():
    assert make_history("broadcast/tree", 3, 2).subtitle == "3 ranks, 2 rounds, 1 chunk per rank, root 2"
    assert make_history("barrier/tree", 2).subtitle == "2 ranks, 2 rounds"
    plan = get_algorithm(Operation.ALL_REDUCE, "ring").plan(4)
    assert record_history(plan, (2, 2)).subtitle == "4 ranks, 6 rounds, 4 chunks per rank, 2 nodes"
