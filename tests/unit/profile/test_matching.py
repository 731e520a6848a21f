"""Messages find their partners, also those of persistent requests, and exports and replays contain them."""

from __future__ import annotations

import pytest

from hpccoll.profile.chakra import encode_execution_trace
from hpccoll.profile.dependencies import build_graph
from hpccoll.profile.goal import format_goal
from hpccoll.profile.layout import EntryFlag
from hpccoll.profile.page import compute_traffic
from hpccoll.profile.replay_steps import make_steps
from hpccoll.profile.transfer_kinds import classify_transfers
from tests.unit.profile.traces import TraceBuilder, make_profile

START, WAIT, INIT = EntryFlag.START, EntryFlag.COMPLETE, EntryFlag.INIT


def list_steps(graph, rank):
    return [(step.operation, step.peer, step.nbytes) for step in make_steps(graph, rank) if step.operation != "none"]


def test_a_halo_exchange_receives_where_it_waits():
    ranks = []
    for other in (1, 0):
        builder = TraceBuilder().add("recv", 1, 1, peer=other, flags=START, request=1)
        builder.add("send", 1, 1, peer=other, flags=START, request=2, nbytes=40 + other)
        ranks.append(builder.add("wait", 2, 3, flags=WAIT, request=1))
    graph = build_graph(make_profile(ranks, 3))
    assert list_steps(graph, 0) == [("start_recv", 1, 40), ("send", 1, 41), ("wait", -1, 0)]
    lines = [line.partition(": ")[2] for line in format_goal(graph).splitlines() if ": " in line]
    messages = [line.rpartition(" tag ")[0] for line in lines if line[:4] in ("send", "recv")]
    assert messages == ["send 41b to 1", "recv 40b from 1", "send 40b to 0", "recv 41b from 0"]
    kinds = classify_transfers(graph)
    assert [kinds.kinds[number].operation for number in kinds.index if number >= 0] == ["send", "send"]
    data = encode_execution_trace(graph, 0)
    assert data.index(b"send") < data.index(b"recv")


def test_a_wait_for_two_messages_ends_for_the_first_one_when_it_is_sent():
    sender = TraceBuilder().add("send", 1, 1, peer=1).add("send", 2, 2, peer=1)
    receiver = TraceBuilder()
    for request in (1, 2):
        receiver.add("recv", 0, 0, peer=0, flags=START, request=request)
    receiver.add("wait", 0.5, 3, flags=WAIT, request=1)
    receiver.add("wait", 0.5, 3, flags=WAIT | EntryFlag.MORE, request=2)
    graph = build_graph(make_profile([sender, receiver], 3))
    waits = graph.rank == 1
    assert graph.begin_s[waits].tolist() == [0, 0, 0.5, 1, 3]
    assert graph.end_s[waits].tolist() == [0, 0, 1, 3, 3]


def test_a_sendrecv_between_different_partners():
    ranks = [TraceBuilder().add("sendrecv", 1, 2, peer=(rank + 1) % 3, nbytes=10 + rank) for rank in range(3)]
    for rank, builder in enumerate(ranks):
        builder.rows[0]["request"] = (rank - 1) % 3
    graph = build_graph(make_profile(ranks, 2))
    assert list_steps(graph, 0) == [("send", 1, 10), ("start_recv", 2, 12), ("wait", -1, 0)]
    for rank in range(3):
        data = encode_execution_trace(graph, rank)
        assert (data.count(b"send"), data.count(b"recv")) == (1, 1)
        goal = format_goal(graph)
        sent, received = graph.matches.sent[2 * rank], graph.matches.received[2 * rank]
        assert f"send {10 + rank}b to {(rank + 1) % 3} tag {sent}\n" in goal
        assert f"recv {10 + (rank - 1) % 3}b from {(rank - 1) % 3} tag {received}\n" in goal


def test_a_message_of_a_rank_to_itself_is_replayed():
    builder = TraceBuilder().add("sendrecv", 1, 2, peer=0)
    graph = build_graph(make_profile([builder], 2))
    assert list_steps(graph, 0) == [("send", 0, 8), ("start_recv", 0, 8), ("wait", -1, 0)]
    assert "send" not in format_goal(graph)


def test_starts_of_persistent_requests_have_their_arguments():
    first = TraceBuilder().add("send", 0, 0, peer=1, flags=INIT, request=5, nbytes=64)
    second = TraceBuilder().add("recv", 0, 0, peer=0, flags=INIT, request=6, nbytes=64)
    for begin in (1, 3):
        first.add("start", begin, begin, flags=START, request=5, nbytes=0)
        first.add("wait", begin, begin, flags=WAIT, request=5)
        second.add("start", begin, begin, flags=START, request=6, nbytes=0)
        second.add("wait", begin, begin + 1, flags=WAIT, request=6)
    graph = build_graph(make_profile([first, second], 4))
    assert list_steps(graph, 0) == [("send", 1, 64)] * 2
    assert list_steps(graph, 1) == [("start_recv", 0, 64), ("wait", -1, 0)] * 2
    assert graph.nbytes[graph.matches.sent >= 0].tolist() == [64, 64]
    assert compute_traffic(graph)[0, 1] == 2 * 64


def test_the_rank_count_of_a_wait_is_that_of_its_collective():
    ranks = []
    for rank in range(3):
        builder = TraceBuilder()
        if rank < 2:
            builder.add("all_reduce", 1, 1, flags=START, request=3, comm=1)
            builder.add("wait", 1, 2, flags=WAIT, request=3, comm=-1, nbytes=0)
        ranks.append(builder)
    graph = build_graph(make_profile(ranks, 2, comms=((0, 1),)))
    kinds = classify_transfers(graph).kinds
    assert [(kind.operation, kind.ranks, kind.nbytes) for kind in kinds] == [("all_reduce", 2, 8)]


def test_a_gather_in_place_has_the_bytes_of_a_block():
    ranks = [TraceBuilder().add("all_gather", 1, 2, flags=EntryFlag.IN_PLACE, nbytes=4 * 8) for _ in range(4)]
    graph = build_graph(make_profile(ranks, 2))
    assert graph.nbytes[::2].tolist() == [8] * 4
    assert classify_transfers(graph).kinds[0].nbytes == 32


def test_a_receive_whose_send_was_not_recorded_takes_no_later_one():
    receiver = TraceBuilder().add("recv", 0, 1, peer=1).add("recv", 2, 4, peer=1)
    sender = TraceBuilder().add("send", 3, 3, peer=0)
    graph = build_graph(make_profile([receiver, sender], 4))
    assert graph.matches.received.tolist() == [-1, 0, -1, -1, -1]
    assert graph.wait_s[1] == pytest.approx(1)
