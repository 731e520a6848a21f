"""Networks of other publications, and random ones."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations, pairwise

from hpccoll.synthesis import Network, NetworkBuilder
from hpccoll.units import GB

# xGMI links between the 16 GPUs of an MI250 node: pairs by number of links (ForestColl, topologies.py).
MI250_PAIRS = {
    4: "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15",
    2: "0-4 3-7 8-12 11-15",
    1: "0-8 1-5 1-9 1-10 2-6 2-9 2-10 3-11 4-6 5-6 5-7 9-13 10-14 12-14 13-14 13-15",
}


def make_mi250(nodes: int) -> Network:
    """Return nodes of 16 MI250 GPUs: 50 GB/s per xGMI link, and 16 GB/s from each GPU to a switch between nodes."""
    network = NetworkBuilder("MI250", [f"{node}.{gpu}" for node in range(nodes) for gpu in range(16)])
    for node in range(nodes):
        for links, pairs in MI250_PAIRS.items():
            for one, other in (pair.split("-") for pair in pairs.split()):
                network.connect(f"{node}.{one}", f"{node}.{other}", Fraction(50 * links * int(GB)))
        for gpu in range(16 * (nodes > 1)):
            network.connect(f"{node}.{gpu}", "InfiniBand", Fraction(16 * int(GB)))
        network.nodes.append((f"node{node}", [f"{node}.{gpu}" for gpu in range(16)]))
    return network.build()


def make_dgx(nodes: int, nvlink: int, nic: int, rails: int = 2) -> Network:
    """Return nodes of 8 GPUs on an NVSwitch, with a NIC each, whose switches are divided into rails by GPU number."""
    network = NetworkBuilder("DGX", [f"{node}.{gpu}" for node in range(nodes) for gpu in range(8)])
    for node in range(nodes):
        for gpu in range(8):
            network.connect(f"{node}.{gpu}", f"{node}.NVSwitch", Fraction(nvlink * int(GB)))
            if nodes > 1:
                network.connect(f"{node}.{gpu}", f"{node}.NIC {gpu}", Fraction(nic * int(GB)))
                network.connect(f"{node}.NIC {gpu}", f"InfiniBand {gpu % rails}", Fraction(nic * int(GB)))
    return network.build()


def make_random_network(rng: random.Random, most_vertices: int = 10, *, balanced: bool = False) -> Network:
    """Return a random network of up to `most_vertices` ranks and switches, in which each vertex reaches all others."""
    vertices = rng.randint(2, most_vertices)
    ranks = rng.randint(2, vertices)
    names = [f"rank {v}" if v < ranks else f"switch {v}" for v in range(vertices)]
    network = NetworkBuilder("random", names[:ranks], names[ranks:])

    def draw_rate() -> Fraction:
        return Fraction(rng.randint(1, 12), rng.choice((1, 2, 3)))

    order = rng.sample(names, vertices)
    for one, other in pairwise(order):  # a path, so that the network is connected
        forth = draw_rate()
        network.add_link(one, other, forth)
        network.add_link(other, one, forth if balanced else draw_rate())
    for one, other in combinations(names, 2):
        if rng.random() < 0.3:
            forth = draw_rate()
            network.add_link(one, other, forth)
            if balanced or rng.random() < 0.5:
                network.add_link(other, one, forth if balanced else draw_rate())
    return network.build()
