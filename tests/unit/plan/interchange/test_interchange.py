"""Plans in other formats: JSON both ways, and GOAL and MSCCL files that independent executors run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.algorithms import get_algorithm, list_algorithms
from hpccoll.cli.main import hpccoll, main
from hpccoll.errors import PlanError, UsageError
from hpccoll.plan import Operation, Plan, check, replay
from hpccoll.plan.interchange.goal import to_goal
from hpccoll.plan.interchange.json_plans import from_json, to_json
from hpccoll.plan.interchange.msccl import COLLECTIVES, to_msccl
from tests.depth import mark_full
from tests.unit.plan.interchange.outsiders import read_goal, read_msccl, run_goal, run_msccl

ALL = pytest.mark.parametrize("algorithm", list_algorithms(), ids=lambda algorithm: algorithm.full_name)
RING2 = """{
  "format": "hpccoll-plan/1",
  "operation": "all_reduce",
  "algorithm": "ring",
  "ranks": 2,
  "root": 0,
  "chunks": 2,
  "cost": {"steps": 2, "mean": "1", "most": "1"},
  "rounds": [
    [{"from": 1, "to": 0, "send": [0], "recv": [0], "op": "own_first"}, \
{"from": 0, "to": 1, "send": [1], "recv": [1], "op": "own_first"}],
    [{"from": 1, "to": 0, "send": [1], "recv": [1], "op": "copy"}, \
{"from": 0, "to": 1, "send": [0], "recv": [0], "op": "copy"}]
  ]
}
"""


def make_plan(name: str, ranks: int, root: int = 0, chunks: int = 1) -> Plan:
    """Return the plan of an algorithm, given as `operation/name`."""
    operation, _, algorithm = name.partition("/")
    return get_algorithm(Operation.from_name(operation), algorithm).plan(ranks, root, chunks)


def test_the_text_is_what_the_documentation_shows():
    assert to_json(make_plan("all_reduce/ring", 2)) == RING2


@ALL
@pytest.mark.parametrize("ranks", [1, 3, mark_full(2), mark_full(5), mark_full(8)])
def test_json_there_and_back_is_the_same_plan(algorithm, ranks):
    for root in {0, ranks // 2} if "root" in algorithm.parameters else {0}:
        plan = algorithm.plan(ranks, root, 3)
        text = to_json(plan)
        again = from_json(text)
        assert to_json(again) == text
        assert (again.operation, again.algorithm, again.ranks, again.root) == (
            plan.operation,
            plan.algorithm,
            plan.ranks,
            plan.root,
        )
        assert check(again) == check(plan)


@pytest.mark.parametrize("name", ["all_reduce/double_tree", "all_reduce/recursive_doubling", "all_reduce/rabenseifner"])
def test_json_keeps_the_order_of_reduction_to_the_last_bit(name):
    plan, dice = make_plan(name, 7, chunks=4), np.random.default_rng(1)
    inputs = [(dice.standard_normal(19) * 10.0 ** dice.integers(-6, 6)).astype(np.float32) for _ in range(7)]
    results = [replay(each, 19, inputs, np.add) for each in (plan, from_json(to_json(plan)))]
    for mine, again in zip(*results, strict=True):
        assert mine.tobytes() == again.tobytes()


def change_json(where: list[Any], value: Any) -> str:
    """Return the JSON of a plan with the value at a path of keys replaced."""
    document = json.loads(RING2)
    at = document
    for key in where[:-1]:
        at = at[key]
    at[where[-1]] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "the top"),
        ("{}", "lacks format, operation"),
        (change_json(["format"], "hpccoll-plan/2"), '"hpccoll-plan/1"'),
        (change_json(["operation"], "all_reduse"), "all_reduce"),
        (change_json(["operation"], 3), "operation is 3"),
        (change_json(["algorithm"], "a b"), "algorithm"),
        (change_json(["ranks"], 0), "ranks is 0; need a whole number from 1"),
        (change_json(["ranks"], 2.0), "ranks is 2.0"),
        (change_json(["ranks"], True), "ranks is True"),
        (change_json(["ranks"], 10**30), "ranks is 1000000"),
        (change_json(["chunks"], 2**40), "chunks"),
        (change_json(["root"], 1), "root is 1; need a whole number from 0 to 0"),
        (change_json(["cost"], {"steps": 2}), "cost lacks mean, most"),
        (change_json(["cost", "mean"], "1e999999999"), "cost.mean"),
        (change_json(["cost", "most"], "1/0"), "cost.most"),
        (change_json(["more"], 1), "unknown key 'more'"),
        (change_json(["rounds"], {}), "rounds is {}; need a list"),
        (change_json(["rounds", 1], 7), "rounds[1] is 7"),
        (change_json(["rounds", 1, 0], []), "rounds[1][0]"),
        (change_json(["rounds", 1, 0, "to"], 2), "rounds[1][0].to is 2; need a whole number from 0 to 1"),
        (change_json(["rounds", 0, 1, "send"], [2]), "rounds[0][1].send[0] is 2"),
        (change_json(["rounds", 0, 1, "op"], "add"), "copy, own_first, incoming_first"),
        (change_json(["rounds", 0, 1, "op"], ["copy"]), "copy, own_first, incoming_first"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_by_place(text, told):
    with pytest.raises(UsageError) as caught:
        from_json(text, "my.json")
    assert str(caught.value).startswith("my.json")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("where", "value", "told"),
    [
        (["rounds", 1, 0, "send"], [0, 1], "rank 1 sends 2 chunks and rank 0 receives 1"),
        (["rounds", 1, 0, "op"], "own_first", "doubled"),
        (["rounds", 0, 0, "op"], "copy", "missing"),
        (["rounds", 1, 0, "from"], 0, "missing"),
        (["cost", "steps"], 3, "states 3 steps"),
        (["chunks"], 0, "0 chunks"),
    ],
)
def test_a_plan_that_is_wrong_is_refuted(where, value, told):
    with pytest.raises((PlanError, UsageError), match=told):
        check(from_json(change_json(where, value)))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
PLACES = st.lists(st.one_of(st.integers(0, 3), st.sampled_from(["rounds", "send", "recv", "from", "to", "op", "cost"])))


@pytest.mark.slow
@given(where=PLACES, keys=st.lists(st.integers(0, 20), max_size=6), value=VALUES)
def test_any_value_anywhere_is_a_plan_or_a_clear_refusal(where, keys, value):
    document = json.loads(RING2)
    at: Any = document
    path: list[tuple[Any, Any]] = []
    for key in keys:  # walk to some place that is there
        if isinstance(at, dict) and at:
            name = sorted(at)[key % len(at)]
        elif isinstance(at, list) and at:
            name = key % len(at)
        else:
            break
        path.append((at, name))
        at = at[name]
    if path:
        holder, name = path[-1]
        holder[name] = value
    require_clear_error(json.dumps(document))


@pytest.mark.slow
@given(cut=st.integers(0, len(RING2)), more=st.text(max_size=5))
def test_a_torn_file_is_refused(cut, more):
    require_clear_error(RING2[:cut] + more)


def require_clear_error(text: str) -> None:
    """Assert that a JSON plan is refused with a clear error, or accepted."""
    try:
        check(from_json(text))
    except (UsageError, PlanError) as error:
        refusal = str(error)
    else:
        return
    assert "\n" not in refusal
    assert len(refusal) < 600


@ALL
@pytest.mark.parametrize("ranks", [1, 2, 5, mark_full(3), mark_full(8)])
@pytest.mark.parametrize("count", [0, 7, mark_full(1), mark_full(64)])
def test_a_goal_schedule_ends_and_moves_the_plans_bytes(algorithm, ranks, count):
    plan = algorithm.plan(ranks, 0, 3)
    if algorithm.uses_shared_memory and plan.operation is Operation.BARRIER and ranks > 1:
        with pytest.raises(UsageError, match=f"{plan.name} contains fences, which GOAL cannot express"):
            to_goal(plan, count, 4)
        return
    total = run_goal(read_goal(to_goal(plan, count, 4)))
    proof = check(plan)
    if plan.operation is Operation.BARRIER:
        assert total == proof.messages
    elif count == 64 and ranks == 8 and plan.moves().chunks in (1, 8, 64):  # where all chunks are of equal size
        blocks = 8 if plan.operation.has_blocks else 1
        assert total == proof.cost.mean * ranks * count * blocks * 4
    elif count == 0:
        assert total == 0


def test_a_goal_schedule_reads_as_txt2bin_wants_it():
    assert to_goal(make_plan("broadcast/tree", 2), 3, 4) == (
        "num_ranks 2\n\nrank 0 {\nl1: send 12b to 1 tag 0\n}\n\nrank 1 {\nl1: recv 12b from 0 tag 0\n}\n"
    )
    chain = to_goal(make_plan("broadcast/chain", 3), 1, 4)
    assert "rank 1 {\nl1: recv 4b from 0 tag 0\nl2: send 4b to 2 tag 1\nl2 requires l1\n}\n" in chain


def memory_for(plan: Plan, inputs: list[np.ndarray | None]) -> list[dict[str, np.ndarray]]:
    """The buffers i and o of each gpu, as the collective would be called in place."""
    n, chunks = plan.ranks, plan.moves().chunks
    held = plan.operation.input_mask(np.arange(n), n, chunks, plan.root)
    found = []
    for rank in range(n):
        whole = np.full(chunks, -(10**9), np.int64)
        brought = inputs[rank]
        if brought is not None:
            whole[held[rank]] = brought
        block = chunks // n
        own = whole[rank * block : (rank + 1) * block]
        match plan.operation:
            case Operation.ALL_TO_ALL:
                found.append({"i": whole[:n].copy(), "o": np.full(n, -1, np.int64)})
            case Operation.ALL_GATHER:
                found.append({"i": own, "o": whole})
            case Operation.REDUCE_SCATTER:
                found.append({"i": whole, "o": own})
            case _:
                found.append({"i": whole, "o": whole})
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize(
    "algorithm", [each for each in list_algorithms() if each.operation in COLLECTIVES], ids=lambda each: each.full_name
)
def test_an_msccl_file_computes_what_replay_does_in_any_order(algorithm, ranks):
    root = ranks // 2 if "root" in algorithm.parameters else 0
    plan = algorithm.plan(ranks, root, 3)
    chunks, dice = plan.moves().chunks, np.random.default_rng(7)
    held = plan.operation.input_mask(np.arange(ranks), ranks, chunks, root)
    inputs = [dice.integers(0, 1000, int(row.sum())) if row.any() else None for row in held]
    count = chunks // ranks if plan.operation.has_blocks and plan.operation is not Operation.ALL_TO_ALL else chunks
    expected = replay(plan, 1 if plan.operation is Operation.ALL_TO_ALL else count, inputs, np.add)
    text = to_msccl(plan)
    for seed in range(4):
        memory = memory_for(plan, inputs)
        blocks = read_msccl(text, memory)
        run_msccl(blocks, seed)
        for rank in range(ranks):
            if plan.operation is Operation.REDUCE and rank != root:
                assert np.array_equal(memory[rank]["i"], np.asarray(inputs[rank]))  # the input is the user's
            elif len(expected[rank]):
                assert memory[rank]["o"].tolist() == expected[rank].tolist()


def test_an_msccl_file_stays_within_what_the_runtime_takes():
    with pytest.raises(UsageError, match="MSCCL has no gather"):
        to_msccl(make_plan("gather/tree", 4))
    with pytest.raises(UsageError, match="300 steps; MSCCL takes 256"):
        to_msccl(make_plan("broadcast/chain", 3, chunks=300))
    with pytest.raises(UsageError, match="39 peers in one direction; MSCCL takes 32"):
        to_msccl(make_plan("all_to_all/pairwise", 40))


@pytest.mark.parametrize("suffix", [".json", ".goal", ".xml"])
def test_the_command_writes_what_the_functions_return(tmp_path, suffix):
    file = tmp_path / f"ring{suffix}"
    done = CliRunner().invoke(hpccoll, ["export", "all_reduce/ring", "-o", str(file), "--ranks", "3", "--size", "12"])
    assert done.exit_code == 0
    plan = make_plan("all_reduce/ring", 3)
    assert file.read_text() == {".json": to_json, ".goal": lambda p: to_goal(p, 3, 4), ".xml": to_msccl}[suffix](plan)
    assert "all_reduce/ring on 3 ranks, proven (4 steps, 12 messages)" in done.output


def test_the_command_converts_a_json_plan_and_refutes_a_wrong_one(tmp_path, capsys):
    good, bad, out = tmp_path / "good.json", tmp_path / "bad.json", tmp_path / "out.xml"
    good.write_text(RING2)
    bad.write_text(change_json(["rounds", 0, 0, "op"], "copy"))
    assert main(["export", str(good), "-o", str(out)]) == 0
    assert out.read_text() == to_msccl(make_plan("all_reduce/ring", 2))
    assert main(["export", str(bad), "-o", str(out)]) == 1
    assert "chunk 0 is wrong: the contribution of rank 0 is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["all_reduce/ring", "-o", "x.bin"], ".goal"),
        (["all_reduce/ring", "-o", "/nowhere/x.goal"], "/nowhere/x.goal"),
        (["all_reduce/rong", "-o", "x.goal"], "recursive_doubling"),
        (["all_reduse/ring", "-o", "x.goal"], "all_to_all"),
        (["all_reduce", "-o", "x.goal"], "recursive_doubling"),
        (["all_reduce/ring", "-o", "x.goal", "--ranks", "0"], "ranks=0"),
        (["all_reduce/ring", "-o", "x.goal", "--ranks", "-3"], "ranks=-3"),
        (["broadcast/tree", "-o", "x.goal", "-r", "4"], "root=4"),
        (["all_reduce/ring", "-o", "x.goal", "--size", "1Q"], "1Q"),
        (["nowhere.json", "-o", "x.goal"], "nowhere.json cannot be read"),
    ],
)
def test_what_cannot_be_exported_is_usage(words, told, capsys):
    assert main(["export", *words]) == 2
    assert told in capsys.readouterr().err
