"""The network of a topology file of NCCL or RCCL (XML, as NCCL_TOPO_DUMP_FILE writes it).

GPUs are the ranks, in the order of their `rank`. PCI switches, CPUs, NVSwitches and NICs are switches. The links are
NVLink, xGMI and PCI links, one link between any two CPUs, and the network ports of NICs, which all meet in one switch.
A topology file states generations and widths of links; the bandwidths are the values that NCCL and RCCL assume for each
generation and width (src/graph/topo.h of both).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from xml.etree.ElementTree import Element, ParseError, XMLParser

from hpccoll.synthesis.network import Network, NetworkBuilder, NetworkError
from hpccoll.units import GB

# GB/s of one lane of PCI in one direction, by its GT/s.
_PCI_LANE = {"2.5": "0.1875", "5": "0.375", "8": "0.75", "16": "1.5", "32": "3", "64": "6"}
_DEFAULT_PCI = "8", 16  # GT/s and lanes of a link whose speed the file does not state
# Pairs of a compute capability (`sm`) and the GB/s of one NVLink link in GPUs of at least this capability.
_NVLINK = ((100, "40.1"), (90, "20.6"), (86, "12"), (80, "20"), (70, "20"), (60, "18"))
_XGMI = (("94", "48"), ("95", "48"), ("910", "36"))  # GB/s per link by the first digits of the architecture `gcn`
_OLDEST_XGMI = "24"
_NVSWITCH = "0x068000"  # PCI class
_CPU_LINKS = {"GenuineIntel": "10", "AuthenticAMD": "16"}  # GB/s between CPUs, by vendor
_CPU_LINKS_BY_ARCH = {"ppc64": "32", "arm64": "6"}
_FABRIC = "network switch"


@dataclass(slots=True)
class _System:
    """Collects the GPUs and links of one node from a topology file.

    The names of the node's vertices begin with `prefix`.
    """

    network: NetworkBuilder
    prefix: str
    gpus: list[tuple[int, str, Element]] = field(default_factory=list)  # rank, PCI bus id, element
    vertices: list[str] = field(default_factory=list)

    def add_tree(self, parent: str, element: Element) -> None:
        """Add the GPUs, NICs and PCI switches in the XML `element` as vertices joined to the vertex `parent`."""
        for child in element:
            if child.tag == "pci":
                self._add_pci(parent, child)
            elif child.tag == "nic":
                self.add_tree(parent, child)
            elif child.tag == "net":
                self._add_net(parent, child)

    def _add_pci(self, parent: str, pci: Element) -> None:
        """Add a PCI device, a GPU or a switch, as a vertex joined to `parent`, with the devices below it."""
        bus = pci.get("busid", "")
        gpu = pci.find("gpu")
        if gpu is not None:
            self.gpus.append((int(gpu.get("rank") or gpu.get("dev") or 0), bus, gpu))
        vertex = f"{self.prefix}{'GPU' if gpu is not None else 'PCI'} {bus}"
        self.vertices.append(vertex)
        self.network.connect(parent, vertex, _read_pci_speed(pci))
        self.add_tree(vertex, pci)

    def _add_net(self, parent: str, net: Element) -> None:
        """Add a port of a NIC as a vertex joined to `parent` and to the switch of the network."""
        vertex = f"{self.prefix}NIC {net.get('name') or net.get('dev')}"
        rate = Fraction(net.get("speed") or "0") * 125_000  # Mbit/s
        if rate and vertex not in self.vertices:
            self.vertices.append(vertex)
            self.network.connect(parent, vertex, rate)
            self.network.connect(vertex, _FABRIC, rate)

    def add_gpu_links(self) -> None:
        """Add the NVLink and xGMI links to other GPUs and to the node's NVSwitch to the network.

        Of a link between GPUs, only the direction from the listing GPU is added, because both ends list the link.
        """
        names = {bus.lower(): f"{self.prefix}GPU {bus}" for _, bus, _ in self.gpus}
        for _, bus, gpu in self.gpus:
            for link in gpu:
                if link.tag in ("nvlink", "xgmi"):
                    rate = _read_gpu_link(gpu, link)
                    own, peer = names[bus.lower()], names.get(link.get("target", "").lower())
                    if peer is not None:
                        self.network.add_link(own, peer, rate)
                    elif link.get("tclass") == _NVSWITCH:
                        self.network.connect(own, f"{self.prefix}NVSwitch", rate)


def read_nccl_topology(text: str, name: str, nodes: int = 1) -> Network:
    """Return the network of `nodes` nodes that the XML in `text` describes; error messages call the file `name`.

    Raises NetworkError if `text` is not a topology file of NCCL or RCCL, or all nodes together have fewer than two
    GPUs.
    """
    root = _parse(text, name)
    network = NetworkBuilder(name)
    for node in range(nodes):
        prefix = f"node{node}/" if nodes > 1 else ""
        for system in [root] if root.tag == "system" else root.findall("system"):
            part = _System(network, prefix)
            cpus = [(f"{prefix}CPU {cpu.get('numaid')}", cpu) for cpu in system.findall("cpu")]
            part.vertices += [vertex for vertex, _ in cpus]
            try:
                for (one, cpu), (other, _) in combinations(cpus, 2):
                    network.connect(one, other, _read_cpu_link(cpu))
                for vertex, cpu in cpus:
                    part.add_tree(vertex, cpu)
                part.add_gpu_links()
            except (ValueError, KeyError) as error:
                raise NetworkError(f"{name}: a value of the topology is wrong: {error}") from error
            network.ranks += [f"{prefix}GPU {bus}" for _, bus, _ in sorted(part.gpus, key=lambda gpu: gpu[0])]
            if nodes > 1:
                network.nodes.append((f"node{node}", part.vertices))
    if len(network.ranks) < 2:
        raise NetworkError(f"{name}: names fewer than two GPUs; give --nodes for several such nodes")
    return network.build()


def _parse(text: str, name: str) -> Element:
    """Return the root element of an XML document; raise NetworkError if it is no topology file or declares entities."""
    parser = XMLParser()  # noqa: S314 - entities, with which a small file could grow, are refused below
    if "<!ENTITY" in text or "<!DOCTYPE" in text:
        raise NetworkError(f"{name}: has a document type; topology files of NCCL have none, remove it")
    try:
        parser.feed(text)
        root: Element = parser.close()
    except ParseError as error:
        raise NetworkError(f"{name}: is not XML ({error})") from error
    if root.tag != "system" and root.find("system") is None:
        raise NetworkError(f"{name}: has no element <system>; need a topology file of NCCL or RCCL")
    return root


def _read_pci_speed(pci: Element) -> Fraction:
    """Return the bandwidth of the link above a PCI device in bytes/s, from its attributes for speed and width."""
    words = pci.get("link_speed", "").split()
    transfers = words[0].removesuffix(".0") if words else ""
    width = int(pci.get("link_width") or 0)
    if transfers not in _PCI_LANE or width < 1:
        transfers, width = _DEFAULT_PCI
    return Fraction(_PCI_LANE[transfers]) * width * int(GB)


def _read_cpu_link(cpu: Element) -> Fraction:
    """Return the bandwidth between this CPU and another one in bytes/s, by the CPU's architecture or vendor."""
    rate = _CPU_LINKS_BY_ARCH.get(cpu.get("arch", "")) or _CPU_LINKS.get(cpu.get("vendor", ""), "6")
    return Fraction(rate) * int(GB)


def _read_gpu_link(gpu: Element, link: Element) -> Fraction:
    """Return the bandwidth of a GPU's links to the target of `link`, in bytes/s in one direction."""
    if link.tag == "xgmi":
        generation = gpu.get("gcn", "").removeprefix("gfx")
        rate = next((rate for start, rate in _XGMI if generation.startswith(start)), _OLDEST_XGMI)
    else:
        sm = int(gpu.get("sm") or 0)
        rate = next((rate for least, rate in _NVLINK if sm >= least), "20")
    return Fraction(rate) * int(link.get("count") or 1) * int(GB)
