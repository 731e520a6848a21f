"""Networks between nodes whose links several nodes share: by hand, and the same by symmetry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpccoll.algorithms import list_algorithms, make_algorithm
from hpccoll.plan import Fabric, FabricKind, Link, Machine, Move, Operation, Rounds, Span, simulate
from hpccoll.predict.forecast import fill_nodes
from hpccoll.predict.machine_catalogue import MachineError, build_machine
from hpccoll.synthesis import find_machine_optimum

ALPHA, BETA, NBYTES = 2e-6, 1e-9, 4000
TREE, DRAGONFLY = FabricKind.FAT_TREE, FabricKind.DRAGONFLY
FILE = {
    "name": "cluster",
    "ranks_per_node": 4,
    "nics_per_node": 2,
    "within": {"alpha_us": 1.0, "bandwidth_GBps": 100.0},
    "between": {"alpha_us": 2.0, "bandwidth_GBps": 25.0},
}


def make_machine(fabric, ranks_per_node=1, nics=1):
    link = Link.one_port(ALPHA, BETA)
    return replace(Machine("shared", ranks_per_node, link, link, nics, 0.0), fabric=fabric)


def time_shift(machine, ranks, distance):
    """Return by how much the bytes of a message are slowed down if every rank sends to the one `distance` above."""

    def shift(rank, n):
        to, frm = (rank + distance) % n, (rank - distance) % n
        return Rounds(1, 1, lambda _: [Move(to, frm, Span(0, 1, 1), Span(0, 1, 1))])

    plan = make_algorithm(Operation.BROADCAST, "shift", shift, None).plan(ranks)
    return (simulate(plan, machine, NBYTES // 4).seconds - ALPHA) / (NBYTES * BETA)


@pytest.mark.parametrize(
    ("fabric", "distance", "slower"),
    [
        (Fabric(TREE, 4, 1.0), 4, 4),  # four messages leave each leaf over links of one NIC
        (Fabric(TREE, 4, 2.0), 4, 2),
        (Fabric(TREE, 4, 4.0), 4, 1),
        (Fabric(TREE, 4, 0.25), 1, 4),  # one message leaves each leaf
        (Fabric(TREE, 4, 1.0), 2, 2),
        (Fabric(TREE, 16, 0.25), 4, 1),  # all nodes have one leaf
        (Fabric(DRAGONFLY, 4, 1.0), 4, 4),  # all messages of a group go to the next group
        (Fabric(DRAGONFLY, 4, 2.0), 6, 1),  # half of them go to the next group, half to the one after
        (Fabric(DRAGONFLY, 4, 1.0), 1, 1),
    ],
)
def test_messages_share_links_of_switches(fabric, distance, slower):
    assert time_shift(make_machine(fabric), 16, distance) == pytest.approx(slower, rel=1e-12)


def test_only_messages_to_another_rail_or_leaf_leave_a_leaf_of_rails():
    machine = make_machine(Fabric(TREE, 4, 0.5, has_rails=True), ranks_per_node=2, nics=2)
    assert time_shift(machine, 8, 2) == pytest.approx(1)  # to the same NIC of the next node
    assert time_shift(machine, 8, 3) == pytest.approx(8)  # to the other NIC: four messages on half a NIC's bandwidth
    assert time_shift(replace(machine, fabric=Fabric(TREE, 4, 0.5)), 8, 3) == pytest.approx(1)


@pytest.mark.parametrize(
    ("messages", "slower"),
    [
        (((0, 4), (1, 4)), 2),  # two ranks send through the uplinks
        (((0, 4), (0, 5)), 2),  # two ranks receive through the downlinks
        (((0, 4), (0, 4)), 1),  # one rank sends to another, one message after the other
    ],
)
def test_ranks_are_counted_not_messages(messages, slower):
    def send(rank, n):
        def make_move(source, dest):
            to, frm = np.where(rank == source, dest, -1), np.where(rank == dest, source, -1)
            return Move(to, frm, Span(0, 1, 1), Span(0, 1, 1))

        return Rounds(1, 1, lambda _: [make_move(*each) for each in messages])

    plan = make_algorithm(Operation.BROADCAST, "send", send, None).plan(8)
    shared, alone = (
        simulate(plan, make_machine(fabric), NBYTES // 4).seconds for fabric in (Fabric(TREE, 4, 1.0), None)
    )
    assert shared - alone == pytest.approx((slower - 1) * (alone - _count_alphas(messages) * ALPHA), rel=1e-9)


def _count_alphas(messages):
    """Return the number of messages on the busiest port, of which each costs alpha."""
    ends = [[end[k] for end in messages] for k in (0, 1)]
    return max(each.count(rank) for each in ends for rank in each)


FABRICS = st.builds(
    Fabric, st.sampled_from(FabricKind), st.integers(1, 4), st.sampled_from([0.5, 1.0, 3.0]), st.booleans()
)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([each for each in list_algorithms() if not each.uses_shared_memory]),
    *(st.integers(1, 24), st.integers(1, 4), st.integers(1, 2), FABRICS, st.sampled_from([0, 3, 1000])),
)
def test_symmetry_is_exact_and_sharing_never_helps(algorithm, n, per_node, nics, fabric, count):
    machine = make_machine(fabric, per_node, min(nics, per_node))
    plan = algorithm.plan(n, 0, 2, fill_nodes(n, machine))
    few, every = simulate(plan, machine, count, trace=False), simulate(plan, machine, count, full=True, trace=False)
    assert np.array_equal(np.tile(few.clocks_s, n // few.simulated_ranks), every.clocks_s)
    alone = simulate(plan, replace(machine, fabric=None), count, trace=False)
    assert every.seconds >= alone.seconds * (1 - 1e-12)


def test_a_file_states_a_fabric():
    tree = build_machine({**FILE, "fabric": {"kind": "fat_tree", "nodes_per_switch": 8, "oversubscription": 4.0}}, "f")
    assert tree.fabric == Fabric(TREE, 8, 4.0)
    rails = {"kind": "fat_tree", "nodes_per_switch": 8, "oversubscription": 4.0, "rails": True}
    assert build_machine({**FILE, "fabric": rails}, "f").fabric == Fabric(TREE, 8, 2.0, has_rails=True)
    dragonfly = {"kind": "dragonfly", "nodes_per_switch": 8, "pair_GBps": 50.0}
    assert build_machine({**FILE, "fabric": dragonfly}, "f").fabric == Fabric(DRAGONFLY, 8, 2.0)


@pytest.mark.parametrize(
    ("fabric", "message"),
    [
        ({"kind": "fat_tree", "nodes_per_switch": 8}, "needs `oversubscription`"),
        ({"kind": "dragonfly", "nodes_per_switch": 8, "oversubscription": 2.0}, "a dragonfly `pair_GBps`"),
        ({"kind": "dragonfly", "nodes_per_switch": 8, "pair_GBps": 5.0, "rails": True}, "only a fat_tree has rails"),
        ({"kind": "ring", "nodes_per_switch": 8}, "ring"),
    ],
)
def test_a_wrong_fabric_is_refused(fabric, message):
    with pytest.raises(MachineError, match=message):
        build_machine({**FILE, "fabric": fabric}, "file")


@pytest.mark.parametrize("kind", FabricKind)
def test_the_optimum_knows_the_links_of_switches(kind):
    # 7/8 of the data must enter each rank over a NIC, and half of it each switch over the shared link.
    for capacity, seconds in ((1.0, 7 / 8 * BETA), (0.25, 4 / 8 * BETA / 0.25)):
        machine = make_machine(Fabric(kind, 4, capacity))
        found = find_machine_optimum(machine, Operation.ALL_GATHER, 8)
        assert found is not None
        assert float(found.seconds_per_byte) == pytest.approx(seconds)
