"""Plans of loads, stores and fences: proofs, refused plans with reasons, and combinations with other rounds."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm, list_algorithms, make_algorithm, make_hierarchical
from hpccoll.algorithms import shared_memory as family
from hpccoll.errors import PlanError, UsageError
from hpccoll.plan import (
    SIGNAL,
    Cost,
    Fence,
    Groups,
    IntArray,
    Load,
    Move,
    Op,
    Operation,
    Plan,
    Rounds,
    Span,
    Step,
    Store,
    check,
    relabel_ranks,
    replay,
    run_in_groups,
)
from hpccoll.plan.interchange.json_plans import from_json, to_json
from tests.unit.plan.shared_referee import fault_in_some_order

SHARED = [algorithm for algorithm in list_algorithms() if algorithm.uses_shared_memory]
WHOLE = Span(0, 1, 1)


def plan_of(operation: Operation, n: int, chunks: int, *rounds: list[Step]) -> Plan:
    """A plan that is written out for all ranks."""
    return Plan(operation, "mine", n, 0, lambda _: Rounds(len(rounds), chunks, lambda t: rounds[t]))


def make_fence(*leader: int) -> list[Step]:
    """Return a round with a fence; `leader` is each rank's leader."""
    return [Fence(np.array(leader))]


def make_load(*frm: int, src: Span = WHOLE, dst: Span = WHOLE, op: Op = Op.COPY) -> Step:
    """Return the step in which each rank loads from its rank of `frm`."""
    return Load(np.array(frm), src, dst, op)


def make_store(*to: int, src: Span = WHOLE, dst: Span = WHOLE) -> Step:
    """Return the step in which each rank stores to its rank of `to`."""
    return Store(np.array(to), src, dst)


def find_error(plan: Plan) -> str:
    """Return the error message with which `check` refuses a plan."""
    with pytest.raises(PlanError) as caught:
        check(plan)
    return str(caught.value)


def test_those_with_shared_steps_say_so():
    for algorithm in list_algorithms():
        steps = [step for steps in algorithm.plan(4).rounds() for step in steps]
        assert algorithm.uses_shared_memory == any(not isinstance(step, Move) for step in steps), algorithm.full_name


@pytest.mark.parametrize("algorithm", SHARED, ids=lambda each: each.full_name)
def test_they_are_proven_on_1_to_24_ranks_with_all_roots(algorithm):
    for n in range(1, 25):
        roots = range(n) if n < 9 else {0, n // 2, n - 1}
        for root in roots if "root" in algorithm.parameters else (0,):
            plan = algorithm.plan(n, root)
            assert check(plan).cost == plan.cost


@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("all_reduce/shared_one_shot", Cost(1, Fraction(3), Fraction(3))),
        ("all_reduce/shared_two_shot", Cost(2, Fraction(6, 4), Fraction(6, 4))),
        ("broadcast/shared", Cost(1, Fraction(3, 4), Fraction(3, 4))),
        ("gather/shared", Cost(1, Fraction(3, 16), Fraction(1, 4))),
        ("reduce/shared", Cost(2, Fraction(3, 4) + Fraction(3, 16), Fraction(1))),
        ("barrier/shared", Cost(0, Fraction(0), Fraction(0))),
    ],
)
def test_a_rank_moves_what_it_loads_and_stores_itself(name, cost):
    operation, _, algorithm = name.partition("/")
    assert check(get_algorithm(Operation.from_name(operation), algorithm).plan(4)).cost == cost


def test_one_shot_reduces_in_rank_order_on_every_rank():
    letters = [np.array([chr(ord("a") + rank)], object) for rank in range(4)]
    found = replay(
        get_algorithm(Operation.ALL_REDUCE, "shared_one_shot").plan(4),
        1,
        letters,
        lambda a, b: np.array([f"({a[0]}{b[0]})"]),
    )
    assert {str(each[0]) for each in found} == {"(((ab)c)d)"}


def test_loads_from_one_rank_become_a_message_each():
    plan = plan_of(Operation.BROADCAST, 4, 1, make_fence(0, 0, 0, 0), [make_load(-1, 0, 0, 0)], make_fence(0, 0, 0, 0))
    assert [len(moves) for moves in plan.moves()] == [0, 3, 0]
    assert {(int(m.dest[0]), int(np.argmax(m.source == 0))) for m in plan.moves().at(1)} == {(1, 1), (2, 2), (3, 3)}
    assert check(plan).cost == Cost(1, Fraction(3, 4), Fraction(1))


