"""The selection of `auto`: the fastest measured candidate that can run; without a table, rules and the cost model."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from hpccoll.algorithms import get_algorithm, list_algorithms
from hpccoll.errors import UsageError
from hpccoll.plan import Operation
from hpccoll.selection.cost_model import (
    MIN_CHUNK_BYTES,
    MODELLED_ALGORITHMS,
    LinkCost,
    choose_chunk_count,
    find_fastest_algorithm,
    predict_seconds,
)
from hpccoll.selection.rules import BLOCKING_RULES, MULTI_NODE_RULES, ONE_NODE_RULES, ONE_RANK_PER_NODE_RULES
from hpccoll.selection.selector import Selection, SelectionKey, Selector, round_message_size
from hpccoll.selection.tuning_table import (
    MPI_LIBRARY,
    BufferKind,
    CandidateTiming,
    TuningPoint,
    TuningSeries,
    TuningSite,
    TuningTable,
)
from hpccoll.units import MiB

HERE = TuningSite("MPI 1.0", "a processor, 2 cores", "4 ranks on 1 node")


def test_model_on_a_ring_by_hand():
    link = LinkCost(alpha_s=1.0, beta_s_per_byte=0.5)
    ring = get_algorithm(Operation.ALL_REDUCE, "ring")
    assert predict_seconds(ring, 4, 1, 8, link) == 6 * 1.0 + 2 * 3 / 4 * 8 * 0.5


def test_short_messages_take_few_steps_and_long_ones_few_bytes():
    assert find_fastest_algorithm(Operation.ALL_REDUCE, 8, 8).name in ("recursive_doubling", "tree")
    for n in (2, 3, 8):
        long = find_fastest_algorithm(Operation.ALL_REDUCE, n, 64 * MiB)
        cost = long.plan(n, 0, choose_chunk_count(long, n, 64 * MiB)).cost
        assert cost is not None
        assert cost.most <= 2
    assert find_fastest_algorithm(Operation.ALL_REDUCE, 2, 64 * MiB).name in ("ring", "rabenseifner")


@pytest.mark.parametrize("each", list_algorithms(), ids=lambda each: each.full_name)
def test_chunks_are_one_unless_pipelined_and_never_tiny(each):
    for nbytes in (0, 8, MIN_CHUNK_BYTES, 64 * MiB):
        chunks = choose_chunk_count(each, 8, nbytes)
        assert chunks == 1 or ("chunks" in each.parameters and nbytes // chunks >= MIN_CHUNK_BYTES)


def test_pipelining_needs_a_line_to_fill():
    chain = get_algorithm(Operation.BROADCAST, "chain")
    assert choose_chunk_count(chain, 2, 64 * MiB) == 1
    assert choose_chunk_count(chain, 8, 64 * MiB) > 1


@pytest.mark.parametrize("operation", Operation)
def test_every_operation_has_candidates_that_exist(operation):
    assert all(get_algorithm(operation, name).operation is operation for name in MODELLED_ALGORITHMS[operation])
    assert find_fastest_algorithm(operation, 5, 1024).name in MODELLED_ALGORITHMS[operation]


def table(*points, operation=Operation.ALL_REDUCE, itemsize=4, buffer=BufferKind.HOST):
    """Return a table of one series; a point has a size and each candidate's time, exact or with an interval."""
    made = []
    for nbytes, times in points:
        intervals = {name: us if isinstance(us, tuple) else (us, us, us) for name, us in times.items()}
        timings = tuple(CandidateTiming(name, us, low, high) for name, (low, us, high) in intervals.items())
        made.append(TuningPoint(nbytes, "2026-01-02", timings))
    return TuningTable(HERE, (TuningSeries(operation, itemsize, buffer, tuple(made)),))


def select(selector: Selector, nbytes, operation=Operation.ALL_REDUCE, buffer=BufferKind.HOST, **how) -> Selection:
    """Return the selection for a message size."""
    how = {"itemsize": 4, "library": True, "shared": True} | how
    return selector.select(SelectionKey(operation, round_message_size(nbytes), buffer=buffer, **how))


def select_by_table(known, nbytes, ranks=4, nodes=1, **about):
    """Return the selection of a new selector with a table."""
    return select(Selector(ranks, nodes, known), nbytes, **about)


