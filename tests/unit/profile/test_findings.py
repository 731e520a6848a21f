"""Faults planted into emulated jobs are named, with the cost that their removal saves.

A job of 4 ranks computes, exchanges a halo around a ring, and reduces 100 numbers. The emulation knows no graph: it
keeps a clock per rank. The computing times have noise of 3 %, the same with and without the fault.
"""

from __future__ import annotations

import numpy as np
import pytest

from hpccoll.profile import explain_profile
from hpccoll.profile.findings import list_findings
from hpccoll.profile.lateness import LatenessKind
from hpccoll.profile.layout import EntryFlag
from tests.unit.profile.traces import TraceBuilder, make_profile

RANKS, STEPS, SEEDS = 4, 40, range(10)
COMPUTE_S, MESSAGE_S, REDUCE_S = 10e-3, 50e-6, 80e-6


def emulate(fault, seed, steps=STEPS, hosts=()):
    """Return the profile of a job, and its run time."""
    rng = np.random.default_rng(seed)
    clock = np.zeros(RANKS)
    builders = [TraceBuilder() for _ in range(RANKS)]
    for step in range(steps):
        noisy = COMPUTE_S * (1 + 0.03 * rng.standard_normal(RANKS))
        after_io = fault == "io" and step % 5 == 4
        clock += noisy * np.where((fault == "imbalance") & (np.arange(RANKS) == 2), 1.3, 1.0)
        clock += 0.3 * noisy * ((fault == "node") & (np.arange(RANKS) > 1))
        clock[1] += 0.03 * after_io
        sent = clock.copy()
        for rank in range(RANKS):
            blocked = {"off_core_ns": 30_000_000} if after_io and rank == 1 else {}
            flags = int(EntryFlag.BLOCKED) if blocked else 0
            builders[rank].add("send", sent[rank], sent[rank], peer=(rank + 1) % RANKS, flags=flags, **blocked)
        for rank in range(RANKS):
            source = (rank - 1) % RANKS
            transfer = MESSAGE_S * (60 if fault == "link" and rank == 3 else 1)
            clock[rank] = max(sent[rank], sent[source]) + transfer
            builders[rank].add("recv", sent[rank], clock[rank], peer=source)
        for _ in range(100 if fault == "split" else 1):
            end = clock.max() + REDUCE_S
            for rank in range(RANKS):
                builders[rank].add("all_reduce", clock[rank], end)
            clock[:] = end
            clock += 1e-6
    return make_profile(builders, float(clock.max()), hosts=hosts), float(clock.max())


def find_late(found, rank, kind):
    late = found.late[0]
    named = (late.rank, late.kind) == (rank, kind) and list_findings(found)[0].found.startswith(f"rank {rank} ")
    return named, late.saved_s


def find_link(found, _):
    link = found.links[0]
    said = "from rank 2 (host) to rank 3 (host)" in list_findings(found)[0].found
    return (link.source, link.dest) == (2, 3) and said, link.saved_s


def find_split(found, steps):
    calls = found.calls_in_a_row[0]
    said = "10 calls all_reduce 100 times" in list_findings(found)[0].found
    return (calls.calls, calls.rows) == (100 * steps, steps) and said, calls.saved_s


FINDERS = {
    "imbalance": lambda found, _: find_late(found, 2, LatenessKind.IMBALANCE),
    "io": lambda found, _: find_late(found, 1, LatenessKind.OUTSIDE),
    "link": find_link,
    "split": find_split,
}


@pytest.mark.parametrize("fault", ["imbalance", "io", "link", "split"])
def test_a_planted_fault_is_named_with_its_cost(fault):
    hits, steps = 0, 10 if fault == "split" else STEPS
    for seed in SEEDS:
        profile, seconds = emulate(fault, seed, steps)
        saving = seconds - emulate("", seed, steps)[1]
        found = explain_profile(profile)
        named, saved_s = FINDERS[fault](found, steps)
        hits += named and abs(saved_s / saving - 1) < 0.15
    assert hits >= 9, f"{fault}: named with its cost in {hits} of {len(SEEDS)} jobs"


def test_a_job_without_a_fault_has_no_costly_finding():
    found = explain_profile(emulate("", 0)[0])
    assert not found.links
    assert not found.calls_in_a_row
    assert all(late.kind is LatenessKind.NOISE for late in found.late)
    assert all(late.saved_s < 0.03 * found.efficiencies.run_s for late in found.late)


