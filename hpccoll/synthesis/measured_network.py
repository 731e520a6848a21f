"""The network of a cluster that `hpccoll preflight` measured: the rates of each node's link in both directions.

The rate of a node's uplink is the highest rate at which the node sent to any other node, because lower rates may be
limited by the other node. The network therefore does not show a slow connection between only two nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpccoll.records import PreflightNodeRecord, PreflightPairRecord
from hpccoll.synthesis.network import Network, NetworkBuilder, NetworkError, round_rate
from hpccoll.units import GB

CORE = "network switch"
UNKNOWN_COPIES = 10  # memory is assumed to be that many times as fast as the fastest link
MEASURED_DIGITS = 3  # significant digits of measured bandwidths, which repeat no better


def read_link_rates(records: Sequence[Mapping[str, Any]], name: str) -> dict[str, tuple[float, float]]:
    """Return the pair (GB/s of uplink, GB/s of downlink) of each node, by host name in the order of the records.

    `records` are the decoded lines of `preflight --json`; error messages call their file `name`. Raises NetworkError
    unless the records have a rate of each node in both directions.
    """
    pairs = [pair for pair in records if pair.get("kind") == PreflightPairRecord.kind and pair.get("bandwidth_GBps")]
    hosts = dict.fromkeys(host for pair in pairs for host in (pair["source"], pair["destination"]))
    up, down = dict.fromkeys(hosts, 0.0), dict.fromkeys(hosts, 0.0)
    for pair in pairs:
        rate, source, destination = float(pair["bandwidth_GBps"]), pair["source"], pair["destination"]
        up[source], down[destination] = max(up[source], rate), max(down[destination], rate)
    if not pairs or not all(up[host] and down[host] for host in hosts):
        raise NetworkError(
            f"{name}: has no rate of each node in both directions; measure them: hpccoll preflight --json"
        )
    return {host: (up[host], down[host]) for host in hosts}


def make_measured_network(
    records: Sequence[Mapping[str, Any]], name: str, ranks_per_node: Sequence[int] | None = None
) -> Network:
    """Return the network of the nodes that `hpccoll preflight` measured, with one rank per node by default.

    `ranks_per_node` has the number of ranks on each node. Each rank's link to the switch of its node has the rate of
    memory copies that `preflight` measured on this node. `records` are the decoded lines of `preflight --json`, and
    `name` is the name of their file.
    """
    rates = read_link_rates(records, name)
    sizes = ranks_per_node or (1,) * len(rates)
    if len(sizes) != len(rates):
        raise NetworkError(f"{name}: has {len(rates)} nodes, and the ranks are on {len(sizes)}")
    copies = {node["node"]: node.get("copy_GBps") for node in records if node.get("kind") == PreflightNodeRecord.kind}
    ends = np.cumsum(sizes).tolist()
    members = [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return make_star(name, rates, members, copies)


def make_star(
    name: str,
    rates: Mapping[str, tuple[float, float]],
    members: Sequence[Sequence[int]],
    copy_rates: Mapping[str, float | None] | None = None,
) -> Network:
    """Return a network in which all nodes' links meet in one switch.

    Args:
        rates: the GB/s of each node's uplink and downlink.
        members: the ranks of each node, in the order of `rates`.
        copy_rates: the GB/s at which ranks of a node exchange data; by default, ten times the rate of the fastest link.
    """
    network = NetworkBuilder(name, [f"rank {rank}" for rank in range(sum(map(len, members)))])
    fastest = max(max(rate) for rate in rates.values())
    for (host, (up, down)), ranks in zip(rates.items(), members, strict=True):
        vertices = [f"rank {rank}" for rank in ranks]
        switch = vertices[0] if len(ranks) == 1 else f"switch of {host}"
        for vertex in vertices if len(ranks) > 1 else ():
            copies = (copy_rates or {}).get(host) or UNKNOWN_COPIES * fastest
            network.connect(vertex, switch, round_rate(copies * GB, MEASURED_DIGITS))
        network.add_link(switch, CORE, round_rate(up * GB, MEASURED_DIGITS))
        network.add_link(CORE, switch, round_rate(down * GB, MEASURED_DIGITS))
        network.nodes.append((host, list(dict.fromkeys([*vertices, switch]))))
    return network.build()
