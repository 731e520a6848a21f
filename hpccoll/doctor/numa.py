"""How the machine is built: sockets and memory, a virtual machine or container around us."""

from __future__ import annotations

import os
from pathlib import Path

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import text

AREA = "topology"
_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h
_LOCAL = 10  # the distance of a node to itself, by the ACPI specification


def examine(root: Path = Path("/")) -> list[Finding]:
    """Return findings on NUMA nodes and on what stands between us and the machine."""
    return [*nodes(root), *walls(root)]


def nodes(root: Path) -> list[Finding]:
    """Return the NUMA nodes with their cores and distances, and whether the kernel moves pages between them."""
    where = root / "sys/devices/system/node"
    found = sorted(where.glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node")))
    if not found:
        return [Finding(AREA, Severity.NOTE, "NUMA nodes are not shown here", f"{where}/node* is missing")]
    told = [
        f"{path.name}: cores {text(path / 'cpulist') or 'none'}, distances {text(path / 'distance') or 'unknown'}"
        for path in found
    ]
    far = {distance for path in found for distance in (text(path / "distance") or "").split()} - {str(_LOCAL)}
    shape = f"{len(found)} NUMA node{'s' * (len(found) > 1)}" + (
        f", distances up to {max(map(int, far))}" if far else ""
    )
    if len(found) == 1:
        return [Finding(AREA, Severity.OK, shape, f"{where}: {told[0]}")]
    remedy = (
        "spread ranks over the nodes and keep each on one: mpirun --map-by numa --bind-to core (Open MPI), "
        "mpirun -map-by numa -bind-to core (MPICH), srun --cpu-bind=cores --distribution=block:cyclic"
    )
    result = [Finding(AREA, Severity.NOTE, shape, f"{where}: {'; '.join(told)}", remedy)]
    balancing = root / "proc/sys/kernel/numa_balancing"
    if (text(balancing) or "0") != "0":
        moves = "the kernel moves pages between NUMA nodes while ranks run"
        remedy = "for measurements, as root: sysctl kernel.numa_balancing=0"
        result.append(Finding(AREA, Severity.NOTE, moves, f"{balancing}: {text(balancing)}", remedy))
    return result


def walls(root: Path) -> list[Finding]:
    """Return whether this is a virtual machine, a container, or a PID namespace of its own."""
    found = []
    if " hypervisor" in (text(root / "proc/cpuinfo") or ""):
        told = "a virtual machine: other guests may take the cores, and times jump"
        remedy = "repeat measurements, and compare medians"
        found.append(Finding(AREA, Severity.NOTE, told, "/proc/cpuinfo: flag hypervisor", remedy))
    signs = [str(path) for path in (root / ".dockerenv", root / "run/.containerenv") if path.exists()]
    signs += [f"{name} is set" for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER") if name in os.environ]
    if is_inside_pid_namespace(root):
        signs.append("/proc/self/ns/pid: not the machine's first PID namespace")
    if signs:
        told = "inside a container: shared memory works between ranks of one container, or with its namespaces shared"
        remedy = "start all ranks of a host in one container, or with docker run --ipc=host --pid=host --shm-size=8g"
        found.append(Finding(AREA, Severity.NOTE, told, "; ".join(signs), remedy))
    return found or [
        Finding(AREA, Severity.OK, "no virtual machine and no container", "/proc/cpuinfo, /proc/self/ns/pid")
    ]


def is_inside_pid_namespace(root: Path = Path("/")) -> bool:
    """Return whether we see only some of the machine's processes."""
    try:
        return str((root / "proc/self/ns/pid").readlink()) != _FIRST_PID_NAMESPACE
    except OSError:
        return False