@pytest.mark.parametrize(("late", "rows"), [((2,), 1), ((0, 1, 2, 3), 2)])
def test_calls_in_a_row_end_where_all_ranks_compute(late, rows):
    builders, clock, end = [TraceBuilder() for _ in range(RANKS)], np.zeros(RANKS), 0.0
    for call in range(20):
        clock[list(late)] += 1e-3 * (call == 10)
        end = float(clock.max()) + REDUCE_S
        for builder, begin in zip(builders, clock, strict=True):
            builder.add("all_reduce", begin, end)
        clock[:] = end + 1e-6
    found = explain_profile(make_profile(builders, end))
    assert [(calls.calls, calls.rows) for calls in found.calls_in_a_row] == [(20, rows)]
    lost_s = 1e-3 if rows == 1 else 0.0  # as long as rank 2 is off its core
    assert found.calls_in_a_row[0].saved_s == pytest.approx((20 - rows) * (REDUCE_S + 1e-6) + lost_s, rel=1e-6)


def test_calls_that_wait_for_a_late_rank_are_no_row():
    builders = [TraceBuilder() for _ in range(RANKS)]
    for call in range(20):
        for rank, builder in enumerate(builders):
            builder.add("all_reduce", call + (0.9 if rank == 2 else 0.1), call + 0.9 + REDUCE_S)
    assert not explain_profile(make_profile(builders, 20)).calls_in_a_row


def test_the_share_of_calls_that_wait_for_a_rank_counts_each_collective_once():
    builders = [TraceBuilder() for _ in range(3)]
    for call, last in enumerate((1, 2, 2, 2, 2)):
        for rank, builder in enumerate(builders):
            builder.add("all_reduce", call + (0.5 if rank == last else 0.1), call + 0.6)
    late = explain_profile(make_profile(builders, 5)).late[0]
    assert (late.rank, late.calls, late.last_share) == (2, 5, 4 / 5)


HOSTS = ("fast", "fast", "slow", "slow")


def test_a_late_node_is_named_with_its_cost():
    for seed in SEEDS:
        profile, run_s = emulate("node", seed, hosts=HOSTS)
        found = explain_profile(profile)
        node = found.late_nodes[0]
        assert (node.host, node.ranks, node.kind) == ("slow", (2, 3), LatenessKind.IMBALANCE)
        assert node.saved_s == pytest.approx(run_s - emulate(None, seed)[1], rel=0.15)
        assert list_findings(found)[0].found.startswith("node slow (ranks 2-3) arrives last in ")
        assert found.late[0].saved_s < 0.3 * node.saved_s  # the other rank of the node stays late


@pytest.mark.parametrize("fault", [None, "imbalance", "io"])
def test_a_node_with_one_late_rank_is_not_late(fault):
    found = explain_profile(emulate(fault, 0, hosts=HOSTS)[0])
    assert not [node for node in found.late_nodes if node.saved_s > 0.02 * found.graph.run_s]


def emulate_slow_node(hosts, slow_s):
    """Return the profile of a ring in both directions, in which messages of rank 2 take `slow_s`."""
    clock, builders = np.zeros(RANKS), [TraceBuilder() for _ in range(RANKS)]
    for _ in range(10):
        for step in (1, -1):
            sent = clock + 1e-3
            for rank in range(RANKS):
                builders[rank].add("send", sent[rank], sent[rank], peer=(rank + step) % RANKS)
            for rank in range(RANKS):
                source = (rank - step) % RANKS
                clock[rank] = max(sent[rank], sent[source]) + (slow_s if 2 in (rank, source) else MESSAGE_S)
                builders[rank].add("recv", sent[rank], clock[rank], peer=source)
    end = float(clock.max()) + REDUCE_S
    for builder, begin in zip(builders, clock, strict=True):
        builder.add("all_reduce", begin, end)
    return make_profile(builders, end, hosts=hosts)


def test_a_node_with_a_slow_link_is_named_with_its_cost():
    hosts = tuple(f"node{rank + 1}" for rank in range(RANKS))
    found = explain_profile(emulate_slow_node(hosts, 20 * MESSAGE_S))
    node = found.slow_nodes[0]
    assert (node.host, node.ranks, node.messages) == ("node3", (2,), 40)
    fast = explain_profile(emulate_slow_node(hosts, MESSAGE_S))
    assert node.saved_s == pytest.approx(found.graph.run_s - fast.graph.run_s, rel=0.01)
    text = "messages of 8 B from and to node node3 (rank 2) take 20 times as long as between other nodes"
    assert list_findings(found)[0].found.startswith(text)
    assert not found.links
    assert not fast.slow_nodes


def emulate_pipeline(is_slow):
    """Return the profile of a pipeline over four nodes; rank 2 has a slow link if `is_slow`.

    Rank 2 finds the messages that it receives already there, because they have arrived while it was sending, but the
    rank that sends them waits.
    """
    clock, builders, steps = np.zeros(RANKS), [TraceBuilder() for _ in range(RANKS)], 12
    for step in range(steps):
        begins, sent = clock.copy(), 0.1 * (step + 1)
        builders[0].add("send", sent, sent, peer=1)
        for rank in (1, 2, 3):
            is_early = is_slow and rank == 2
            begin = max(clock[rank], sent + 0.05) if is_early else clock[rank]
            got = max(begin, sent) + (0.2 if is_slow and rank == 3 else MESSAGE_S)
            builders[rank].add("recv", begin, got, peer=rank - 1)
            sent = got + 0.1
            clock[rank] = sent + 0.2 * (is_slow and rank < 3)
            if rank < 3:
                builders[rank].add("send", sent, clock[rank], peer=rank + 1)
        assert (clock >= begins).all()
    clock[0] = 0.1 * steps
    end = float(clock.max()) + REDUCE_S
    for builder, begin in zip(builders, clock, strict=True):
        builder.add("all_reduce", begin, end)
    return make_profile(builders, end, hosts=tuple(f"node{rank + 1}" for rank in range(RANKS)))


