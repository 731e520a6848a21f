"""Networks: which interfaces are up, how fast, and whether there is InfiniBand."""

from __future__ import annotations

from pathlib import Path

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import format_list, number, text

AREA = "network"
_LOOPBACK = 772  # ARPHRD_LOOPBACK in the kernel's include/uapi/linux/if_arp.h
_CHOOSE = (
    "if ranks on several hosts cannot meet, name one: OMPI_MCA_btl_tcp_if_include=NAME (Open MPI), FI_TCP_IFACE=NAME "
    "or UCX_NET_DEVICES=NAME (MPICH), GLOO_SOCKET_IFNAME=NAME (Gloo), NCCL_SOCKET_IFNAME=NAME (NCCL)"
)


def examine(root: Path = Path("/")) -> list[Finding]:
    """Return findings on the network of this host."""
    return [*interfaces(root), *infiniband(root)]


def interfaces(root: Path) -> list[Finding]:
    """Return which interfaces are up, with their speed; several of them ask for a choice."""
    where = root / "sys/class/net"
    up = []
    for path in sorted(where.glob("*")):
        if text(path / "operstate") != "up" or number(path / "type") == _LOOPBACK:
            continue
        speed = number(path / "speed")
        fast = f"{speed} Mbit/s" if speed is not None and speed > 0 else "speed not shown"
        up.append(f"{path.name} ({fast}, MTU {number(path / 'mtu')})")
    evidence = f"{where}/*/operstate, speed, mtu"
    if not up:
        told = "no network interface is up: jobs stay on this host"
        return [Finding(AREA, Severity.NOTE, told, evidence)]
    remedy = _CHOOSE if len(up) > 1 else ""
    return [Finding(AREA, Severity.OK, f"up: {format_list(up)}", evidence, remedy)]


def infiniband(root: Path) -> list[Finding]:
    """Return the ports of InfiniBand (or RoCE) devices; a port that is down makes MPI fall back to TCP, or fail."""
    where = root / "sys/class/infiniband"
    ports = sorted(where.glob("*/ports/*"))
    if not ports:
        return [Finding(AREA, Severity.NOTE, "no InfiniBand device", f"{where} is empty or missing")]
    up: list[str] = []
    down: list[str] = []
    for port in ports:
        state = text(port / "state") or "unknown"
        told = f"{port.parents[1].name} port {port.name}: {state}, {text(port / 'rate')}, {text(port / 'link_layer')}"
        (up if "ACTIVE" in state else down).append(told)
    found = [
        Finding(AREA, Severity.OK, f"InfiniBand: {format_list(up)}", f"{where}/*/ports/*", provides=("infiniband",))
    ]
    if not up:
        found = []
    if down:
        remedy = (
            "look at cable and subnet manager (ibstat, ibdiagnet), or name the ports that are up in UCX_NET_DEVICES"
        )
        severity = Severity.NOTE if up else Severity.WARNING
        found.append(
            Finding(
                AREA,
                severity,
                f"InfiniBand ports that are down: {format_list(down)}",
                f"{where}/*/ports/*/state",
                remedy,
            )
        )
    return found
