"""GOAL schedules and Chakra execution traces are read as profiles, with the calls, bytes and times that they carry."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm
from hpccoll.errors import UsageError
from hpccoll.plan import Operation
from hpccoll.plan.interchange.goal import to_goal
from hpccoll.profile import chakra_reader, explain_profile, format_screen, read_recording
from hpccoll.profile.chakra import COLLECTIVE, COMPUTATION, encode_execution_trace
from hpccoll.profile.chakra_reader import ChakraNode
from hpccoll.profile.dependencies import build_graph
from hpccoll.profile.exports import export_profile
from hpccoll.profile.goal import format_goal
from hpccoll.profile.goal_reader import parse_goal
from hpccoll.profile.replay import replay_job
from hpccoll.profile.replay_steps import make_steps
from hpccoll.profile.task_graph import ALPHA_S, BETA_S
from tests.unit.profile.test_findings import emulate
from tests.unit.profile.test_predictions import make_two_level_graph
from tests.unit.profile.traces import TraceBuilder, make_profile


def count_messages(graph):
    """Return how many messages of each source, destination and size there are."""
    calls = np.flatnonzero(graph.matches.sent >= 0)
    return Counter(zip(*(of[calls].tolist() for of in (graph.rank, graph.dest, graph.nbytes)), strict=True))


def count_collectives(graph):
    """Return how many calls of each rank, operation and size enter a collective."""
    return Counter(
        (int(graph.rank[call]), graph.operations[graph.op[call]], int(graph.nbytes[call]))
        for call in np.flatnonzero(graph.matches.enters >= 0)
    )


def read_text(text, tmp_path):
    return build_graph(parse_goal(text, tmp_path / "job.goal"))


def make_ring(ranks=3, rounds=4):
    """Return the graph of messages around a ring on the network that the reader assumes, and its run time."""
    builders, clock = [TraceBuilder() for _ in range(ranks)], np.zeros(ranks)
    for round_ in range(rounds):
        nbytes = 1000 * (round_ + 1)
        clock += 1e-3 * (1 + np.arange(ranks))
        sent = clock.copy()
        for rank in range(ranks):
            builders[rank].add("send", sent[rank], sent[rank], peer=(rank + 1) % ranks, nbytes=nbytes)
        for rank in range(ranks):
            clock[rank] = max(sent[rank], sent[rank - 1] + ALPHA_S + BETA_S * nbytes)
            builders[rank].add("recv", sent[rank], clock[rank], peer=(rank - 1) % ranks, nbytes=nbytes)
    return build_graph(make_profile(builders, float(clock.max()))), float(clock.max())


def test_messages_in_goal_keep_their_bytes_and_simulated_time(tmp_path):
    graph, run_s = make_ring()
    export_profile(graph, str(tmp_path / "job.goal"))
    read = build_graph(read_recording(str(tmp_path / "job.goal")))
    assert count_messages(read) == count_messages(graph)
    assert replay_job(read).run_s == pytest.approx(run_s, abs=1e-7)  # calc has whole nanoseconds
    assert format_goal(read).count("send") == format_goal(graph).count("send")
    again = read_text(format_goal(read), tmp_path)
    assert replay_job(again).run_s == pytest.approx(run_s, abs=1e-7)
    assert "0.1 ns per byte" in read.profile.problems[0]


@pytest.mark.parametrize(("operation", "name", "ranks"), [("all_reduce", "ring", 5), ("broadcast", "tree", 6)])
def test_the_schedule_of_an_algorithm_is_a_profile(operation, name, ranks, tmp_path):
    plan = get_algorithm(Operation(operation), name).plan(ranks)
    text = to_goal(plan, 1200)
    graph = read_text(text, tmp_path)
    messages: Counter[tuple[int, int, int]] = Counter()
    for rank, body in enumerate(text.split("rank ")[1:]):
        for nbytes, dest in re.findall(r"send (\d+)b to (\d+)", body):
            messages[rank, int(dest), int(nbytes)] += 1
    assert count_messages(graph) == messages
    rounds = {"all_reduce": 2 * (ranks - 1), "broadcast": 2}[operation]  # a send takes no time of its rank
    nbytes = max(size for _, _, size in messages)
    assert graph.run_s == pytest.approx(rounds * (ALPHA_S + BETA_S * nbytes), rel=1e-6)


def test_a_schedule_with_an_imbalance_is_explained(tmp_path):
    graph = build_graph(emulate("imbalance", 0)[0])
    explanation = explain_profile(parse_goal(format_goal(graph), tmp_path / "job.goal"))
    assert explanation.late[0].rank == 2
    screen = format_screen(explanation)
    assert "1. rank 2 (unknown host) arrives last in " in screen
    assert "calls of job.goal and costs " in screen
    assert explanation.graph.run_s == pytest.approx(graph.run_s, rel=0.02)


def test_needs_tags_and_any_source_of_goal(tmp_path):
    text = """num_ranks 3 // a comment