def test_the_fastest_measured_candidate_is_taken_and_why_is_said():
    known = table((MiB, {"ring": 880.0, "mpi": 1000.0, "shared_two_shot": 412.0}))
    selection = select_by_table(known, MiB)
    assert selection.name == "shared_two_shot"
    assert selection.why == "measured 2026-01-02 (412 us; next ring 880 us)"
    assert "at 1 MiB" in select_by_table(known, 2 * MiB).why


def test_only_what_may_be_taken_is():
    known = table((8, {"mpi": 1.0, "shared_one_shot": 2.0, "ring": 3.0}))
    assert select_by_table(known, 8).algorithm is None
    assert select_by_table(known, 8).name == MPI_LIBRARY
    assert select_by_table(known, 8, library=False).name == "shared_one_shot"
    assert select_by_table(known, 8, library=False, shared=False).name == "ring"
    assert select_by_table(known, 8, shared=False).name == MPI_LIBRARY


def test_no_plan_of_messages_is_taken_on_a_node_where_blocking_and_asynchronous_calls_may_meet():
    known = table((MiB, {"ring": 1.0, "shared_one_shot": 2.0, "shared_two_shot": 3.0}))
    assert select(Selector(2, 1, known, mixed_forms=True), MiB).name == "shared_one_shot"
    untuned, reduce = Selector(2, 1, mixed_forms=True), Operation.REDUCE
    assert [select(untuned, nbytes).name for nbytes in (MiB, 4 * MiB, 64 * MiB)] == ["shared_two_shot"] * 3
    names = [select(Selector(16, 1, mixed_forms=mixed), MiB, operation=reduce).name for mixed in (False, True)]
    assert names == ["chain", "shared"]
    assert select(untuned, MiB, operation=reduce).name == "shared"
    assert not select(untuned, MiB, operation=reduce, shared=False).algorithm.uses_shared_memory
    nodes = [select(Selector(8, 2, known, mixed_forms=each), MiB, shared=False).name for each in (True, False)]
    assert nodes == ["ring", "ring"]


def test_algorithms_that_are_not_here_are_passed_over():
    known = table((8, {"from_another_version": 1.0, "ring": 3.0}))
    assert select_by_table(known, 8).name == "ring"
    assert not select_by_table(
        table((8, {"from_another_version": 1.0})), 8, library=False, shared=False
    ).why.startswith("meas")


def test_a_size_belongs_to_the_nearest_measured_by_ratio():
    known = table((1024, {"ring": 1.0}), (16 * 1024, {"tree": 1.0}))
    assert [select_by_table(known, nbytes).name for nbytes in (1024, 4095, 4097, 16 * 1024)] == [
        "ring",
        "ring",
        "ring",
        "tree",
    ]
    assert select_by_table(known, 5 * 1024).name == "tree"


@pytest.mark.parametrize(("nbytes", "measured"), [(256, True), (255, False), (64 * 1024, True), (80 * 1024, False)])
def test_beyond_the_measured_sizes_four_times_is_near_enough(nbytes, measured):
    known = table((1024, {"ring": 1.0}), (16 * 1024, {"tree": 1.0}))
    assert select_by_table(known, nbytes).why.startswith("measured") == measured


def test_the_shortest_messages_are_alike():
    assert select_by_table(table((8, {"tree": 1.0})), 0).name == "tree"
    known = table((0, {"dissemination": 1.0}), operation=Operation.BARRIER)
    assert select_by_table(known, 0, operation=Operation.BARRIER).why.startswith("measured")


def test_times_are_interpolated_between_near_sizes_only():
    series = table((8, {"ring": 2.0}), (128, {"ring": 8.0, "tree": (1.0, 2.0, 4.0)})).series[0]
    timings = {nbytes: series.interpolate("ring", nbytes) for nbytes in (4, 16, 32, 128, 256)}
    known = {nbytes: timing.us for nbytes, timing in timings.items() if timing is not None}
    assert known == pytest.approx({4: 2, 32: 4, 128: 8})  # 128 bytes are more than four times as many as 16
    assert series.interpolate("tree", 128) == CandidateTiming("tree", 2.0, 1.0, 4.0)
    assert series.interpolate("tree", 64) is None