ALL = make_fence(0, 0)
SUM = make_load(1, 0, op=Op.OWN_FIRST)
SWAP = Move(np.array([1, 0]), np.array([1, 0]), WHOLE, WHOLE, Op.OWN_FIRST)


@pytest.mark.parametrize(
    ("rounds", "told"),
    [
        ([[SUM], ALL], "round 0: rank 0 reads chunk 0 of rank 1 before any fence of the two"),
        ([ALL, [SUM]], "round 1: rank 0 reads chunk 0 of rank 1 after any fence of the two"),
        ([ALL, [SUM, *ALL]], "round 1: holds fences and loads or stores"),
        ([ALL, [SUM, SWAP], ALL], "holds loads or stores and moves"),
        ([[*ALL, *ALL], [SUM], ALL], "round 0: rank 0 waits at two fences"),
        ([make_fence(1, 0), [SUM], ALL], "round 0: rank 0 waits at the fence of rank 1, whose own leader is 0"),
        ([make_fence(0, 2), [SUM], ALL], "names peer 2, but ranks are"),
        ([ALL, [make_load(2, 0, op=Op.OWN_FIRST)], ALL], "names peer 2, but ranks are"),
        ([ALL, [make_store(1, 0)], ALL], "rank 1 writes chunk 0 of rank 0, which rank 0 reads in the same round"),
        # Rank 1 lands in its place in round 1, from which rank 0 loads a round later: it might find either value.
        (
            [ALL, [make_load(-1, 0, op=Op.OWN_FIRST)], [make_load(1, -1, op=Op.OWN_FIRST)], ALL],
            "round 2: rank 0 reads chunk 0 of rank 1, which rank 1 loads into in round 1; no fence of both lies",
        ),
    ],
)
def test_what_is_refused(rounds, told):
    assert told in find_error(plan_of(Operation.ALL_REDUCE, 2, 1, *rounds))


def test_a_place_may_be_loaded_from_until_what_landed_there_is_seen():
    # Rank 0 loads from rank 1 before, and in the round in which, something lands there, and after the next fence.
    same = [make_load(1, 0, op=Op.OWN_FIRST)]
    ordered = replace(SUM, op=np.array([Op.OWN_FIRST, Op.INCOMING_FIRST]))  # type: ignore[arg-type]  # a Load
    check(plan_of(Operation.ALL_REDUCE, 2, 1, ALL, [ordered], ALL))
    assert "different orders" in find_error(plan_of(Operation.ALL_REDUCE, 2, 1, ALL, same, ALL))
    late = [ALL, [make_load(1, -1, op=Op.OWN_FIRST)], ALL, [make_load(-1, 0)], ALL]
    check(plan_of(Operation.ALL_REDUCE, 2, 1, *late))
    early = [ALL, [make_load(-1, 0, op=Op.INCOMING_FIRST)], ALL, [make_load(1, -1)], ALL]
    check(plan_of(Operation.ALL_REDUCE, 2, 1, *early))


def test_what_landed_may_come_to_light_at_a_fence_that_the_reader_has_no_part_in():
    # Rank 2 loads from rank 1 in the round of the landing, but rank 1's next fence is with rank 0 only.
    everyone, pair = make_fence(0, 0, 0), make_fence(0, 0, -1)
    before = [make_load(-1, 0, 1, op=Op.OWN_FIRST)]
    assert "which rank 2 reads" in find_error(plan_of(Operation.ALL_REDUCE, 3, 1, everyone, before, pair, everyone))


def test_a_fence_with_others_orders_nothing():
    half = make_fence(0, 0, 2, 2)
    told = find_error(plan_of(Operation.BROADCAST, 4, 1, half, [make_load(-1, 0, 0, 0)], half))
    assert "round 1: rank 2 reads chunk 0 of rank 0 before any fence of the two" in told


def test_a_barrier_needs_a_fence_of_all():
    check(plan_of(Operation.BARRIER, 4, 0, make_fence(0, 0, 0, 0)))
    check(plan_of(Operation.BARRIER, 4, 0, make_fence(0, 0, 2, 2), make_fence(0, 1, 0, 1)))
    assert "rank 0 may leave before rank 2 arrived" in find_error(
        plan_of(Operation.BARRIER, 4, 0, make_fence(0, 0, 2, 2))
    )
    alone, news = (
        make_fence(0, -1),
        make_load(1, 0, src=SIGNAL, dst=SIGNAL),
    )  # to read another's memory is not to hear of it
    assert "rank 0 may leave before rank 1" in find_error(plan_of(Operation.BARRIER, 2, 1, alone, [news], alone))


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_backwards_loads_are_stores_and_fences_stay(n):
    def both(rank: IntArray) -> Rounds:
        there = family.reduce_scatter(rank, n)
        return there + there.reversed()

    check(Plan(Operation.ALL_REDUCE, "there_and_back", n, 0, both))
    back = family.reduce_scatter(np.arange(n), n).reversed().reversed()
    kinds = [[type(step) for step in steps] for steps in back]
    assert kinds == [[type(step) for step in steps] for steps in family.reduce_scatter(np.arange(n), n)]
    check(Plan(Operation.ALL_GATHER, "twice", n, 0, lambda rank: family.all_gather(rank, n).reversed().reversed()))