def test_a_slow_node_is_named_although_some_of_its_messages_arrive_unnoticed():
    slow, fast = (explain_profile(emulate_pipeline(is_slow)) for is_slow in (True, False))
    node = slow.slow_nodes[0]
    assert (node.host, node.messages) == ("node3", 24)
    assert node.saved_s == pytest.approx(slow.graph.run_s - fast.graph.run_s, rel=0.03)
    assert not slow.links
    assert not fast.slow_nodes


def emulate_slow_link(slow_s):
    """Return the profile of a ring over four nodes, where some messages take a time by (source, rank, bytes)."""
    clock, builders = np.zeros(RANKS), [TraceBuilder() for _ in range(RANKS)]
    for number in range(40):
        nbytes, step = (8, 800)[number % 2], (1, -1)[number // 2 % 2]
        sent = clock + 1e-3
        for rank in range(RANKS):
            builders[rank].add("send", sent[rank], sent[rank], peer=(rank + step) % RANKS, nbytes=nbytes)
        for rank in range(RANKS):
            source = (rank - step) % RANKS
            taken_s = slow_s.get((source, rank, nbytes), MESSAGE_S)
            clock[rank] = max(sent[rank], sent[source]) + taken_s
            builders[rank].add("recv", sent[rank], clock[rank], peer=source, nbytes=nbytes)
    return make_profile(builders, float(clock.max()), hosts=tuple(f"node{rank + 1}" for rank in range(RANKS)))


@pytest.mark.parametrize(
    "slow", [[(2, 3, 8), (3, 2, 8)], [(2, 3, 8), (2, 3, 800)], [(2, 3, 8), (3, 2, 8), (2, 3, 800), (3, 2, 800)]]
)
def test_a_slow_link_between_two_nodes_makes_no_node_slow(slow):
    found = explain_profile(emulate_slow_link(dict.fromkeys(slow, 20 * MESSAGE_S)))
    assert not found.slow_nodes
    assert {(link.source, link.dest, link.nbytes) for link in found.links} == set(slow)


def test_messages_between_nodes_are_not_compared_with_those_within_nodes():
    builders = [TraceBuilder() for _ in range(RANKS)]
    for step in range(10):
        for rank in range(RANKS):
            builders[rank].add("send", step, step, peer=(rank + 1) % RANKS)
        for rank in range(RANKS):
            is_within = rank == 1  # from rank 0
            builders[rank].add("recv", step, step + MESSAGE_S * (1 if is_within else 9), peer=(rank - 1) % RANKS)
    hosts = ("first", "first", "second", "third")
    assert not explain_profile(make_profile(builders, 10, hosts=hosts)).links
    assert explain_profile(make_profile(builders, 10)).links  # on one node, three pairs of four are slow


def test_slow_links_of_ranks_on_one_host_are_named_one_by_one():
    found = explain_profile(emulate_slow_node((), 20 * MESSAGE_S))
    assert not found.slow_nodes
    assert {(link.source, link.dest) for link in found.links} == {(1, 2), (2, 1), (2, 3), (3, 2)}


def test_a_slow_pair_within_a_slow_node_is_named_beside_the_node():
    ranks, hosts = 8, tuple(f"node{rank // 2}" for rank in range(8))
    builders, clock = [TraceBuilder() for _ in range(ranks)], np.zeros(ranks)
    for _ in range(10):
        for step in (1, -1):  # around the ring, in both directions
            sent = clock + 1e-3
            for rank in range(ranks):
                builders[rank].add("send", sent[rank], sent[rank], peer=(rank + step) % ranks)
            for rank in range(ranks):
                source = (rank - step) % ranks
                is_from_other_node = hosts[rank] != hosts[source] and "node1" in (hosts[rank], hosts[source])
                is_slow = is_from_other_node or (source, rank) == (2, 3)
                clock[rank] = max(sent[rank], sent[source]) + MESSAGE_S * (20 if is_slow else 1)
                builders[rank].add("recv", sent[rank], clock[rank], peer=source)
    found = explain_profile(make_profile(builders, float(clock.max()), hosts=hosts))
    assert [(node.host, node.messages) for node in found.slow_nodes] == [("node1", 40)]
    assert [(link.source, link.dest, link.messages) for link in found.links] == [(2, 3, 10)]