def test_a_tie_stays_with_the_smaller_size_and_a_clear_winner_does_not():
    tie = {"ring": (9.0, 10.4, 12.0), "tree": (9.9, 10.0, 10.5)}
    assert select_by_table(table((1024, {"ring": 1.0, "tree": 2.0}), (4096, tie)), 4096).name == "ring"
    assert select_by_table(table((1024, {"ring": 2.0, "tree": 1.0}), (4096, tie)), 4096).name == "tree"
    assert select_by_table(table((4096, tie)), 4096).name == "ring", "the lowest lower bound"
    apart = {"ring": (10.3, 10.4, 10.5), "tree": (9.9, 10.0, 10.2)}
    assert select_by_table(table((1024, {"ring": 1.0, "tree": 2.0}), (4096, apart)), 4096).name == "tree"
    far = {"ring": (9.0, 11.0, 12.0), "tree": (9.9, 10.0, 10.5)}
    assert select_by_table(table((1024, {"ring": 1.0, "tree": 2.0}), (4096, far)), 4096).name == "tree", (
        "ten percent is no tie"
    )


def test_a_missing_element_size_is_answered_by_the_nearest():
    one, two = table((8, {"ring": 1.0}), itemsize=2), table((8, {"tree": 1.0}), itemsize=8)
    known = one.merge(two.series)
    assert [select_by_table(known, 8, itemsize=size).name for size in (1, 2, 3, 8, 16)] == [
        "ring",
        "ring",
        "ring",
        "tree",
        "tree",
    ]


def test_other_buffers_and_operations_are_not_answered():
    known = table((8, {"ring": 1.0}))
    assert not select_by_table(known, 8, buffer=BufferKind.SYMMETRIC).why.startswith("measured")
    assert not select_by_table(known, 8, operation=Operation.REDUCE_SCATTER).why.startswith("measured")


def test_sizes_of_one_class_get_one_answer():
    selector = Selector(4, 1, table((1024, {"ring": 1.0}), (2048, {"tree": 1.0})))
    first = select(selector, 1024)
    assert select(selector, 1279) is first, "the three leading bits are those of 1024"
    assert select(selector, 1280) is not first
    assert select(selector, 2048).name == "tree"
    for nbytes in range(1, 5000):
        bits = max(nbytes.bit_length() - 3, 0)
        assert select(selector, nbytes) == select(selector, nbytes >> bits << bits)


def test_pipelined_algorithms_get_their_chunks():
    known = table((64 * MiB, {"chain": 1.0}), operation=Operation.BROADCAST)
    selection = select_by_table(known, 64 * MiB, ranks=8, operation=Operation.BROADCAST)
    assert selection.chunks == choose_chunk_count(get_algorithm(Operation.BROADCAST, "chain"), 8, 64 * MiB) > 1


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("buffer", BufferKind)
def test_without_a_table_everything_has_an_answer_that_may_be_taken(operation, buffer):
    for ranks, nodes in ((1, 1), (2, 1), (4, 1), (4, 2), (7, 7)):
        for library, shared in ((True, True), (True, False), (False, True), (False, False)):
            for nbytes in (0, 8, 64 * 1024, 64 * MiB):
                about = {"operation": operation, "buffer": buffer, "library": library, "shared": shared}
                selection = select_by_table(None, nbytes, ranks, nodes, **about)
                assert selection.algorithm is not None or library
                assert selection.algorithm is None or shared or not selection.algorithm.uses_shared_memory
                assert selection.chunks >= 1


def test_several_nodes_without_a_table_go_by_size():
    assert [select_by_table(None, nbytes, nodes=2).name for nbytes in (8, 64 * 1024, MiB)] == [
        MPI_LIBRARY,
        "hierarchical_doubling",
        "hierarchical_ring",
    ]
    assert select_by_table(None, MiB, nodes=2, shared=False).name == MPI_LIBRARY
    assert select_by_table(None, MiB, nodes=2, shared=False, library=False).why == "cost model"
    assert select_by_table(None, 8, nodes=2, library=False).name == "hierarchical_doubling"


