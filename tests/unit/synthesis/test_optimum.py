"""The optimum of a network equals brute force over all cuts, and the optima that ForestColl publishes."""

from __future__ import annotations

import random
from collections.abc import Collection
from fractions import Fraction
from itertools import combinations

import pytest

from hpccoll.plan import Operation
from hpccoll.plan.simulation import compute_bounds
from hpccoll.predict.machine_catalogue import list_machines, load_machine
from hpccoll.synthesis import Network, NetworkBuilder, NetworkError, compute_optimum, make_machine_network
from hpccoll.units import GB
from tests.unit.synthesis.topologies import make_dgx, make_mi250, make_random_network

CUT_OPERATIONS = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.BROADCAST, Operation.REDUCE)


def search_all_cuts(network: Network, sources: Collection[int]) -> Fraction:
    """Return the largest ratio of sources inside to bandwidth leaving, over all sets of vertices without some rank."""
    ratios = [Fraction(0)]
    vertices, ranks = range(len(network.vertices)), set(range(network.ranks))
    for size in range(1, len(network.vertices)):
        for inside in map(set, combinations(vertices, size)):
            if ranks - inside and inside & set(sources):
                leaving = sum(rate for (a, b), rate in network.links.items() if a in inside and b not in inside)
                ratios.append(Fraction(len(inside & set(sources))) / leaving)
    return max(ratios)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_optimum_equals_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    for case in range(50):
        network = make_random_network(rng, 10 if case < 4 else 7)
        root = rng.randrange(network.ranks)
        for operation in CUT_OPERATIONS[case % 2 :: 2] if case < 4 else CUT_OPERATIONS:
            graph = network.reverse() if operation in CUT_OPERATIONS[1::2] else network
            rooted = operation in CUT_OPERATIONS[2:]
            expected = search_all_cuts(graph, [root] if rooted else range(network.ranks))
            optimum = compute_optimum(network, operation, root)
            assert optimum.seconds_per_byte == expected / (1 if rooted else network.ranks), (case, operation)


@pytest.mark.parametrize(
    ("network", "algbw"),
    [
        (make_dgx(1, 300, 25), Fraction(2400, 7)),
        (make_dgx(2, 300, 25), Fraction(1040, 3)),
        (make_dgx(4, 300, 25), Fraction(800, 3)),
        (make_dgx(2, 450, 50), Fraction(1600, 3)),
        (make_dgx(4, 450, 50), Fraction(16000, 31)),
        (make_mi250(1), Fraction(2400, 7)),
        (make_mi250(2), Fraction(5312, 15)),
    ],
    ids=["A100", "2 A100", "4 A100", "2 H100", "4 H100", "MI250", "2 MI250"],
)
def test_published_optima_are_reproduced(network: Network, algbw: Fraction) -> None:
    """The values are those of ForestColl's program (its repository, topologies.py), in GB/s as exact fractions."""
    assert 1 / compute_optimum(network, Operation.ALL_GATHER).seconds_per_byte == algbw * int(GB)


@pytest.mark.parametrize("name", list_machines())
@pytest.mark.parametrize("operation", [*CUT_OPERATIONS, Operation.ALL_REDUCE])
def test_optimum_of_machine_equals_closed_form(name: str, operation: Operation) -> None:
    machine = load_machine(name).with_ranks_per_node(4)
    for ranks in (2, 4, 12):
        optimum = compute_optimum(make_machine_network(machine, ranks), operation)
        closed = compute_bounds(operation, ranks, machine, 10**9).bandwidth_s
        assert optimum.compute_seconds(10**9) == pytest.approx(closed, rel=1e-5)


def test_partly_filled_node_has_a_tighter_cut_than_the_closed_form() -> None:
    machine = load_machine("summit").with_ranks_per_node(6)  # 2 NICs per node; the second node has 1 rank on 1 NIC
    optimum = compute_optimum(make_machine_network(machine, 7), Operation.ALL_GATHER)
    assert optimum.binding == "the downlink of node1 (12.5 GB/s)"
    assert optimum.seconds_per_byte == Fraction(6, 7) / Fraction(125 * 10**8)


def make_star(rates: Collection[int]) -> Network:
    network = NetworkBuilder("star", [f"rank {rank}" for rank in range(len(rates))])
    for rank, rate in enumerate(rates):
        network.connect(f"rank {rank}", "switch", Fraction(rate))
        network.nodes.append((f"node{rank}", [f"rank {rank}"]))
    return network.build()


@pytest.mark.parametrize(
    ("rates", "expected", "binding"),
    [
        ((4, 4, 4, 4), Fraction(6, 16), "the uplinks of all 4 ranks together"),
        ((4, 4, 4, 1), Fraction(1), "the uplink of node3 (1e-09 GB/s)"),
        ((1, 1, 1, 9), Fraction(1), "the uplink of node0 (1e-09 GB/s)"),
        ((5, 6), Fraction(1, 5), "the uplink of node0 (5e-09 GB/s)"),
    ],
)
def test_all_reduce_bound_of_unequal_links(rates: tuple[int, ...], expected: Fraction, binding: str) -> None:
    """The bound is the least t >= 1/b_min with sum(b_i t - 1) >= p - 2."""
    optimum = compute_optimum(make_star(rates), Operation.ALL_REDUCE)
    assert optimum.seconds_per_byte == expected
    assert optimum.binding == binding or rates.count(min(rates)) > 1  # one of several equal links
    assert not optimum.is_reached
    slack = sum(rate * expected - 1 for rate in rates) - (len(rates) - 2)
    assert slack == 0 or (slack > 0 and expected == Fraction(1, min(rates)))


def test_bound_is_known_to_be_reached_if_every_vertex_sends_as_fast_as_it_receives() -> None:
    builder = NetworkBuilder("pair", ["one", "other"])
    builder.connect("one", "other", Fraction(1))
    assert compute_optimum(builder.build(), Operation.ALL_GATHER).is_reached
    builder.add_link("one", "other", Fraction(1))
    assert not compute_optimum(builder.build(), Operation.ALL_GATHER).is_reached


def test_cut_is_described_by_its_smaller_side() -> None:
    star = make_star((4, 4, 4, 1))
    assert compute_optimum(star, Operation.ALL_GATHER).binding == "the downlink of node3 (1e-09 GB/s)"
    assert compute_optimum(star, Operation.REDUCE_SCATTER).binding == "the uplink of node3 (1e-09 GB/s)"


def test_errors() -> None:
    network = NetworkBuilder("two", ["a", "b"])
    network.add_link("a", "b", Fraction(1))
    with pytest.raises(NetworkError, match="no link leads to rank 0; connect all ranks"):
        compute_optimum(network.build(), Operation.ALL_GATHER)
    with pytest.raises(NetworkError, match="no optimum of barrier"):
        compute_optimum(make_star((1, 1)), Operation.BARRIER)
    with pytest.raises(NetworkError, match="bandwidth above 0"):
        network.add_link("a", "b", Fraction(0))
    with pytest.raises(NetworkError, match="31 bits"):
        compute_optimum(make_star((10**9 + 7, 10**9 + 9, 10**9 + 21)), Operation.ALL_GATHER)
