"""A mistake that an author could make in each algorithm but those of all_reduce is found by the proof.

The mutants of test_mutants.py change one message each. The plans here are wrong in every round, as after a mistake in a
formula.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpccoll.algorithms import circulant, get_algorithm, make_algorithm, pat
from hpccoll.algorithms.powers_of_two import ceil_log2
from hpccoll.errors import PlanError
from hpccoll.plan import Op, Operation, Picks, Plan, Rounds, check


def plan_of(name: str, n: int, root: int = 0, chunks: int = 1) -> Plan:
    """Return the plan without its stated cost, so that only the proof can refuse it."""
    operation, _, algorithm = name.partition("/")
    return replace(get_algorithm(Operation.from_name(operation), algorithm).plan(n, root, chunks), cost=None)


def find_error(plan: Plan) -> str:
    """Return the error message of `check`; None if it accepts the plan."""
    with pytest.raises(PlanError) as caught:
        check(plan)
    return str(caught.value)


def rewritten(name: str, n: int, change, chunks: int = 1, root: int = 0) -> Plan:
    """The plan with `change(t, moves)` in place of the moves of each round."""
    plan = plan_of(name, n, root, chunks)

    def make(rank):
        rounds = plan.make(rank)
        return replace(rounds, at=lambda t: change(t, rounds.at(t)))

    return replace(plan, make=make)


def drop_last_round(name: str, n: int) -> Plan:
    """Return a plan without its last round."""
    plan = plan_of(name, n)
    return replace(plan, make=lambda rank: replace(plan.make(rank), count=plan.make(rank).count - 1))


def shift_chunks(t, moves):
    """Return the moves of a round with all chunk numbers increased by one."""
    return [replace(move, send=move.send.shifted(1), recv=move.recv.shifted(1)) for move in moves]


def test_skips_that_round_down_lose_contributions(monkeypatch):
    def floored(n):
        return [1 << k for k in range(ceil_log2(n))] + [n]

    # Doubling skips are Bruck's and right; halving and rounding down leaves a gap where n is odd.
    monkeypatch.setattr(circulant, "list_skips", floored)
    assert check(plan_of("reduce_scatter/circulant", 13)).rounds == 4
    monkeypatch.setattr(circulant, "list_skips", lambda n: [1, 3, 6, 13])
    assert "13 ranks: in the end rank 0 chunk 0 is wrong" in find_error(plan_of("reduce_scatter/circulant", 13))


@pytest.mark.parametrize("column", range(4))
def test_a_schedule_with_two_rounds_exchanged_sends_what_is_not_there(monkeypatch, column):
    right = circulant.compute_receive_schedule

    def swapped(place, n):
        table = right(place, n)
        table[place == 9] = np.roll(table[place == 9], 1 + column % 3, axis=1)
        return table

    monkeypatch.setattr(circulant, "compute_receive_schedule", swapped)
    assert "broadcast/circulant on 13 ranks" in find_error(plan_of("broadcast/circulant", 13, chunks=5))


def test_partial_results_that_are_copied_are_missing():
    def copied(t, moves):
        return [replace(move, op=Op.COPY) for move in moves]

    assert "missing" in find_error(rewritten("reduce/circulant", 6, copied, chunks=4))
    assert "the later overwrites" in find_error(rewritten("reduce/double_tree", 6, copied, chunks=4))
    assert "missing" in find_error(rewritten("reduce/scatter_all_gather", 6, copied))


@pytest.mark.parametrize(
    "name",
    [
        "all_gather/pat",
        "reduce_scatter/recursive_halving",
        "all_gather/neighbor_exchange",
        "barrier/linear",
        "barrier/double_ring",
        "barrier/recursive_doubling",
        "all_to_all/bruck",
        "broadcast/scatter_all_gather",
    ],
)
def test_no_last_round_can_be_spared(name):
    assert find_error(drop_last_round(name, 6))


@pytest.mark.parametrize("name", ["all_gather/circulant", "reduce_scatter/pat", "all_gather/recursive_doubling"])
def test_chunks_one_off_at_both_ends_are_seen(name):
    assert find_error(rewritten(name, 5, shift_chunks))


def test_pat_with_children_out_of_order_reads_before_it_was_written():
    rounds = pat.all_gather(np.arange(8), 8, most=1)
    turned = [rounds.at(t) for t in (1, 0, 2, 3, 4, 5, 6)]
    wrong = make_algorithm(Operation.ALL_GATHER, "pat", lambda _rank, _n: Rounds(7, 8, lambda t: turned[t]), None).plan(
        8
    )
    assert check(wrong).rounds == 7  # the two commute: 1 and 2 are both children of the root
    late = [rounds.at(t) for t in (0, 2, 1, 3, 4, 5, 6)]
    wrong = make_algorithm(Operation.ALL_GATHER, "pat", lambda _rank, _n: Rounds(7, 8, lambda t: late[t]), None).plan(8)
    assert "before it was written" in find_error(wrong)


def test_neighbours_that_turn_the_same_way_do_not_meet():
    def same_way(t, moves):
        if t == 0:
            return moves
        ranks = np.arange(8)
        return [replace(move, dest=(ranks - 1) % 8, source=(ranks - 1) % 8) for move in moves]

    assert "sends to 7, which receives from 6" in find_error(rewritten("all_gather/neighbor_exchange", 8, same_way))


def test_both_trees_with_the_same_half_leave_the_other_out():
    def same_half(t, moves):
        return [replace(m, send=replace(m.send, base=0), recv=replace(m.recv, base=0)) for m in moves]

    assert "receives chunk 0 from two messages" in find_error(
        rewritten("broadcast/double_tree", 6, same_half, chunks=2)
    )


def test_an_extra_rank_that_is_not_signalled_may_not_leave():
    def forgotten(t, moves):
        return [] if t == 3 else moves

    assert "rank 1 may leave before" in find_error(rewritten("barrier/recursive_doubling", 6, forgotten))


def test_a_block_that_rests_in_the_wrong_slot_arrives_elsewhere():
    def misplaced(t, moves):
        def slot(region: Picks) -> Picks:
            return Picks(region.count, lambda: np.where(region.table() == 2 * 6 + 3, 2 * 6 + 5, region.table()))

        return [*moves[:-1], replace(moves[-1], recv=slot(moves[-1].recv))]

    assert find_error(rewritten("all_to_all/bruck", 6, misplaced))
