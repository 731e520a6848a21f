"""The errors of `check` for each kind of fault: round, rank, chunk, and missing or repeated contributions."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm
from hpccoll.errors import PlanError
from hpccoll.plan import SIGNAL, Cost, Move, Op, Operation, Picks, Plan, Rounds, Span, check
from hpccoll.plan.operation import _INPUT_AND_OUTPUT

ONE = Span(0, 1, 1)


def array(*values: int) -> np.ndarray:
    return np.array(values)


def make_plan(*rounds: list[Move], operation=Operation.BROADCAST, ranks=2, chunks=1, root=0) -> Plan:
    """Return a plan that has the given rounds."""
    return Plan(operation, "mine", ranks, root, lambda _: Rounds(len(rounds), chunks, lambda t: rounds[t]))


def told(send=ONE, recv=ONE, op=Op.COPY) -> Move:
    """Rank 0 sends to rank 1."""
    return Move(array(1, -1), array(-1, 0), send, recv, op)


def find_error(plan: Plan, **options) -> str:
    """Return the error message of `check`; None if it accepts the plan."""
    with pytest.raises(PlanError) as caught:
        check(plan, **options)
    return str(caught.value)


def test_a_right_plan_states_what_it_costs():
    proof = check(make_plan([told()]))
    assert (proof.cost, proof.rounds, proof.messages) == (Cost(1, Fraction(1, 2), Fraction(1)), 1, 1)


def test_a_round_without_messages_is_no_step():
    assert check(make_plan([], [told()], [])).cost.steps == 1


def test_local_copies_are_no_messages():
    me = array(0)
    own = Move(me, me, ONE, Span(0, 1, 1, base=1))
    proof = check(make_plan([own], operation=Operation.ALL_TO_ALL, ranks=1, chunks=2))
    assert (proof.messages, proof.cost) == (0, Cost(0, Fraction(0), Fraction(0)))


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (Move(array(1, -1), array(-1, -1), ONE, ONE), "round 0: rank 0 sends to 1, which receives from -1"),
        (Move(array(-1, -1), array(-1, 0), ONE, ONE), "round 0: rank 1 receives from 0, which sends to -1"),
        (Move(array(2, -1), array(-1, 0), ONE, ONE), "round 0: rank 0 names peer 2, but ranks are"),
        (Move(array(-2, -1), array(-1, 0), ONE, ONE), "round 0: rank 0 names peer -2, but ranks are"),
        (Move(array(1), array(-1, 0), ONE, ONE), "peers of shape (1,); need one entry per rank"),
        (told(send=Span(0, array(1), 1)), "sizes of shape (1,); need one entry per rank"),
        (told(op=array(0)), "ops of shape (1,); need one entry per rank"),
        (told(recv=SIGNAL), "round 0: rank 1 expects 0 chunks from rank 0, which sends 1"),
        (told(send=SIGNAL, recv=Span(0, array(0, 1), 1)), "rank 1 expects 1 chunks from rank 0, which sends 0"),
        (told(Span(0, -1, 1), Span(0, -1, 1)), "rank 1 expects -1 chunks from rank 0, which sends -1"),
        (told(Span(0, 1, 1, base=1)), "round 0: rank 0 names chunk 1, but there are 1 chunks"),
        (told(recv=Span(0, 1, 1, base=-2)), "round 0: rank 1 names chunk -2, but there are 1 chunks"),
        (told(Picks(1, lambda: np.array([[-1]]))), "round 0: rank 0 names 0 chunks in a region of 1"),
        (told(Span(0, 2, 1), Span(0, 2, 1)), "round 0: rank 1 receives chunk 0 twice in one message"),
        (told(op=Op.OWN_FIRST), "round 0: rank 1 reduces, but may only copy"),
        (told(op=array(0, 3)), "round 0: rank 1 receives by op 3; there are 0 = COPY, 1 = OWN_FIRST"),
        (Move(array(-1, 0), array(1, -1), ONE, ONE), "round 0: rank 1 sends chunk 0 before it was written"),
    ],
)
def test_faults_of_a_round(move, message):
    assert message in find_error(make_plan([move]))


def test_an_error_names_its_round_and_not_that_of_a_later_error():
    lost, reduced = Move(array(1, -1), array(-1, -1), ONE, ONE), told(op=Op.OWN_FIRST)
    assert "round 2: rank 1 reduces, but may only copy" in find_error(make_plan([], [told()], [reduced], [lost]))


def test_rows_that_hide_a_gap_are_seen_although_their_lengths_add_up():
    # Rank 0 sends chunk 0 and nothing, rank 1 nothing and chunk 1: laid end to end the lists would pair up.
    gaps = Picks(2, lambda: np.array([[0, -1], [-1, 1]]))
    swap = Move(array(1, 0), array(1, 0), gaps, Span(0, 2, 2), Op.OWN_FIRST)
    said = find_error(make_plan([swap], operation=Operation.ALL_REDUCE, chunks=2))
    assert "names 1 chunks in a region of 2" in said


def test_a_chunk_that_two_messages_write_in_one_round():
    both = [Move(array(1, -1, -1), array(-1, 0, -1), ONE, ONE), Move(array(-1, -1, 1), array(-1, 2, -1), ONE, ONE)]
    plan = make_plan(both, operation=Operation.ALL_REDUCE, ranks=3)
    assert "rank 1 receives chunk 0 from two messages of which the later overwrites" in find_error(plan)
    reduced = [replace(both[0], op=Op.OWN_FIRST), both[1]]
    assert "two messages of which the later overwrites" in find_error(replace(plan, make=make_plan(reduced).make))
    down = Move(array(-1, 2, -1), array(-1, -1, 1), ONE, ONE)
    down_too = Move(array(-1, 0, -1), array(1, -1, -1), ONE, ONE)
    summed = [replace(move, op=Op.OWN_FIRST) for move in both]
    check(make_plan(summed, [down, down_too], operation=Operation.ALL_REDUCE, ranks=3))


def test_sends_read_what_stood_at_the_start_of_the_round():
    # Rank 1 passes on in the same round what it only then receives: the chunk was not there yet.
    onwards = Move(array(1, 2, -1), array(-1, 0, 1), ONE, ONE)
    assert "round 0: rank 1 sends chunk 0 before it was written" in find_error(make_plan([onwards], ranks=3))


def test_reducing_into_what_was_never_written(monkeypatch):
    # No operation that reduces has work space yet; one that had would begin with chunks that hold nothing.
    monkeypatch.setitem(_INPUT_AND_OUTPUT, Operation.REDUCE, ("own", "root"))
    swap = Move(array(-1, 0), array(1, -1), Span(1, 1, 2), Span(1, 1, 2), Op.OWN_FIRST)
    plan = make_plan([swap], operation=Operation.REDUCE, chunks=2)
    assert "round 0: rank 0 reduces into chunk 1, which was never written" in find_error(plan, counts=())


def test_a_round_names_the_first_fault_of_many_ranks():
    shift = Move(np.arange(1, 7) % 6, np.full(6, -1), ONE, ONE)
    assert "round 0: rank 0 (and 5 more) sends to 1, which receives from -1" in find_error(make_plan([shift], ranks=6))


@pytest.mark.parametrize("counts", [(7,), (1,), (1_000_003,)])
def test_chunks_that_differ_in_elements_for_an_uneven_layout(counts):
    crossed = told(Span(0, 2, 2), Span(1, 2, 2))
    said = find_error(make_plan([crossed], chunks=2), counts=counts)
    assert "rank 1 receives chunk 0 of rank 0 into its chunk 1, which differ in elements for some counts" in said


def test_even_layouts_hide_what_uneven_ones_show():
    crossed = told(Span(0, 2, 2), Span(1, 2, 2))
    assert "is wrong: it holds another chunk's contributions" in find_error(make_plan([crossed], chunks=2), counts=(8,))


@pytest.mark.parametrize(
    ("rounds", "message"),
    [
        ([], "rank 0 chunk 0 is wrong: the contribution of rank 1 is missing"),
        ([told(op=Op.OWN_FIRST)], "rank 0 chunk 0 is wrong: the contribution of rank 1 is missing"),
        (
            [Move(array(1, 0), array(1, 0), ONE, ONE)],
            "rank 0 chunk 0 is wrong: the contribution of rank 0 is missing",
        ),
    ],
)
def test_contributions_that_are_missing(rounds, message):
    assert message in find_error(make_plan(rounds, operation=Operation.ALL_REDUCE))


def test_contributions_that_are_doubled():
    back = Move(array(-1, 0), array(1, -1), ONE, ONE, Op.OWN_FIRST)
    plan = make_plan([back], [back], operation=Operation.REDUCE)
    assert "in the end rank 0 chunk 0 is wrong: the contribution of rank 1 is doubled or misplaced" in find_error(plan)


def test_a_chunk_that_was_never_written():
    assert "mine on 2 ranks: in the end rank 1 chunk 0 is wrong: it was never written" in find_error(make_plan([]))


def test_contributions_doubled_so_often_that_their_weights_wrap_to_nothing():
    swap = Move(array(1, 0), array(1, 0), Span(array(1, 0), 1, 2), Span(array(0, 1), 1, 2), Op.OWN_FIRST)
    first, second = Span(0, 1, 2), Span(1, 1, 2)
    twice = Move(array(0, -1), array(0, -1), second, second, Op.OWN_FIRST)
    spoil = replace(twice, recv=first)
    right = [swap], *[[twice]] * 64
    check(make_plan(*right, operation=Operation.REDUCE_SCATTER, chunks=2), counts=())
    # Chunk 1 of rank 0, which nobody wants, now weighs 2**64 times one number: 0 in 64 bits. It still is no nothing.
    plan = make_plan(*right, [spoil], operation=Operation.REDUCE_SCATTER, chunks=2)
    assert "in the end rank 0 chunk 0 is wrong" in find_error(plan, counts=())


def test_orders_that_differ_between_ranks():
    swap = Move(array(1, 0), array(1, 0), ONE, ONE, Op.OWN_FIRST)
    plan = make_plan([swap], operation=Operation.ALL_REDUCE)
    assert "ranks 0 and 1 reduce chunk 0 in different orders" in find_error(plan)
    check(make_plan([replace(swap, op=array(Op.OWN_FIRST, Op.INCOMING_FIRST))], operation=Operation.ALL_REDUCE))


def test_groupings_that_differ_between_ranks():
    # Each rank adds up by itself, from its own on: 0 + (2) + (1), 1 + (0) + (2), 2 + (1) + (0).
    rank = np.arange(3)
    both = [Move((rank + k) % 3, (rank - k) % 3, ONE, ONE, Op.OWN_FIRST) for k in (1, 2)]
    said = find_error(make_plan(both, operation=Operation.ALL_REDUCE, ranks=3))
    assert "ranks 0 and 1 reduce chunk 0 in different orders" in said


def test_a_barrier_that_lets_a_rank_leave_early():
    hint = told(SIGNAL, SIGNAL)
    plan = make_plan([hint], operation=Operation.BARRIER, chunks=0)
    assert "rank 0 may leave before rank 1 arrived" in find_error(plan)
    check(make_plan([hint], [Move(hint.source, hint.dest, SIGNAL, SIGNAL)], operation=Operation.BARRIER, chunks=0))


def test_a_barrier_hears_nothing_of_its_own_round():
    # 0 tells 1, 1 tells 2, 2 tells 0, 0 tells 1: enough one after the other, but this is one round.
    signals = [
        Move(
            array(*(b if rank == a else -1 for rank in range(3))),
            array(*(a if rank == b else -1 for rank in range(3))),
            SIGNAL,
            SIGNAL,
        )
        for a, b in ((0, 1), (1, 2), (2, 0), (0, 1))
    ]
    check(make_plan(*([signal] for signal in signals), operation=Operation.BARRIER, ranks=3, chunks=0))
    at_once = make_plan(signals, operation=Operation.BARRIER, ranks=3, chunks=0)
    assert "rank 0 may leave before rank 1 arrived" in find_error(at_once)


@pytest.mark.parametrize(
    "cost",
    [Cost(2, Fraction(1, 2), Fraction(1)), Cost(1, Fraction(1, 3), Fraction(1)), Cost(1, Fraction(1, 2), Fraction(2))],
)
def test_a_stated_cost_that_is_not_the_plans(cost):
    plan = replace(make_plan([told()]), cost=cost)
    assert "the plan takes 1 steps, 1/2 S moved on average and 1 S at most" in find_error(plan)


def test_chunks_that_cannot_carry_the_operation():
    assert "all_gather over 2 ranks cannot have 3 chunks" in find_error(
        make_plan([], operation=Operation.ALL_GATHER, chunks=3)
    )


def test_a_plan_for_another_root():
    plan = get_algorithm(Operation.SCATTER, "tree").plan(5, root=2)
    assert "before it was written" in find_error(replace(plan, root=3))


def test_many_ranks_are_named_without_counting_all_of_them():
    plan = get_algorithm(Operation.REDUCE_SCATTER, "ring").plan(256)
    short = replace(plan, make=lambda rank: replace(plan.make(rank), count=100))
    assert "its contributions are not those required (check fewer ranks to see which)" in find_error(short)
    fewer = get_algorithm(Operation.REDUCE_SCATTER, "ring").plan(16)
    short = replace(fewer, make=lambda rank: replace(fewer.make(rank), count=3))
    assert "the contributions of ranks 1, 2, 3, 4, 5, 6, 7, 8 and 7 more are missing" in find_error(short)


def test_what_all_to_all_lacks_is_named_by_rank():
    plan = get_algorithm(Operation.ALL_TO_ALL, "pairwise").plan(3)
    short = replace(plan, make=lambda rank: replace(plan.make(rank), count=2))
    assert "is wrong: it was never written" in find_error(short)
    wrong = replace(plan, make=lambda rank: plan.make(rank).map_steps(lambda move: replace(move, send=Span(0, 1, 3))))  # type: ignore[arg-type]  # a Move
    assert "is wrong" in find_error(wrong)
