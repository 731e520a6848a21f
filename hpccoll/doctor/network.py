"""Check which network interfaces are up, their speed, and InfiniBand ports."""

from __future__ import annotations

from pathlib import Path

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import read_int, read_text
from hpccoll.units import format_list

AREA = "network"
_LOOPBACK = 772  # ARPHRD_LOOPBACK in the kernel's include/uapi/linux/if_arp.h
_CHOOSE_INTERFACE = (
    "if ranks on several hosts cannot connect, name one: OMPI_MCA_btl_tcp_if_include=NAME (Open MPI), "
    "FI_TCP_IFACE=NAME or UCX_NET_DEVICES=NAME (MPICH), GLOO_SOCKET_IFNAME=NAME (Gloo), NCCL_SOCKET_IFNAME=NAME (NCCL)"
)


def check_network(root: Path = Path("/")) -> list[Finding]:
    """Return findings on the network interfaces and InfiniBand ports of this host."""
    return [check_interfaces(root), *check_infiniband(root)]


def check_interfaces(root: Path) -> Finding:
    """Return a finding on the network interfaces that are up; if several are up, its remedy says how to choose one."""
    directory = root / "sys/class/net"
    up = []
    for path in sorted(directory.glob("*")):
        if read_text(path / "operstate") != "up" or read_int(path / "type") == _LOOPBACK:
            continue
        speed = read_int(path / "speed")
        rate = f"{speed} Mbit/s" if speed is not None and speed > 0 else "speed not shown"
        up.append(f"{path.name} ({rate}, MTU {read_int(path / 'mtu')})")
    evidence = f"{directory}/*/operstate, speed, mtu"
    if not up:
        return Finding(AREA, Severity.NOTE, "no network interface is up: jobs stay on this host", evidence)
    return Finding(AREA, Severity.OK, f"up: {format_list(up)}", evidence, _CHOOSE_INTERFACE if len(up) > 1 else "")


def check_infiniband(root: Path) -> list[Finding]:
    """Return findings on InfiniBand and RoCE ports that are up or down; `root` is the directory that contains sys.

    If a port is down, MPI falls back to TCP or fails.
    """
    directory = root / "sys/class/infiniband"
    ports = sorted(directory.glob("*/ports/*"))
    if not ports:
        return [Finding(AREA, Severity.NOTE, "no InfiniBand device", f"{directory} is empty or missing")]
    up: list[str] = []
    down: list[str] = []
    for port in ports:
        state, rate, layer = (read_text(port / name) or "unknown" for name in ("state", "rate", "link_layer"))
        text = f"{port.parents[1].name} port {port.name}: {state}, {rate}, {layer}"
        (up if "ACTIVE" in state else down).append(text)
    findings = []
    if up:
        found = f"InfiniBand: {format_list(up)}"
        findings.append(Finding(AREA, Severity.OK, found, f"{directory}/*/ports/*", provides=("infiniband",)))
    if down:
        found = f"InfiniBand ports that are down: {format_list(down)}"
        remedy = "check cable and subnet manager (ibstat, ibdiagnet), or set UCX_NET_DEVICES to the ports that are up"
        severity = Severity.NOTE if up else Severity.WARNING
        findings.append(Finding(AREA, severity, found, f"{directory}/*/ports/*/state", remedy))
    return findings
