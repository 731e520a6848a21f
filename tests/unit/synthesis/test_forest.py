"""Synthesized plans are proven, and the loads of their links equal the optimum of the network exactly."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import pytest

from hpccoll.plan import Operation, Plan, check
from hpccoll.plan.interchange.json_plans import from_json, to_json
from hpccoll.plan.messages import list_messages_by_round
from hpccoll.predict.machine_catalogue import load_machine
from hpccoll.synthesis import Network, NetworkBuilder, NetworkError, compute_optimum, make_machine_network
from hpccoll.synthesis.forest import Forest, grow_forest
from hpccoll.synthesis.forest_plan import synthesize
from tests.unit.synthesis.topologies import make_dgx, make_mi250, make_random_network

ROOTED = (Operation.BROADCAST, Operation.REDUCE)


def measure_busiest_link(plan: Plan, forest: Forest, network: Network) -> Fraction:
    """Return the seconds per message byte of the busiest link, from the plan's messages and the forest's routes."""
    sent: Counter[tuple[int, int]] = Counter()
    for messages in list_messages_by_round(plan):
        for message in messages:
            sent[message.source, message.dest] += len(message.send)
    is_reversed = forest.network.links.keys() != network.links.keys() or plan.operation in (
        Operation.REDUCE_SCATTER,
        Operation.REDUCE,
    )
    chunks = plan.column(0).chunks
    loads: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for (source, dest), routes in forest.routes.items():
        units = sum(count for _, count in routes)
        own = (dest, source) if is_reversed else (source, dest)
        for path, count in routes:
            assert (path[0], path[-1]) == (source, dest)
            for one, other in itertools.pairwise(path):
                loads[(other, one) if is_reversed else (one, other)] += Fraction(sent[own] * count, units * chunks)
        del sent[own]
    assert not sent, "a message has no route"
    return max(load / network.links[link] for link, load in loads.items())


NETWORKS = {
    "2 A100": make_dgx(2, 300, 25),
    "MI250": make_mi250(1),
    "H100 machine": make_machine_network(load_machine("dgx-h100"), 16),
    "Summit machine, part of a node": make_machine_network(load_machine("summit"), 9),
}


@pytest.mark.parametrize(
    "operation", [Operation.ALL_GATHER, Operation.REDUCE_SCATTER, *ROOTED], ids=lambda op: op.value
)
@pytest.mark.parametrize("name", NETWORKS)
def test_synthesized_plan_is_right_and_optimal(name: str, operation: Operation) -> None:
    network, root = NETWORKS[name], 3 if operation in ROOTED else 0
    plan, (forest,) = synthesize(network, operation, root=root, pieces=2)
    check(plan)
    assert measure_busiest_link(plan, forest, network) == compute_optimum(network, operation, root).seconds_per_byte


def test_trees_of_random_balanced_networks_reach_the_optimum() -> None:
    rng = random.Random(7)
    for case in range(40):
        network = make_random_network(rng, 8, balanced=True)
        operation = (Operation.ALL_GATHER, Operation.BROADCAST)[case % 2]
        forest = grow_forest(network, operation, root=network.ranks - 1)
        share = 1 if operation in ROOTED else network.ranks
        optimum = compute_optimum(network, operation, network.ranks - 1)
        assert forest.seconds_per_byte / share == optimum.seconds_per_byte, case
        assert max(forest.measure_loads().values()) <= forest.seconds_per_byte, case
        spanning = [len(set(tree.members)) == network.ranks == len(tree.members) for tree in forest.trees]
        assert all(spanning), case
        per_root = Counter[int]()
        for tree in forest.trees:
            per_root[tree.root] += tree.units
        assert set(per_root.values()) == {forest.units}, case


@pytest.mark.parametrize(("trees", "algbw"), [(1, 320), (2, Fraction(1024, 3))])
def test_fixed_number_of_trees(trees: int, algbw: Fraction) -> None:
    """The bandwidths are those that ForestColl's program finds for 2 nodes of 16 MI250 GPUs."""
    network = make_mi250(2)
    forest = grow_forest(network, Operation.ALL_GATHER, trees=trees)
    assert network.ranks / forest.seconds_per_byte == algbw * 10**9
    assert max(forest.measure_loads().values()) <= forest.seconds_per_byte


def test_32_ranks_reach_the_optimum() -> None:
    network = make_machine_network(load_machine("dgx-h100"), 32)
    plan, (forest,) = synthesize(network, Operation.BROADCAST, pieces=1)
    assert max(forest.measure_loads().values()) == compute_optimum(network, Operation.BROADCAST).seconds_per_byte
    check(plan)


def test_all_reduce_is_reduce_scatter_and_all_gather() -> None:
    plan, forests = synthesize(make_machine_network(load_machine("summit"), 12), Operation.ALL_REDUCE, pieces=3)
    proof = check(plan)
    assert [forest.units for forest in forests] == [1, 1]
    assert proof.cost.most == Fraction(23, 12)


def test_one_way_ring_and_unequal_directions() -> None:
    ring = NetworkBuilder("ring", [f"rank {rank}" for rank in range(5)])
    for rank in range(5):
        ring.add_link(f"rank {rank}", f"rank {(rank + 1) % 5}", Fraction(2))
    for operation in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.ALL_REDUCE):
        plan, forests = synthesize(ring.build(), operation, pieces=1)
        check(plan)
        assert all(max(forest.measure_loads().values()) == 2 for forest in forests)
    ring.add_link("rank 0", "rank 1", Fraction(5))
    with pytest.raises(NetworkError, match="no link leads to"):  # only links in both directions are balanced
        grow_forest(ring.build(), Operation.ALL_GATHER)


def test_plan_survives_its_file() -> None:
    plan, _ = synthesize(make_dgx(1, 300, 25), Operation.REDUCE_SCATTER)
    read = from_json(to_json(plan))
    assert check(read) == check(plan)
    rank = np.arange(8)
    assert to_json(read) == to_json(plan)
    assert len(read.make(rank)) == len(plan.make(rank))