def test_one_rank_per_node_takes_plans_of_messages():
    sizes = 8, 64 * 1024, MiB
    for nodes in (2, 4):
        assert [select_by_table(None, size, nodes, nodes=nodes).name for size in sizes] == [
            MPI_LIBRARY,
            "recursive_doubling",
            "ring",
        ]
    assert select_by_table(None, MiB, 4, nodes=4, buffer=BufferKind.CUDA, shared=False).name == MPI_LIBRARY
    assert select_by_table(None, MiB, 4, nodes=4, shared=False).name == "ring"


def test_on_several_nodes_only_what_crosses_them_is_taken_from_a_table():
    known = table((8, {"shared_one_shot": 1.0, "hierarchical_ring": 2.0, "ring": 3.0}))
    assert select_by_table(known, 8).name == "shared_one_shot"
    assert select_by_table(known, 8, nodes=2).name == "hierarchical_ring"
    assert select_by_table(known, 8, nodes=2, shared=False).name == "ring"


@pytest.mark.parametrize("operation", Operation)
def test_rules_across_nodes_name_what_crosses_them(operation):
    rules = MULTI_NODE_RULES[operation]
    assert [rule.below_bytes for rule in rules] == sorted({rule.below_bytes for rule in rules})
    assert rules[-1].below_bytes == float("inf")
    assert all(
        name == MPI_LIBRARY or get_algorithm(operation, name).is_two_level for rule in rules for name in rule.candidates
    )


@pytest.mark.parametrize("operation", ONE_RANK_PER_NODE_RULES)
def test_rules_for_one_rank_per_node_name_plans_of_messages(operation):
    rules = ONE_RANK_PER_NODE_RULES[operation]
    assert rules[-1].below_bytes == float("inf")
    names = {name for rule in rules for name in rule.candidates} - {MPI_LIBRARY}
    assert not any(get_algorithm(operation, name).uses_shared_memory for name in names)


@pytest.mark.parametrize("about", ONE_NODE_RULES, ids=lambda about: f"{about[0].value}-{about[1]}")
def test_rules_name_what_exists_and_reach_all_sizes(about):
    rules = ONE_NODE_RULES[about]
    assert [rule.below_bytes for rule in rules] == sorted(rule.below_bytes for rule in rules)
    assert rules[-1].below_bytes == float("inf")
    for rule in rules:
        assert all(name == MPI_LIBRARY or get_algorithm(about[0], name) for name in rule.candidates)


@pytest.mark.parametrize("operation", BLOCKING_RULES)
def test_rules_for_plans_that_serve_many_calls_hold_for_few_ranks_of_one_node(operation):
    about = {"operation": operation, "itemsize": 8}
    for nbytes in (8, 1024, 8192):
        assert select_by_table(None, nbytes, 2, **about).algorithm is not None
        assert select_by_table(None, nbytes, 2, is_blocking=False, **about).name == MPI_LIBRARY
        assert select_by_table(None, nbytes, 8, **about).name == MPI_LIBRARY
        assert select_by_table(None, nbytes, 2, 2, **about).name == MPI_LIBRARY
    assert select_by_table(None, 1024, 4, **about).name == "tree"
    assert select_by_table(None, MiB, 4, **about).name == "shared"
    assert select_by_table(None, MiB, 4, is_blocking=False, **about).name == MPI_LIBRARY