rank 0 {
first: recv 8b from -1 tag -1 cpu 0 nic 0
second: recv 8b from 1 tag 9
work: calc 5000
work requires first
work requires second
}
rank 1 {
/* two messages,
of which the second may start as soon as the computing has started */
send 8b to 0 tag 7
l: calc 3000
s: send 8b to 0 tag 9
s irequires l
}
rank 2 {
}
"""
    message_s, calc_s, other_s = ALPHA_S + BETA_S * 8, 5e-6, 3e-6
    graph = read_text(text, tmp_path)
    assert graph.end_s[graph.site < 0].tolist() == pytest.approx([message_s + calc_s, other_s, 0])
    late = read_text(text.replace("irequires", "requires"), tmp_path)
    assert late.end_s[late.site < 0].tolist() == pytest.approx([message_s + other_s + calc_s, other_s, 0])
    with pytest.raises(UsageError, match="never end"):  # the first receive takes the only message with tag 7
        read_text(text.replace("tag 9", "tag 8", 1), tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no num_ranks"),
        ("num_ranks 1\nrank 0 {\n", "ends inside of a rank"),
        ("num_ranks 1\nrank 1 {\n}\n", "rank 1 is not among the 1 ranks"),
        ("num_ranks 1\nrank 0 {\nsend 8b to 1 tag 0\n}\n", "there is no rank 1"),
        ("num_ranks 2\nrank 0 {\nsend 8b from 1 tag 0\n}\n", "job.goal:3: 'send 8b from 1 tag 0' is no GOAL"),
        ("num_ranks 1\nrank 0 {\nl1 requires l2\n}\n", "label l1 is not defined"),
        ("num_ranks 2\nrank 0 {\nrecv 8b from 1 tag 0\n}\n", r"ranks \[0\] never end"),
        ("calc 5\n", "is outside of a rank"),
    ],
)
def test_wrong_goal_is_refused(text, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        read_text(text, tmp_path)


GRAPHS = {
    "two levels": make_two_level_graph,
    "imbalance": lambda: build_graph(emulate("imbalance", 0)[0]),
    "ring": lambda: make_ring()[0],
}


@pytest.mark.parametrize("name", GRAPHS)
def test_chakra_keeps_calls_bytes_and_times(name, tmp_path):
    graph = GRAPHS[name]()
    export_profile(graph, str(tmp_path / "job.et"))
    for file in ("job.et", "job.1.et"):
        read = build_graph(read_recording(str(tmp_path / file)))
        assert count_messages(read) == count_messages(graph)
        assert count_collectives(read) == count_collectives(graph)
        error_s = 2e-6 * len(graph.rank) / len(graph.start_s)  # times are whole microseconds
        assert replay_job(read).run_s == pytest.approx(graph.run_s, abs=error_s)
        assert read.sum_by_rank(read.wait_s) == pytest.approx(graph.sum_by_rank(graph.wait_s), abs=error_s)


def test_chakra_without_times_is_simulated(tmp_path):
    first = TraceBuilder().add("send", 0, 0, peer=1, nbytes=10**6).add("all_reduce", 0, 0, nbytes=800)
    second = TraceBuilder().add("recv", 0, 0, peer=0, nbytes=10**6).add("all_reduce", 0, 0, nbytes=800)
    export_profile(build_graph(make_profile([first, second], 0)), str(tmp_path / "job.et"))
    read = build_graph(read_recording(str(tmp_path / "job.et")))
    assert count_messages(read) == {(0, 1, 10**6): 1}
    assert count_collectives(read) == {(rank, "all_reduce", 800): 1 for rank in range(2)}
    message_s = ALPHA_S + BETA_S * 10**6
    assert read.run_s == pytest.approx(message_s + ALPHA_S + BETA_S * 800, rel=1e-6)
    steps = [step.operation for step in make_steps(read, 1)]
    assert [step for step in steps if step != "none"] == ["start_recv", "wait", "all_reduce"]


@pytest.mark.parametrize(("operation", "root"), [("all_gather", -1), ("broadcast", 1)])
def test_collectives_of_chakra_without_times_keep_block_and_root(operation, root, tmp_path):
    """On two ranks, both operations take the time of a message of 800 bytes: a block, or the whole array."""
    builders = [TraceBuilder().add(operation, 0, 0, peer=root, nbytes=800) for _ in range(2)]
    export_profile(build_graph(make_profile(builders, 0)), str(tmp_path / "job[1].et"))
    read = build_graph(read_recording(str(tmp_path / "job[1].et")))
    assert read.run_s == pytest.approx(ALPHA_S + BETA_S * 800, rel=1e-6)
    (step,) = (step for step in make_steps(read, 1) if step.operation == operation)
    assert step.root == max(root, 0)


def test_the_process_groups_of_chakra_have_the_ranks_with_their_collectives(tmp_path):
    builders = [TraceBuilder().add("all_reduce", 0, 1, comm=1) for _ in range(2)] + [TraceBuilder()]
    export_profile(build_graph(make_profile(builders, 1, ((0, 1),))), str(tmp_path / "job.et"))
    assert set(read_recording(str(tmp_path / "job.et")).comms) == {(0, 1, 2), (0, 1)}


def test_calls_of_chakra_are_in_the_order_of_their_starts_and_do_not_overlap():
    later = ChakraNode(1, COLLECTIVE, start_us=20, duration_us=5)
    earlier = ChakraNode(2, COLLECTIVE, start_us=10, duration_us=50)
    calls = chakra_reader._list_calls([later, earlier], {"": 0})
    assert calls.begin_s == pytest.approx([10e-6, 20e-6])
    assert calls.end_s == pytest.approx([20e-6, 25e-6])


def test_only_computations_of_chakra_take_time():
    nodes = [ChakraNode(kind, kind, duration_us=5) for kind in (1, COMPUTATION)]
    tasks = chakra_reader._list_tasks(nodes, {}, Path("job.0.et"))
    assert [task.seconds for task in tasks] == pytest.approx([0, 5e-6])


def test_fields_of_fixed_length_in_chakra_are_skipped():
    number, kind = b"\x08\x09", b"\x18\x07"
    eight_bytes, four_bytes = b"\xf9\x01" + b"\xff" * 8, b"\xfd\x01" + b"\xff" * 4  # of field 31
    node = chakra_reader._decode_node(eight_bytes + number + four_bytes + kind)
    assert (node.number, node.kind) == (9, COLLECTIVE)


@pytest.mark.parametrize(("number", "operation"), [(0, "all_reduce"), (8, "reduce_scatter"), (99, "barrier")])
def test_types_of_chakra_collectives_have_names(number, operation):
    assert ChakraNode(attributes={"comm_type": number}).operation == operation


def test_negative_numbers_in_chakra_keep_their_sign():
    assert ChakraNode(attributes={"comm_tag": 2**64 - 1}).get_int("comm_tag") == -1


def test_damaged_chakra_is_refused(tmp_path):
    graph = make_ring()[0]
    trace = encode_execution_trace(graph, 0)
    with pytest.raises(UsageError, match=r"there is no trace job.0.et"):
        read_recording(str(tmp_path / "job.et"))
    (tmp_path / "job.1.et").write_bytes(trace)
    with pytest.raises(UsageError, match="trace of rank 0 is missing"):
        read_recording(str(tmp_path / "job.et"))
    (tmp_path / "job.0.et").write_bytes(trace[:-3])
    with pytest.raises(UsageError, match="cut off"):
        read_recording(str(tmp_path / "job.et"))
    for rank in range(2):  # of three
        (tmp_path / f"job.{rank}.et").write_bytes(encode_execution_trace(graph, rank))
    with pytest.raises(UsageError, match="has a message with rank 2, and there are traces of the ranks 0 to 1"):
        read_recording(str(tmp_path / "job.et"))
    (tmp_path / "job.txt").write_text("x")
    with pytest.raises(UsageError, match=r"\.goal \(a GOAL schedule\)"):
        read_recording(str(tmp_path / "job.txt"))
