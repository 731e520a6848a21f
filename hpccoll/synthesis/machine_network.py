"""The network of a machine model: ranks on nodes, whose NICs meet in one switch without contention."""

from __future__ import annotations

from functools import lru_cache

from hpccoll.plan import Machine, Operation
from hpccoll.synthesis.network import Network, NetworkBuilder, round_rate
from hpccoll.synthesis.optimum import RULED, Optimum, compute_optimum

MOST_RANKS = 128  # for which commands compute an optimum beside their own work, in at most a second


def make_machine_network(machine: Machine, ranks: int) -> Network:
    """Return the network of `ranks` ranks that fill the nodes of a machine model in order.

    A rank has a port, of the bandwidth of its fastest link, because the machine model gives it one port. The port is
    joined to the node's switch and to the rank's NIC; ranks share NICs as in simulations.
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
                network.connect(f"NIC {number} of node{node}", "core switch", wide)
                inside.append(f"NIC {number} of node{node}")
            network.nodes.append((f"node{node}", inside))
    return network.build()


@lru_cache(maxsize=256)
def find_machine_optimum(machine: Machine, operation: Operation, ranks: int, root: int = 0) -> Optimum | None:
    """Return the optimum of an operation on a machine model; None if it is unknown, or takes long to compute."""
    is_unlimited = not machine.within.min_beta or not machine.between.min_beta
    if operation not in RULED or not 2 <= ranks <= MOST_RANKS or is_unlimited:
        return None
    return compute_optimum(make_machine_network(machine, ranks), operation, root)