def test_a_table_comes_back_from_json_as_it_was():
    known = table((8, {"mpi": (1.0, 1.5, 2.0), "ring": 3.0}), (512, {"ring": 4.0}))
    assert TuningTable.from_json(json.loads(json.dumps(known.as_json()))) == known


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema",), "hpccoll-tuning/2", "hpccoll-tuning/1"),
        (("schema",), None, "hpccoll-tuning/1"),
        (("where",), {"mpi": "x"}, "damaged"),
        (("series",), 7, "damaged"),
        (("series", 0), [], "damaged"),
        (("series", 0, "operation"), "all_reduction", "all_reduction"),
        (("series", 0, "buffer"), "tape", "tape"),
        (("series", 0, "itemsize"), 0, "itemsize 0 is not positive"),
        (("series", 0, "points"), {}, None),
        (("series", 0, "points", 0, "us", "ring"), [3.0, 2.0], "damaged"),
        (
            ("series", 0, "points", 0, "us", "ring"),
            [3.0, 4.0, 5.0],
            "ring has median 3.0 us outside its interval 4.0",
        ),
        (("series", 0, "points", 0, "us", "ring"), [3.0, 2.0, float("inf")], "ring"),
        (("series", 0, "points", 0, "us", "ring"), [float("nan")] * 3, "ring"),
        (("series", 0, "points", 0, "nbytes"), -1, "-1"),
        (("series", 0, "points", 0, "nbytes"), "many", "damaged"),
    ],
)
def test_a_damaged_table_is_refused(path, value, message):
    found = table((8, {"ring": 3.0})).as_json()
    *way, last = path
    inner = found
    for step in way:
        inner = inner[step]
    inner[last] = value
    if message is None:
        assert TuningTable.from_json(found).series[0].points == ()
        return
    with pytest.raises(UsageError, match=re.escape(message)):
        TuningTable.from_json(found)


def test_no_json_object_is_no_table():
    nothing: list[Any] = [None, 3, [], "table", {}]
    for found in nothing:
        with pytest.raises(UsageError, match="schema"):
            TuningTable.from_json(found)


def test_merging_replaces_what_is_measured_anew_and_keeps_the_rest():
    old = table((8, {"ring": 1.0}), (64, {"ring": 1.0}), (512, {"ring": 1.0}), (4096, {"ring": 1.0}))
    other = table((8, {"bruck": 1.0}), operation=Operation.ALL_GATHER)
    new = table((64, {"tree": 1.0}), (1024, {"tree": 1.0}))
    merged = old.merge(other.series).merge(new.series)
    points = {each.operation: {p.nbytes: p.timings[0].name for p in each.points} for each in merged.series}
    assert points[Operation.ALL_REDUCE] == {8: "ring", 64: "tree", 1024: "tree", 4096: "ring"}
    assert points[Operation.ALL_GATHER] == {8: "bruck"}


@pytest.mark.parametrize(
    ("ranks", "nbytes", "name"),
    [
        (2, 8, "shared_one_shot"),
        (2, 1024, "shared_two_shot"),
        (4, 1024, "shared_one_shot"),
        (4, 65536, "shared_two_shot"),
        (8, 65536, "shared_two_shot"),
        (32, 1024, "mpi"),
        (2, 2**19, "shared_two_shot"),
        (4, 2**19, "shared_two_shot"),
        (8, 16384, "shared_two_shot"),
        (8, 2**19, "shared_two_shot"),
        (4, 2**20, "shared_two_shot"),
    ],
)
def test_the_rule_for_a_size_depends_on_the_number_of_ranks(ranks, nbytes, name):
    assert select(Selector(ranks, 1), nbytes).name == name


@pytest.mark.parametrize("operation", [Operation.GATHER, Operation.SCATTER])
@pytest.mark.parametrize(
    ("ranks", "nbytes", "name"),
    [
        (8, 1024, "mpi"),
        (2, 65536, "shared"),
        (4, 65536, "shared"),
        (2, 2**23, "mpi"),
        (4, 2**23, "shared"),
        (8, 2**23, "mpi"),
    ],
)
def test_few_ranks_gather_and_scatter_in_shared_memory(operation, ranks, nbytes, name):
    selector = Selector(ranks, 1)
    assert select(selector, nbytes, operation).name == name
    assert select(selector, nbytes, operation, shared=False).name == "mpi"


@pytest.mark.parametrize(
    ("second", "tie"), [((10.2, 9.8, 10.6), True), ((11.0, 10.1, 12.0), False), ((10.4, 10.6, 12.0), False)]
)
def test_a_tie_is_one_by_the_rule_that_breaks_ties(second, tie):
    timings = (CandidateTiming("ring", 10.0, 9.5, 10.5), CandidateTiming("tree", *second))
    series = TuningSeries(Operation.ALL_REDUCE, 4, BufferKind.HOST, (TuningPoint(8, "2026-01-01", timings),))
    winner = series.find_winner(8, {"ring", "tree"})
    assert winner is not None
    assert winner.has_tie == tie
    alone = series.find_winner(8, {"ring"})
    assert alone is not None
    assert not alone.has_tie
