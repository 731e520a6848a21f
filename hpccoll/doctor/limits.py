"""What the system allows a process: locked memory, stack, processes, and reading a neighbour's memory."""

from __future__ import annotations

import resource
from pathlib import Path

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import text
from hpccoll.runtime.command import run_python
from hpccoll.units import format_size

AREA = "limits"
_LEAST_STACK = 4 << 20
_LEAST_FILES, _LEAST_PROCESSES = 1024, 1024


def examine(limit_s: float, root: Path = Path("/")) -> list[Finding]:
    """Return findings on limits and on cross-memory attach.

    Args:
        limit_s: seconds for the process that tries cross-memory attach.
        root: where /proc and /sys are.
    """
    return [*limits(any((root / "sys/class/infiniband").glob("*"))), cross_memory(limit_s, root)]


def limits(infiniband: bool) -> list[Finding]:
    """Judge this process's limits; locked memory matters where InfiniBand registers buffers."""
    asked = {
        "memlock": ("ulimit -l", resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY if infiniband else 0),
        "stack": ("ulimit -s", resource.RLIMIT_STACK, _LEAST_STACK),
        "nproc": ("ulimit -u", resource.RLIMIT_NPROC, _LEAST_PROCESSES),
        "nofile": ("ulimit -n", resource.RLIMIT_NOFILE, _LEAST_FILES),
    }
    low, told = [], []
    for name, (command, which, least) in asked.items():
        soft, hard = resource.getrlimit(which)
        told.append(f"{name} {_shown(name, soft)} (at most {_shown(name, hard)})")
        if soft != resource.RLIM_INFINITY and (least == resource.RLIM_INFINITY or soft < least):
            need = "unlimited" if least == resource.RLIM_INFINITY else _shown(name, least)
            low.append(
                Finding(
                    AREA,
                    Severity.WARNING,
                    f"{name} is {_shown(name, soft)}; {_why(name)} need {need}",
                    f"getrlimit: soft {_shown(name, soft)}, hard {_shown(name, hard)}",
                    f"{command} unlimited before mpirun; if refused, an administrator sets it in "
                    "/etc/security/limits.conf, and for SLURM in slurmd's unit (LimitMEMLOCK=infinity)",
                )
            )
    return low or [Finding(AREA, Severity.OK, "; ".join(told), "getrlimit")]


def _why(name: str) -> str:
    reasons = {"memlock": "InfiniBand's registered buffers", "stack": "the MPI library and compiled code"}
    return reasons.get(name, "several ranks with their connections")


def _shown(name: str, value: int) -> str:
    if value == resource.RLIM_INFINITY:
        return "unlimited"
    return format_size(value) if name in ("memlock", "stack") else str(value)


def cross_memory(limit_s: float, root: Path = Path("/")) -> Finding:
    """Try whether one process may read another's memory, as MPI does to copy a long message once, not twice."""
    scope = text(root / "proc/sys/kernel/yama/ptrace_scope")
    yama = f"/proc/sys/kernel/yama/ptrace_scope: {scope}" if scope is not None else "no Yama in this kernel"
    answer = run_python(["-m", "hpccoll.doctor.probe_cma"], limit_s)
    found = answer.data()
    if found is None:
        return Finding(AREA, Severity.WARNING, "cross-memory attach could not be tried", f"{answer.evidence}; {yama}")
    said = "; ".join(f"{who}: {how}" for who, how in found.items())
    evidence = f"process_vm_readv, {said}; {yama}"
    if found["a child reads its parent"] == "worked":
        told = "cross-memory attach works (one copy for a long message within a node)"
        return Finding(AREA, Severity.OK, told, evidence, provides=("cma",))
    remedy = (
        "as root: sysctl kernel.yama.ptrace_scope=0; in a container: docker run --cap-add=SYS_PTRACE. Otherwise MPI "
        "copies twice, through /dev/shm (Open MPI: OMPI_MCA_btl_sm_single_copy_mechanism=none stops its trying)"
    )
    return Finding(AREA, Severity.WARNING, "one rank may not read another's memory", evidence, remedy)
