"""The simulator: small cases computed by hand, exact symmetry, and lower bounds that no plan beats."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpccoll.algorithms import get_algorithm, list_algorithms, make_algorithm
from hpccoll.errors import PlanError, UsageError
from hpccoll.plan import Link, Machine, Move, Op, Operation, Rounds, Span, check, simulate
from hpccoll.plan.simulation import compute_bounds
from hpccoll.plan.simulation.bounds import compute_broadcast_bound
from hpccoll.predict.forecast import fill_nodes
from hpccoll.units import GiB, KiB

ALPHA, BETA, GAMMA = 1e-6, 1e-9, 1e-10
FLAT = Machine.flat(ALPHA, BETA, GAMMA)
RING, TREE = get_algorithm(Operation.ALL_REDUCE, "ring"), get_algorithm(Operation.ALL_REDUCE, "tree")


def make_nodes(ranks: int, nics: int = 1, gamma: float = 0.0) -> Machine:
    """Return a machine model with nodes of `ranks` ranks."""
    near, wide = Link.one_port(1e-6, 1e-9), Link.one_port(10e-6, 4e-9)
    return Machine("two kinds of link", ranks, near, wide, nics, gamma)


def test_a_ring_of_two_by_hand():
    # 8 elements of 4 bytes, two chunks of 16 bytes: one is exchanged and reduced, the other exchanged.
    found = simulate(RING.plan(2), FLAT, 8, full=True)
    assert found.seconds == pytest.approx(2 * (ALPHA + 16 * BETA) + 16 * GAMMA, rel=1e-12)
    assert (found.steps, found.rounds, found.messages, found.nbytes) == (2, 2, 4, 32)
    assert found.within.tolist() == [0, 0]
    assert found.between.tolist() == [32, 32]


def test_a_tree_of_three_by_hand():
    # 0 <- 1, then 0 <- 2; and back: 0 -> 2, then 0 -> 1. Rank 2 sends at once, but rank 0 takes rank 1's in first.
    message, reduce = ALPHA + 400 * BETA, 400 * GAMMA
    found = simulate(TREE.plan(3), FLAT, 100)
    root = 2 * message + reduce  # both have come one after the other; the first was reduced meanwhile
    done = [root + 2 * message, root + 2 * message, root + message]
    assert found.clocks_s == pytest.approx(done, rel=1e-12)
    assert found.between.tolist() == [800, 400, 400]


def test_a_rank_sends_and_takes_in_one_message_at_a_time():
    """All to all the others in one round."""

    def at_once(rank, n):
        def move(t):
            to, frm = (rank + t) % n, (rank - t) % n
            return Move(to, frm, Span(rank, 1, n), Span(frm, 1, n))

        return Rounds(1, n, lambda _: [move(t) for t in range(1, n)])

    plan = make_algorithm(Operation.ALL_GATHER, "at_once", at_once, None).plan(4)
    found = simulate(plan, FLAT, 1)
    assert found.seconds == pytest.approx(3 * (ALPHA + 4 * BETA), rel=1e-12)
    link = Link(ALPHA, BETA, 0.0)  # nothing but bytes keeps the ports busy
    found = simulate(plan, replace(FLAT, between=link), 1)
    assert found.seconds == pytest.approx(ALPHA + 3 * 4 * BETA, rel=1e-12)


def test_links_are_those_of_the_ranks_nodes():
    # Ranks 0 1 | 2 3: two of the four links of the ring cross, and every round waits for them.
    found = simulate(RING.plan(4), make_nodes(2), 4, full=True)
    assert found.seconds == pytest.approx(6 * (10e-6 + 4 * 4e-9), rel=1e-12)
    # Up the ring 0 and 2 have their neighbour on their node, and down the ring 1 and 3.
    assert found.within.tolist() == [12, 12, 12, 12]
    assert found.between.tolist() == [12, 12, 12, 12]


@pytest.mark.parametrize(("nics", "shared"), [(1, 4), (2, 2), (4, 1)])
def test_messages_of_a_round_share_their_nic(nics, shared):
    """Four ranks of a node, each with a partner on the other."""

    def swap(rank, n):
        peer = (rank + n // 2) % n
        return Rounds(1, 1, lambda t: [Move(peer, peer, Span(0, 1, 1), Span(0, 1, 1), Op.OWN_FIRST)])

    plan = make_algorithm(Operation.ALL_REDUCE, "swap", swap, None).plan(8)
    found = simulate(plan, make_nodes(4, nics), 1000)
    assert found.seconds == pytest.approx(10e-6 + shared * 4000 * 4e-9, rel=1e-12)


def test_messages_without_a_byte_are_not_sent_but_a_barriers_are():
    nothing = simulate(RING.plan(5), FLAT, 0)
    assert (nothing.seconds, nothing.steps, nothing.messages) == (0.0, 0, 0)
    assert nothing.path is not None
    assert not nothing.path.waits
    # One element in five chunks: it travels once around, and once more; nobody else sends.
    lone = simulate(RING.plan(5), replace(FLAT, gamma_s_per_byte=0.0), 1)
    assert lone.messages == 8
    assert lone.seconds == pytest.approx(8 * (ALPHA + 4 * BETA), rel=1e-12)
    news = simulate(get_algorithm(Operation.BARRIER, "dissemination").plan(5), FLAT, 0)
    assert (news.messages, news.steps, news.nbytes) == (15, 3, 0)
    assert news.seconds == pytest.approx(3 * ALPHA, rel=1e-12)


def test_a_call_and_bands_of_message_sizes_cost_what_they_say():
    link = Link(ALPHA, BETA, ALPHA, bands=((100.0, 3e-9), (300.0, 1e-9)))
    machine = Machine("banded", 2, link, link, 1, 0.0, (), call_s=5e-6)
    found = simulate(get_algorithm(Operation.ALL_REDUCE, "recursive_doubling").plan(2), machine, 100)
    assert found.seconds == pytest.approx(5e-6 + ALPHA + 100 * BETA + 200 * 3e-9 + 100 * 1e-9, rel=1e-12)


def test_an_exchange_of_blocks_of_different_sizes_by_hand():
    rows = np.array([[9, 2, 0], [0, 9, 7], [1, 3, 9]])
    found = simulate(get_algorithm(Operation.ALL_TO_ALL, "pairwise").plan(3), FLAT, tuple(rows.flat), 4)
    assert found.between.tolist() == [8, 28, 16]
    # Each rank copies 36 bytes. Rank 2 receives 28 bytes from rank 1, and then sends 12 bytes to rank 1.
    assert found.seconds == pytest.approx(36 * GAMMA + 2 * ALPHA + (28 + 12) * BETA, rel=1e-12)


def test_the_critical_path_names_who_waited_for_whom():
    found = simulate(TREE.plan(4), replace(FLAT, gamma_s_per_byte=0.0), 100)
    path = found.path
    assert path is not None
    steps = [(wait.round, wait.rank, wait.source) for wait in path.waits]
    # Up from 3 by way of 2 to 0, whose own sending of two messages is the rest.
    assert (path.rank, steps) == (0, [(0, 2, 3), (1, 0, 2)])
    assert path.waits[0].nbytes == 400
    assert path.waits[-1].entered_s == pytest.approx(ALPHA + 400 * BETA)
    assert all(wait.far for wait in path.waits)
    ring = simulate(RING.plan(6), FLAT, 60).path
    assert ring is not None
    assert [wait.round for wait in ring.waits] == list(range(10))
    assert {wait.rank - wait.source for wait in ring.waits[:5]} <= {1, -5}


def test_the_critical_path_may_wait_for_any_of_hundreds_of_messages_of_a_round():
    one_shot = get_algorithm(Operation.ALL_REDUCE, "one_shot")
    path = simulate(one_shot.plan(300), FLAT, 100).path
    assert path is not None
    assert [wait.round for wait in path.waits] == [0]


def test_a_path_that_is_traced_in_spells_is_the_same(monkeypatch):
    machine, plan = make_nodes(3, gamma=GAMMA), RING.plan(12)
    whole = simulate(plan, machine, 7, full=True)
    monkeypatch.setattr("hpccoll.plan.simulation.simulator._TRACED", 12 * 5)
    spells = simulate(plan, machine, 7, full=True)
    assert whole.path is not None
    assert spells.path is not None
    assert whole.path == spells.path
    assert np.array_equal(whole.between, spells.between)  # nothing is counted twice


LINKS = st.builds(
    lambda alpha, share, beta: Link(alpha, beta, alpha * share),
    st.sampled_from([0.0, 1e-6, 2e-5]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.floats(1e-11, 1e-7),
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(list_algorithms()),
    st.integers(1, 24),
    st.integers(1, 8),
    st.tuples(LINKS, LINKS),
    st.integers(1, 8),
    st.sampled_from([0.0, 1e-11, 1e-9]),
    st.sampled_from([0, 1, 3, 1000, 99_991]),
    st.sampled_from([1, 2, 5]),
)
def test_symmetry_is_exact_and_no_plan_beats_the_bounds(algorithm, n, q, links, nics, gamma, count, chunks):
    q = max(q, n) if algorithm.uses_shared_memory else q  # who shares memory is on one node
    machine = Machine("drawn", q, links[0], links[1], min(nics, q), gamma)
    plan = algorithm.plan(n, n // 2, chunks, fill_nodes(n, machine))
    few, all_ranks = simulate(plan, machine, count), simulate(plan, machine, count, full=True)
    times = n // few.simulated_ranks
    assert few.simulated_ranks * times == n
    for column in ("clocks_s", "within", "between"):
        assert np.array_equal(np.tile(getattr(few, column), times), getattr(all_ranks, column)), column
    assert (few.steps, few.messages, few.seconds) == (all_ranks.steps, all_ranks.messages, all_ranks.seconds)
    assert few.path is not None
    assert all_ranks.path is not None
    assert [wait.source for wait in few.path.waits] == [wait.source for wait in all_ranks.path.waits]
    least = compute_bounds(plan.operation, n, machine, few.nbytes)
    assert algorithm.uses_shared_memory or few.seconds >= least.seconds * (1 - 1e-9)  # loads pay no alpha


@pytest.mark.parametrize("algorithm", list_algorithms(), ids=lambda each: each.full_name)
def test_steps_and_bytes_are_those_of_the_proof(algorithm):
    n, count = 12, 5040
    plan = algorithm.plan(n, 0, 4)
    found, proof = simulate(plan, FLAT.with_ranks_per_node(n), count), check(plan)
    assert (found.steps, found.messages) == (proof.cost.steps, proof.messages)
    sent = found.within + found.between
    assert sent.mean() == pytest.approx(float(proof.cost.mean) * found.nbytes)
    assert sent.max() == pytest.approx(float(proof.cost.most) * found.nbytes)


def test_symmetry_is_used_where_there_is_some():
    machine = make_nodes(6)
    assert simulate(RING.plan(24), machine, 24 * 5).simulated_ranks == 6
    assert simulate(RING.plan(24), machine, 2).simulated_ranks == 12  # every twelfth chunk has an element
    assert simulate(RING.plan(24), machine, 7).simulated_ranks == 24
    assert simulate(RING.plan(25), machine, 25).simulated_ranks == 25  # the last node is not full
    assert simulate(TREE.plan(24), machine, 24).simulated_ranks == 24


def test_a_period_that_is_none_is_found_out():
    false = replace(get_algorithm(Operation.ALL_REDUCE, "tree"), period=4)
    with pytest.raises(PlanError, match=r"all_reduce/tree on 64 ranks states period 4, but in round \d+ rank \d+ does"):
        simulate(false.plan(64), FLAT, 64)


def test_negative_counts_are_refused():
    with pytest.raises(UsageError, match="-1 elements"):
        simulate(RING.plan(2), FLAT, -1)


@pytest.mark.parametrize(("n", "steps"), [(1, 0), (2, 1), (3, 2), (8, 3), (9, 4)])
def test_the_latency_bound_of_one_port_links_is_the_textbooks(n, steps):
    assert compute_broadcast_bound(n, 1.0, 1.0) == steps


def test_the_best_broadcast_of_logp_by_hand():
    # alpha 3, a new message every 1: told at 3, 4, 5, and at 6 by the root and by who knew at 3.
    assert [compute_broadcast_bound(n, 3.0, 1.0) for n in (2, 3, 4, 6)] == [3, 4, 5, 6]


SUMMIT_IN_A_PROCESS = """
from pathlib import Path
from hpccoll.algorithms import get_algorithm, make_hierarchical
from hpccoll.plan import Link, Machine, Operation, simulate
from hpccoll.predict.forecast import fill_nodes

machine = Machine("Summit", 6, Link(3.4e-6, 2e-11, 1e-6), Link(9.6e-6, 8e-11, 1e-6), 2, 3e-12)
flat = [get_algorithm(Operation.ALL_REDUCE, name) for name in ("ring", "double_tree")]
for algorithm in (*flat, make_hierarchical("ring", "ring")):
    plan = algorithm.plan(24_576, 0, 4, fill_nodes(24_576, machine))
    assert simulate(plan, machine, 24_576 * 4).path is not None
lines = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))  # the peak, without the parent's memory
"""


@pytest.mark.slow
def test_24576_ranks_in_little_memory():
    words = [sys.executable, "-c", SUMMIT_IN_A_PROCESS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    assert int(done.stdout) * KiB < GiB