def test_a_load_backwards_cannot_reduce():
    with pytest.raises(PlanError, match="stores cannot reduce"):
        list(family.all_gather(np.arange(3), 3).reversed(Op.OWN_FIRST))


@pytest.mark.parametrize("order", [(2, 0, 3, 1), (3, 2, 1, 0)])
def test_relabelled_fences_have_the_ranks_they_should(order):
    names = np.array(order)
    plays = np.argsort(names)

    def make(rank: IntArray) -> Rounds:
        return relabel_ranks(family.two_shot(plays[rank], 4), lambda peer: names[peer])

    plan = Plan(Operation.ALL_REDUCE, "relabelled", 4, 0, make)
    check(plan)
    assert plan.rounds().at(0)[0].leader.tolist() == [order[0]] * 4
    assert fault_in_some_order(plan, 6) is None


def test_groups_have_fences_of_their_own():
    groups = Groups.from_nodes(7, ((6, 3), (1, 4), (2, 5, 0)))
    rounds = run_in_groups(
        lambda slot, size: family.all_gather(slot, size).map_regions(lambda _: WHOLE, 1), groups, np.arange(7)
    )
    found = {int(leader) for step in rounds.at(0) for leader in step.leader if leader >= 0}
    assert found == {6, 1, 2}


@pytest.mark.parametrize("inter", ["ring", "double_tree", "recursive_doubling"])
def test_hierarchies_with_shared_memory_in_each_node(inter):
    algorithm = make_hierarchical("shared", inter)
    assert algorithm.uses_shared_memory
    for nodes in ((3, 3), (2, 2, 2), (2, 3, 4), (1, 5), ((0, 3), (1, 4), (2, 5)), ((6, 3), (1, 4), (2, 5, 0)), (4,)):
        n = sum(size if isinstance(size, int) else len(size) for size in nodes)
        plan = algorithm.plan(n, 0, 2, nodes)
        assert check(plan).cost == plan.cost
        assert fault_in_some_order(plan, 4) is None


def test_json_says_via_and_fence_and_refuses_what_it_cannot_mean():
    text = to_json(get_algorithm(Operation.BROADCAST, "shared").plan(3))
    document = json.loads(text)
    assert document["rounds"][0] == [{"fence": [[0, 1, 2]]}]
    assert [each["via"] for each in document["rounds"][1]] == ["store", "store", "load", "load"]
    for changed, told in (
        ({"fence": [[0, 1], [1, 2]]}, "no rank twice"),
        ({"fence": [[0, 3]]}, r"fence\[0\]\[1\] is 3"),
        ({"fence": [[]]}, "none empty"),
        ({"fence": 3}, "need a list"),
        ({"fence": [], "via": "load"}, "unknown key 'via'"),
        ({**document["rounds"][1][0], "via": "fax"}, "via is 'fax'; need one of load, store"),
        ({**document["rounds"][1][0], "op": "own_first"}, "a store cannot reduce"),
    ):
        document["rounds"][0] = [changed]
        with pytest.raises(UsageError, match=told):
            from_json(json.dumps(document))


def test_a_users_algorithm_must_say_that_it_is_shared(tmp_path):
    from hpccoll.algorithms import loader

    file = tmp_path / "mine.py"
    file.write_text(
        "from hpccoll.algorithms import shared_memory\n\n\ndef my_all_gather(rank, n):\n"
        "    return shared_memory.all_gather(rank, n)\n"
    )
    own = loader.load_algorithm(f"{file}:my_all_gather")
    with pytest.raises(PlanError, match="round 0 holds loads, stores or fences; write @algorithm"):
        loader.prove_algorithm(own, 3)
    loader.prove_algorithm(replace(own, uses_shared_memory=True), 3)


def test_variants_are_described_as_shared():
    mine = make_algorithm(
        Operation.ALL_GATHER, "mine", family.all_gather, family.block_cost, 1, uses_shared_memory=True
    )
    assert mine.uses_shared_memory
    assert check(mine.plan(5)).messages == 20
