"""Links that nodes share, compared with a simulation of messages event by event; pipelined plans on such links."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpccoll.algorithms import get_algorithm, list_algorithms, make_algorithm
from hpccoll.algorithms.pipelining import MOST_SEGMENTS
from hpccoll.plan import Fabric, FabricKind, Link, Machine, Move, Operation, Rounds, Span, simulate
from hpccoll.predict.forecast import fill_nodes, forecast, simulate_pipelined
from hpccoll.predict.machine_catalogue import load_machine
from tests.unit.plan.simulation.flow_referee import (
    FABRICS,
    LinkName,
    list_flows,
    list_message_plans,
    share_equally,
    share_fairly,
    simulate_flows,
    without_latency,
)

NAMES = sorted(file.stem for file in FABRICS.glob("*.toml"))
PIPELINED = [
    each
    for each in list_algorithms()
    if each.is_two_level and "rates" not in each.parameters and each.operation is not Operation.BARRIER
]
RANKS = 16
BANDWIDTH_BOUND_BYTES = 2**26


@cache
def load_fabric(name, ranks_per_node=None):
    machine = load_machine(str(FABRICS / f"{name}.toml"))
    return replace(machine, ranks_per_node=ranks_per_node or machine.ranks_per_node)


@settings(max_examples=50, deadline=None)
@given(
    *(st.permutations(range(12)), st.integers(0, 11), st.integers(1, 3), st.integers(1, 2)),
    st.builds(
        Fabric, st.sampled_from(FabricKind), st.integers(1, 3), st.sampled_from([0.5, 1.0, 1.5, 3.0]), st.booleans()
    ),
)
def test_equal_messages_of_one_round_take_as_long_as_event_by_event(order, silent, per_node, nics, fabric):
    # The users of the busiest link have equal shares, and end together, however other links are divided.
    link = Link(2e-6, 1e-9, 2e-6)
    machine = Machine("random", per_node, link, link, min(nics, per_node), 0.0, fabric=fabric)
    pairs = {source: dest for source, dest in enumerate(order) if source not in (dest, silent)}
    sources = {dest: source for source, dest in pairs.items()}

    def send(rank, n):
        to, frm = (np.array([peers.get(r, -1) for r in rank.tolist()]) for peers in (pairs, sources))
        return Rounds(1, 1, lambda _: [Move(to, frm, Span(0, 1, 1), Span(0, 1, 1))])

    plan = make_algorithm(Operation.BROADCAST, "permutation", send, None).plan(12)
    flows = list_flows(plan, machine, 1000)
    for share in (share_equally, share_fairly):
        assert simulate(plan, machine, 1000).seconds == pytest.approx(simulate_flows(flows, 12, share), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_equal_shares_per_round_are_near_to_shares_per_event(name):
    machine = without_latency(load_fabric(name))
    for plan in list_message_plans(RANKS, machine, 4):
        flows = list_flows(plan, machine, 4096)
        equal, fair = (simulate_flows(flows, RANKS, share) for share in (share_equally, share_fairly))
        ours = simulate(plan, machine, 4096, trace=False).seconds
        assert equal == pytest.approx(fair, rel=0.05), plan.name
        assert 0.8 < ours / equal < 1.6, plan.name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("algorithm", PIPELINED, ids=lambda each: each.full_name)
def test_segments_follow_each_other_on_the_busiest_shared_link(name, algorithm):
    machine = load_fabric(name, 2)
    plan = algorithm.plan(RANKS, nodes=fill_nodes(RANKS, machine))
    loads = dict[LinkName, float]()
    for flow in list_flows(plan, machine, 2**16):
        for link, capacity in flow.links.items():
            loads[link] = loads.get(link, 0.0) + flow.seconds / capacity
    shared = max((load for link, load in loads.items() if link[0] in {"up", "down", "pair"}), default=0.0)
    whole = simulate(plan, machine, 2**16, trace=False)
    assert whole.busiest_shared * machine.between.beta_s_per_byte == pytest.approx(shared)
    first, split = (simulate_pipelined(plan, machine, 2**16 * k, 4, segments=k).seconds for k in (1, 5))
    nics = [load / machine.nics_per_node for link, load in _join_nics(loads).items()]
    assert split == pytest.approx(first + 4 * max([shared, *nics]))


def _join_nics(loads):
    """Return the load of each node's NICs together, as they send."""
    nodes = dict[int, float]()
    for link, load in loads.items():
        if link[0] == "out":
            nodes[link[1]] = nodes.get(link[1], 0.0) + load
    return nodes


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("algorithm", PIPELINED, ids=lambda each: each.full_name)
def test_the_segments_of_a_run_are_near_the_best_number(name, algorithm):
    machine = load_fabric(name, 2)
    plan = algorithm.plan(RANKS, nodes=fill_nodes(RANKS, machine))
    count = algorithm.operation.count_elements(BANDWIDTH_BOUND_BYTES, 4, RANKS)
    is_ring = algorithm.full_name == "all_reduce/hierarchical_ring"
    numbers = range(1, MOST_SEGMENTS + 1) if is_ring and name == NAMES[0] else [2**k for k in range(9)]
    best = min(simulate_pipelined(plan, machine, count, 4, segments=number).seconds for number in numbers)
    chosen = forecast(algorithm, RANKS, machine, BANDWIDTH_BOUND_BYTES).seconds
    assert best * (1 - 1e-9) <= chosen <= 1.15 * best


def test_a_pipelined_plan_is_faster_than_its_unsplit_plan_on_shared_links():
    machine = load_fabric("fat_tree", 2)
    algorithm = get_algorithm(Operation.ALL_REDUCE, "hierarchical_doubling")
    plan = algorithm.plan(RANKS, nodes=fill_nodes(RANKS, machine))
    unsplit = simulate_pipelined(plan, machine, 2**22, 4, segments=1).seconds
    assert 1.5 * forecast(algorithm, RANKS, machine, 2**24).seconds < unsplit
