"""The network of a machine model: ranks on nodes, whose NICs meet in one switch or in the links of a fabric."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import combinations

from hpccoll.plan import Fabric, FabricKind, Machine, Operation
from hpccoll.synthesis.network import Network, NetworkBuilder, round_rate
from hpccoll.synthesis.optimum import RULED, Optimum, compute_optimum

MOST_RANKS = 128  # most ranks for which commands compute an optimum beside their own work, in at most a second


def make_machine_network(machine: Machine, ranks: int) -> Network:
    """Return the network of `ranks` ranks that fill the nodes of a machine model in order.

    Each rank has one port, as in the machine model, with the bandwidth of the rank's fastest link. The port of a rank
    is joined to the rank's NIC and to the switch of its node. Ranks share NICs, and nodes share the links of a fabric,
    as in simulations. Data may take any route through the fabric.
    """
    network = NetworkBuilder(machine.name, [f"rank {rank}" for rank in range(ranks)])
    per_node, nodes = machine.ranks_per_node, machine.count_nodes(ranks)
    near, wide = (round_rate(1 / link.min_beta) for link in (machine.within, machine.between))
    for node in range(nodes):
        members = range(node * per_node, min((node + 1) * per_node, ranks))
        inside = [f"rank {rank}" for rank in members]
        fastest = max([near] * (len(members) > 1) + [wide] * (nodes > 1), default=near)
        nics = dict.fromkeys(place * machine.nics_per_node // per_node for place in range(len(members)))
        for place, rank in enumerate(members):
            port = f"port of rank {rank}"
            network.connect(f"rank {rank}", port, fastest)
            inside.append(port)
            if len(members) > 1:
                network.connect(port, f"switch of node{node}", near)
            if nodes > 1:
                nic = f"NIC {place * machine.nics_per_node // per_node} of node{node}"
                network.connect(port, nic, wide)
        if len(members) > 1:
            inside.append(f"switch of node{node}")
        if nodes > 1:
            for number in nics:
                switch = _name_switch(machine.fabric, node, number)
                network.connect(f"NIC {number} of node{node}", switch, wide)
                inside.append(f"NIC {number} of node{node}")
            network.nodes.append((f"node{node}", inside))
    if machine.fabric is not None:
        _connect_switches(network, machine.fabric, wide)
    return network.build()


def _name_switch(fabric: Fabric | None, node: int, nic: int) -> str:
    """Return the name of the switch that NIC number `nic` of node `node` is connected to.

    `fabric` describes links that nodes share; None if all NICs meet in one switch.
    """
    if fabric is None:
        return "core switch"
    rail = f" of rail {nic}" if fabric.has_rails else ""
    return f"switch {node // fabric.nodes_per_switch}{rail}"


def _connect_switches(network: NetworkBuilder, fabric: Fabric, nic_rate: Fraction) -> None:
    """Add the links that nodes share: between leaf switches and the core, or between groups of a dragonfly.

    `nic_rate` is the bandwidth of a NIC in bytes/s.
    """
    named = (name for link in network.rates for name in link if name.startswith("switch ") and " of node" not in name)
    switches = list(dict.fromkeys(named))
    rate = round_rate(float(nic_rate) * fabric.capacity)
    if fabric.kind is FabricKind.DRAGONFLY:
        for one, other in combinations(switches, 2):
            network.connect(one, other, rate)
    elif len(switches) > 1:
        for switch in switches:
            network.connect(switch, "core switch", rate)


@lru_cache(maxsize=256)
def find_machine_optimum(machine: Machine, operation: Operation, ranks: int, root: int = 0) -> Optimum | None:
    """Return the `Optimum` of a collective on a machine model: a lower bound of the time per byte, and its cause.

    The bound ignores latency. The result is None if no bound is known for the operation, if a kind of link has
    unlimited bandwidth, or if `ranks` is not between 2 and MOST_RANKS. `root` is the root of a broadcast or reduce.
    """
    is_unlimited = not machine.within.min_beta or not machine.between.min_beta
    if operation not in RULED or not 2 <= ranks <= MOST_RANKS or is_unlimited:
        return None
    return compute_optimum(make_machine_network(machine, ranks), operation, root)
