"""Jobs on more ranks, against runs of the same program on an ideal network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpccoll.mpi4py.configuration import read_choices
from hpccoll.plan import Link
from hpccoll.profile.dependencies import build_graph
from hpccoll.profile.grown_job import GrownJob, _extend
from hpccoll.profile.layout import NOBODY, EntryFlag
from hpccoll.profile.network_model import NetworkModel
from hpccoll.profile.placement import Placement
from hpccoll.profile.transfer_kinds import ModelledTransfer, classify_transfers
from hpccoll.profile.what_if import WhatIf
from tests.unit.profile.traces import TraceBuilder, make_profile

ALPHA_S, GAP_S, STEPS = 1e-3, 2e-4, 40


def run_stencil(ranks):
    """Return the graph of a stencil: in each step, rows to both neighbors, and an all_reduce by recursive doubling."""
    builders, clock = [TraceBuilder() for _ in range(ranks)], np.zeros(ranks)
    for _ in range(STEPS):
        for step in (-1, 1):
            dests, begin = np.arange(ranks) + step, clock + GAP_S
            clock = begin.copy()
            for rank in range(ranks):
                dest, source = (each if 0 <= each < ranks else NOBODY for each in (int(dests[rank]), rank - step))
                if source != NOBODY:
                    clock[rank] = max(begin[rank], begin[source] + ALPHA_S)
                builders[rank].add("sendrecv", begin[rank], clock[rank], peer=dest, request=source, nbytes=8)
        begin = clock + GAP_S
        clock, distance = begin, 1
        while distance < ranks:
            clock = np.maximum(clock, clock[np.arange(ranks) ^ distance] + ALPHA_S)
            distance *= 2
        for rank, builder in enumerate(builders):
            builder.add("all_reduce", begin[rank], clock[rank])
    hosts = tuple(f"node{rank}" for rank in range(ranks))
    return build_graph(make_profile(builders, float(clock.max()), hosts=hosts))


def read_job(graph):
    """Return the sequence of calls of a graph, which all ranks must share."""
    placement = Placement.read(graph.profile)
    job = GrownJob.read(graph, classify_transfers(graph, placement), placement)
    assert job is not None
    return job


@pytest.mark.parametrize("factor", [1, 2, 4, 8])
def test_a_stencil_on_more_ranks(factor):
    network = NetworkModel(ALPHA_S, 1e-13)
    assert read_job(run_stencil(2)).simulate_s(network, factor) == pytest.approx(
        run_stencil(2 * factor).run_s, rel=0.02
    )


@pytest.mark.parametrize("recorded", [2, 4])
def test_a_stencil_on_twice_as_many_ranks_is_predicted_from_its_recording(recorded):
    graph = run_stencil(recorded)
    predicted = WhatIf(graph).predict(["ranks=2x"])[0]
    assert predicted.seconds == pytest.approx(run_stencil(2 * recorded).run_s, rel=0.05)
    assert predicted.error < 0.05
    assert "new ranks make the same calls" in predicted.assumption


def test_strong_scaling_divides_the_computing():
    job, network = read_job(run_stencil(2)), NetworkModel(1e-9, 1e-13)
    weak_s, strong_s = (job.simulate_s(network, 4, is_strong=is_strong) for is_strong in (False, True))
    assert weak_s == pytest.approx(STEPS * 3 * GAP_S + ALPHA_S, rel=0.01)  # the first rank ends a latency earlier
    assert strong_s == pytest.approx(weak_s / 4, rel=0.01)


def test_ranks_that_make_different_calls_are_not_simulated():
    builders = [TraceBuilder().add("send", 0, 1, peer=1), TraceBuilder().add("recv", 0, 1, peer=0)]
    graph = build_graph(make_profile(builders, 1.0))
    placement = Placement.read(graph.profile)
    assert GrownJob.read(graph, classify_transfers(graph, placement), placement) is None
    assert "the recorded ranks stand for all" in WhatIf(graph).predict(["ranks=2x"])[0].assumption


def test_collectives_of_a_part_of_the_ranks_are_not_simulated():
    builders = [TraceBuilder().add("all_reduce", 0, 1, comm=1 + rank // 2) for rank in range(4)]
    graph = build_graph(make_profile(builders, 1.0, ((0, 1), (2, 3))))
    placement = Placement.read(graph.profile)
    assert GrownJob.read(graph, classify_transfers(graph, placement), placement) is None


def test_a_nonblocking_collective_overlaps_with_computing():
    builders = [
        TraceBuilder().add("all_reduce", 0, 0, flags=EntryFlag.START, request=7)
        .add("wait", 5, 5.5, flags=EntryFlag.COMPLETE, request=7)
        for _ in range(2)
    ]  # fmt: skip
    job = read_job(build_graph(make_profile(builders, 5.5)))
    times_s = [job.simulate_s(NetworkModel(alpha_s, 1e-13), 2) for alpha_s in (1.0, 4.0)]
    assert times_s == pytest.approx([5.0, 8.0])  # two steps of alpha, from the start at 0


def test_new_ranks_start_when_the_recorded_ranks_at_their_places_do():
    builders = [TraceBuilder().add("all_reduce", 3, 4) for _ in range(2)]
    profile = make_profile(builders, 4.0)
    late = replace(profile.ranks[1], program_begin_s=3.0)
    job = read_job(build_graph(replace(profile, ranks=(profile.ranks[0], late))))
    job.gap_s[:] = 0
    assert job.simulate_s(NetworkModel(1.0, 1e-13), 2) == pytest.approx(5.0)  # two steps of alpha after the last start


def test_a_broadcast_waits_for_its_root_only():
    builders = [TraceBuilder().add("broadcast", begin, 4.0 if rank == 0 else begin + 1, peer=1)
                for rank, begin in enumerate((0.0, 3.0))]  # fmt: skip
    job = read_job(build_graph(make_profile(builders, 4.0)))
    assert job.simulate_s(NetworkModel(1.0, 1e-13)) == pytest.approx(4.0)


def test_a_message_that_is_received_before_the_call_that_sends_it_is_not_simulated():
    first = (
        TraceBuilder().add("sendrecv", 0, 2, peer=NOBODY, request=1).add("sendrecv", 2, 3, peer=NOBODY, request=NOBODY)
    )
    second = (
        TraceBuilder().add("sendrecv", 0, 0, peer=NOBODY, request=NOBODY).add("sendrecv", 1, 2, peer=0, request=NOBODY)
    )
    graph = build_graph(make_profile([first, second], 3.0))
    placement = Placement.read(graph.profile)
    assert GrownJob.read(graph, classify_transfers(graph, placement), placement) is None


@pytest.mark.parametrize(
    ("within", "has_nodes", "delays"),
    [
        (None, False, [2, 2, 2, 2]),  # a processor is busy for the latency of each message
        (None, True, [0, 1, 1, 2]),
        (Link.one_port(0.25, 1e-13), True, [0.25, 0.25, 1.25, 1.25]),
    ],
)
def test_latencies_overlap_between_nodes_only(within, has_nodes, delays):
    network = NetworkModel(1.0, 1e-13, within, choices=tuple(read_choices("broadcast=tree")))
    kind = ModelledTransfer("broadcast", 4, 8, per_node=2 if within else 1)
    assert network.find_delays(kind, 0, has_nodes=has_nodes)[0].tolist() == pytest.approx(delays, abs=1e-9)


@pytest.mark.parametrize(("source", "seconds"), [((1, 0, 3, 2), 0.25), ((2, 3, 0, 1), 1.0)])
def test_messages_within_nodes_take_the_time_of_their_links(source, seconds):
    builders = [TraceBuilder().add("sendrecv", 0, 1, peer=other, request=other) for other in source]
    hosts = ("first", "first", "second", "second")
    job = read_job(build_graph(make_profile(builders, 1.0, hosts=hosts)))
    network = NetworkModel(1.0, 1e-13, Link.one_port(0.25, 1e-13))
    assert [job.simulate_s(network, factor) for factor in (1, 2)] == pytest.approx([seconds] * 2)


@pytest.mark.parametrize(
    ("source", "extended"),
    [
        ([1, 2, 3, 0], [[1, 2, 3, 4, 5, 6, 7, 0]]),  # around the ends
        ([3, 0, 1, 2], [[7, 0, 1, 2, 3, 4, 5, 6]]),
        ([1, 2, 3, -1], [[1, 2, 3, 4, 5, 6, 7, -1]]),  # up to the end
        ([1, 0, 3, 2], [[1, 0, 3, 2, 5, 4, 7, 6]]),  # pairs
        ([-1, 0, 0, 0], [[-1, 0, 0, 0, -1, 4, 4, 4]]),  # from one rank to all
        ([1, 0], [[1, 2, 3, 0]]),
    ],
)
def test_messages_keep_their_distances(source, extended):
    assert [each.tolist() for each in _extend(np.array(source), 8 // len(source) if len(source) > 2 else 2)] == extended
