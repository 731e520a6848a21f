"""Networks read from NCCL's XML, from network files and from the records of preflight."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from hpccoll.plan import Operation
from hpccoll.synthesis import Network, NetworkError, compute_optimum
from hpccoll.synthesis.measured_network import make_measured_network
from hpccoll.synthesis.nccl_topology import read_nccl_topology
from hpccoll.synthesis.network_file import is_network_file, read_network_file
from hpccoll.units import GB

FOUR_GPUS = """
<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:03:00.0" class="0x038000" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="64" gcn="906" rank="1" gdr="0"><xgmi target="0000:04:00.0" count="1" tclass="0x038000"/></gpu>
      </pci>
      <pci busid="0000:04:00.0" class="0x038000" link_speed="16 GT/s" link_width="8">
        <gpu dev="0" sm="64" gcn="906" rank="0" gdr="0"><xgmi target="0000:03:00.0" count="1" tclass="0x038000"/></gpu>
      </pci>
      <nic><net name="mlx5_0" dev="0" speed="100000" port="1"/></nic>
    </pci>
  </cpu>
  <cpu numaid="1" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="0000:81:00.0" class="0x038000" link_speed="" link_width="0"><gpu dev="2" sm="80" rank="2"/></pci>
    <pci busid="0000:82:00.0" class="0x038000" link_speed="8 GT/s" link_width="16">
      <gpu dev="3" sm="80" rank="3"><nvlink target="ffff:ff:ff.f" count="12" tclass="0x068000"/></gpu>
    </pci>
  </cpu>
</system>
"""


def get_rate(network: Network, source: str, dest: str) -> float:
    """Return the GB/s of a link."""
    number = {name: vertex for vertex, name in enumerate(network.vertices)}
    return float(network.links[number[source], number[dest]]) / GB


def test_nccl_topology() -> None:
    network = read_nccl_topology(FOUR_GPUS, "four.xml")
    assert network.ranks == 4
    assert network.vertices[:2] == ("GPU 0000:04:00.0", "GPU 0000:03:00.0")  # by rank
    assert get_rate(network, "GPU 0000:03:00.0", "GPU 0000:04:00.0") == 24  # xGMI of gcn 906
    assert get_rate(network, "GPU 0000:04:00.0", "PCI 0000:01:00.0") == 12  # 8 lanes of PCI 4
    assert get_rate(network, "CPU 0", "CPU 1") == 16
    assert get_rate(network, "CPU 1", "GPU 0000:81:00.0") == 12  # 16 lanes of PCI 3, as the speed is not stated
    assert get_rate(network, "GPU 0000:82:00.0", "NVSwitch") == 240
    assert get_rate(network, "PCI 0000:01:00.0", "NIC mlx5_0") == 12.5
    assert compute_optimum(network, Operation.ALL_GATHER).binding == "the downlink of rank 2 (12 GB/s)"


def test_nodes_of_an_nccl_topology_meet_in_a_switch() -> None:
    network = read_nccl_topology(FOUR_GPUS.replace('speed="100000"', 'speed="10000"'), "four.xml", nodes=3)
    assert (network.ranks, len(network.nodes)) == (12, 3)
    optimum = compute_optimum(network, Operation.ALL_GATHER)
    assert optimum.seconds_per_byte == Fraction(2, 3) / Fraction(125 * 10**7)
    assert optimum.binding == "the downlink of node0 (1.25 GB/s)"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<system>", "is not XML"),
        ("<graph/>", "has no element <system>"),
        ("<system/>", "fewer than two GPUs"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><system/>', "document type"),
        (FOUR_GPUS.replace('count="12"', 'count="many"'), "a value of the topology is wrong"),
    ],
)
def test_wrong_nccl_topologies(text: str, reason: str) -> None:
    with pytest.raises(NetworkError, match=reason):
        read_nccl_topology(text, "file.xml")


THREE_GPUS = """
name = "three GPUs"
ranks = ["gpu0", "gpu1", "gpu2"]
links = [
    {between = ["gpu0", "gpu1"], GBps = 50},
    {between = ["gpu0", "switch"], GBps = 25},
    {from = "gpu2", to = "switch", GBps = 12.5},
    {from = "switch", to = "gpu2", GBps = 50},
]
nodes = [{name = "left", vertices = ["gpu0", "gpu1"]}, {name = "right", vertices = ["gpu2"]}]
"""


def test_network_file() -> None:
    assert is_network_file(THREE_GPUS)
    assert not is_network_file("name = 'machine'\nranks_per_node = 8")
    network = read_network_file(THREE_GPUS, "three.toml")
    assert network.name == "three GPUs"
    assert get_rate(network, "gpu1", "gpu0") == get_rate(network, "gpu0", "gpu1") == 50
    assert not network.is_balanced
    assert get_rate(network.balance(), "switch", "gpu2") == 12.5
    assert compute_optimum(network, Operation.ALL_GATHER).binding == "the uplink of right (12.5 GB/s)"
    assert compute_optimum(network, Operation.BROADCAST, root=2).seconds_per_byte == Fraction(2, 25 * 10**9)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("[", "<"), "is not TOML"),
        (("GBps = 50", "GBps = -1"), r"links\[0\].GBps is '-1'"),
        (('from = "gpu2", ', ""), r"links\[2\] needs `between`, or `from` and `to`"),
        (('"gpu2"]\n', '"gpu3"]\n'), "gpu3 has no link"),
        (('"gpu1", "gpu2"]\n', '"gpu1", "gpu1"]\n'), "named twice"),
        (("nodes = ", "node = "), "unknown field `node`"),
    ],
)
def test_wrong_network_files(change: tuple[str, str], reason: str) -> None:
    with pytest.raises(NetworkError, match=reason):
        read_network_file(THREE_GPUS.replace(*change, 1), "three.toml")


def make_pair(source: str, destination: str, rate: float | None) -> dict[str, Any]:
    return {"kind": "preflight_pair", "source": source, "destination": destination, "bandwidth_GBps": rate}


def test_measured_network() -> None:
    """The rate of a link is that of the node's fastest pair; the slow pair of a and b does not count."""
    rates = {("a", "b"): 0.01, ("a", "c"): 0.05, ("b", "c"): 0.0502, ("c", "a"): 0.0499, ("c", "b"): 0.05}
    records = [make_pair(source, dest, rate) for (source, dest), rate in rates.items()]
    records += [make_pair("b", "a", 0.05), {"kind": "preflight_node", "node": "a", "copy_GBps": 4.0}]
    network = make_measured_network(records, "file.jsonl")
    assert (network.ranks, [name for name, _ in network.nodes]) == (3, ["a", "b", "c"])
    assert get_rate(network, "rank 0", "network switch") == 0.05
    assert get_rate(network, "network switch", "rank 2") == 0.0502
    larger = make_measured_network(records, "file.jsonl", (2, 1, 3))
    assert larger.ranks == 6
    assert get_rate(larger, "rank 1", "switch of a") == 4
    assert larger.nodes[1] == ("b", frozenset([2]))
    with pytest.raises(NetworkError, match="has 3 nodes, and the ranks are on 2"):
        make_measured_network(records, "file.jsonl", (1, 1))
    with pytest.raises(NetworkError, match="has no rate of each node"):
        make_measured_network([make_pair("a", "b", 1.0)], "file.jsonl")
