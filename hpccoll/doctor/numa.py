"""Check the host's topology: NUMA nodes, and whether the host is a virtual machine or a container."""

from __future__ import annotations

import os
from pathlib import Path

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import read_text

AREA = "topology"
_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h
_LOCAL_DISTANCE = 10  # distance of a node to itself in the ACPI specification


def check_topology(root: Path = Path("/")) -> list[Finding]:
    """Return findings on the host's NUMA nodes, and on whether the host is a virtual machine or a container."""
    return [*check_numa_nodes(root), *check_virtualization(root)]


def check_numa_nodes(root: Path) -> list[Finding]:
    """Return findings on the NUMA nodes, their cores and distances, and on page migration by the kernel."""
    directory = root / "sys/devices/system/node"
    nodes = sorted(directory.glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node")))
    if not nodes:
        return [Finding(AREA, Severity.NOTE, "the kernel does not show NUMA nodes", f"{directory}/node* is missing")]
    details = []
    distances: set[int] = set()
    for node in nodes:
        distance = read_text(node / "distance") or ""
        distances |= set(map(int, distance.split())) - {_LOCAL_DISTANCE}
        details.append(f"{node.name}: cores {read_text(node / 'cpulist') or 'none'}, distances {distance or 'unknown'}")
    found = f"{len(nodes)} NUMA node{'s' * (len(nodes) > 1)}"
    if distances:
        found += f", distances up to {max(distances)}"
    evidence = f"{directory}: {'; '.join(details)}"
    if len(nodes) == 1:
        return [Finding(AREA, Severity.OK, found, evidence)]
    remedy = (
        "spread ranks over the nodes and keep each on one: mpirun --map-by numa --bind-to core (Open MPI), "
        "mpirun -map-by numa -bind-to core (MPICH), srun --cpu-bind=cores --distribution=block:cyclic"
    )
    findings = [Finding(AREA, Severity.NOTE, found, evidence, remedy)]
    balancing = root / "proc/sys/kernel/numa_balancing"
    value = read_text(balancing) or "0"
    if value != "0":
        found = "the kernel moves pages between NUMA nodes while ranks run"
        remedy = "for measurements, as root: sysctl kernel.numa_balancing=0"
        findings.append(Finding(AREA, Severity.NOTE, found, f"{balancing}: {value}", remedy))
    return findings


def check_virtualization(root: Path) -> list[Finding]:
    """Return a note if the host is a virtual machine, and a note if it is a container; else one OK finding."""
    findings = []
    if " hypervisor" in (read_text(root / "proc/cpuinfo") or ""):
        found = "a virtual machine: other guests may take the cores, so that times vary"
        remedy = "repeat measurements, and compare medians"
        findings.append(Finding(AREA, Severity.NOTE, found, "/proc/cpuinfo: flag hypervisor", remedy))
    signs = [str(path) for path in (root / ".dockerenv", root / "run/.containerenv") if path.exists()]
    signs += [f"{name} is set" for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER") if name in os.environ]
    if is_inside_pid_namespace(root):
        signs.append("/proc/self/ns/pid: not the machine's first PID namespace")
    if signs:
        found = "inside a container: shared memory works only between ranks of one container or of shared namespaces"
        remedy = "start all ranks of a host in one container, or with docker run --ipc=host --pid=host --shm-size=8g"
        findings.append(Finding(AREA, Severity.NOTE, found, "; ".join(signs), remedy))
    sources = "/proc/cpuinfo, /proc/self/ns/pid"
    return findings or [Finding(AREA, Severity.OK, "no virtual machine and no container", sources)]


def is_inside_pid_namespace(root: Path = Path("/")) -> bool:
    """Whether this process is outside of the machine's first PID namespace, as in a container.

    In another PID namespace, some of the machine's processes are not visible.
    """
    try:
        return str((root / "proc/self/ns/pid").readlink()) != _FIRST_PID_NAMESPACE
    except OSError:
        return False
