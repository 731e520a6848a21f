"""The efficiencies equal values that were computed by hand from the definitions of POP."""

from __future__ import annotations

import numpy as np
import pytest

from hpccoll.profile.dependencies import build_graph
from hpccoll.profile.efficiency import compute_efficiencies
from hpccoll.profile.layout import EntryFlag
from hpccoll.profile.replay import replay_job
from tests.unit.profile.traces import TraceBuilder, make_profile


def check(builders, end, *, balance, serialisation, transfer):
    graph = build_graph(make_profile(builders, end))
    found = compute_efficiencies(graph)
    assert found.load_balance == pytest.approx(balance, rel=1e-6)
    assert found.serialisation == pytest.approx(serialisation, rel=1e-6)
    assert found.transfer == pytest.approx(transfer, rel=1e-6)
    assert found.parallel == pytest.approx(
        found.useful_s.mean() / end, rel=1e-6
    )  # POP's definition without its factors
    assert replay_job(graph).run_s == pytest.approx(end, rel=1e-9)
    return graph, found


def test_an_imbalanced_all_reduce():
    ranks = [TraceBuilder().add("all_reduce", 8, 9), TraceBuilder().add("all_reduce", 4, 9)]
    graph, found = check(ranks, 9, balance=6 / 8, serialisation=1, transfer=8 / 9)
    assert found.wait_s.tolist() == pytest.approx([0, 4])
    assert found.transfer_s.tolist() == pytest.approx([1, 1])
    assert graph.rank[graph.last_needed[2]] == 0


def test_a_pipeline_of_two_ranks():
    ranks = [TraceBuilder().add("send", 2, 2.0, peer=1), TraceBuilder().add("recv", 0, 2.5, peer=0)]
    ranks[0].add("recv", 2.0, 5.0, peer=1)
    ranks[1].add("send", 4.5, 5.0, peer=0)
    check(ranks, 5, balance=(2 + 2) / 2 / 2, serialisation=2 / 4, transfer=4 / 5)


def test_messages_in_flight_and_a_broadcast():
    start, wait, more = EntryFlag.START, EntryFlag.COMPLETE, EntryFlag.COMPLETE | EntryFlag.MORE
    first = (
        TraceBuilder()
        .add("send", 1, 1, peer=1, flags=start, request=7)
        .add("recv", 1, 1, peer=1, flags=start, request=8)
    )
    first.add("wait", 1, 4, flags=wait, request=7).add("wait", 1, 4, flags=more, request=8).add(
        "broadcast", 5, 5, peer=0
    )
    second = TraceBuilder().add("send", 3, 3, peer=0, flags=start, request=9)
    second.add("recv", 3, 3, peer=0, flags=start, request=3)
    second.add("wait", 3, 3.5, flags=wait, request=3).add("wait", 3, 3.5, flags=more, request=9)
    second.add("broadcast", 3.5, 6, peer=0)
    # Rank 0 computes for 1 + 1 + 1 s and waits 2 s for rank 1's send. Rank 1 computes for 3 s and waits for rank 0.
    # Without transfers, rank 0 waits until 3, computes until 4, broadcasts, and computes until 5.
    _, found = check([first, second], 6, balance=(3 + 3) / 2 / 3, serialisation=3 / 5, transfer=5 / 6)
    assert found.wait_s.tolist() == pytest.approx([2, 1.5])


def test_a_slower_compute_moves_everything_that_needs_it():
    ranks = [TraceBuilder().add("all_reduce", 8, 9), TraceBuilder().add("all_reduce", 4, 9)]
    graph = build_graph(make_profile(ranks, 9))
    gaps = graph.gap_s.copy()
    gaps[0] = 3.0
    assert replay_job(graph, gaps).run_s == pytest.approx(5)  # rank 1 is the last then
    assert replay_job(graph, gaps, np.zeros(len(gaps))).run_s == pytest.approx(4)
