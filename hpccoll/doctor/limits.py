"""Check resource limits (locked memory, stack, processes, files) and cross-memory attach."""

from __future__ import annotations

import resource
from pathlib import Path

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import read_text
from hpccoll.processes.command import run_python
from hpccoll.units import format_size

AREA = "limits"
_MIN_STACK = 4 << 20
_MIN_FILES, _MIN_PROCESSES = 1024, 1024
_REASONS = {"memlock": "InfiniBand's registered buffers", "stack": "the MPI library and compiled code"}


def check_limits(limit_s: float, root: Path = Path("/")) -> list[Finding]:
    """Return findings on resource limits, and on whether ranks can read each other's memory (cross-memory attach).

    Starts a process that may run for at most `limit_s` seconds.
    """
    has_infiniband = any((root / "sys/class/infiniband").glob("*"))
    return [*check_resource_limits(has_infiniband), check_cross_memory_attach(limit_s, root)]


def check_resource_limits(has_infiniband: bool) -> list[Finding]:
    """Return a list of warnings on resource limits (ulimit) that are too low for MPI, or of one OK finding.

    If `has_infiniband` is true, any limit of locked memory is too low.
    """
    requirements = {
        # With InfiniBand, locked memory must be unlimited, because MPI registers (locks) its buffers.
        "memlock": ("ulimit -l", resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY if has_infiniband else 0),
        "stack": ("ulimit -s", resource.RLIMIT_STACK, _MIN_STACK),
        "nproc": ("ulimit -u", resource.RLIMIT_NPROC, _MIN_PROCESSES),
        "nofile": ("ulimit -n", resource.RLIMIT_NOFILE, _MIN_FILES),
    }
    warnings, values = [], []
    for name, (command, which, required) in requirements.items():
        soft, hard = resource.getrlimit(which)
        values.append(f"{name} {_format_limit(name, soft)} (at most {_format_limit(name, hard)})")
        if soft == resource.RLIM_INFINITY or (required != resource.RLIM_INFINITY and soft >= required):
            continue
        reason = _REASONS.get(name, "several ranks with their connections")
        found = f"{name} is {_format_limit(name, soft)}; {reason} need {_format_limit(name, required)}"
        evidence = f"getrlimit: soft {_format_limit(name, soft)}, hard {_format_limit(name, hard)}"
        remedy = (
            f"{command} unlimited before mpirun; if refused, an administrator sets it in /etc/security/limits.conf, "
            "and for SLURM in slurmd's unit (LimitMEMLOCK=infinity)"
        )
        warnings.append(Finding(AREA, Severity.WARNING, found, evidence, remedy))
    return warnings or [Finding(AREA, Severity.OK, "; ".join(values), "getrlimit")]


def _format_limit(name: str, value: int) -> str:
    """Return the value of the resource limit `name`, such as `stack`, as a string: a size with unit or a number."""
    if value == resource.RLIM_INFINITY:
        return "unlimited"
    return format_size(value) if name in ("memlock", "stack") else str(value)


def check_cross_memory_attach(limit_s: float, root: Path = Path("/")) -> Finding:
    """Return a finding on whether two processes can read each other's memory, as MPI does for single-copy transfers.

    Starts two processes, which may run for at most `limit_s` seconds.
    """
    scope = read_text(root / "proc/sys/kernel/yama/ptrace_scope")
    yama = f"/proc/sys/kernel/yama/ptrace_scope: {scope}" if scope is not None else "no Yama in this kernel"
    result = run_python(["-m", "hpccoll.doctor.probe_cma"], limit_s)
    outcomes = result.parse_json()
    if outcomes is None:
        return Finding(AREA, Severity.WARNING, "cross-memory attach could not be tried", f"{result.evidence}; {yama}")
    evidence = "; ".join(f"{attempt}: {outcome}" for attempt, outcome in outcomes.items())
    evidence = f"process_vm_readv, {evidence}; {yama}"
    if outcomes["a child reads its parent"] == "worked":
        found = "cross-memory attach works (one copy for a long message within a node)"
        return Finding(AREA, Severity.OK, found, evidence, provides=("cma",))
    remedy = (
        "as root: sysctl kernel.yama.ptrace_scope=0; in a container: docker run --cap-add=SYS_PTRACE. Otherwise MPI "
        "copies twice, through /dev/shm (with OMPI_MCA_btl_sm_single_copy_mechanism=none, Open MPI does not try)"
    )
    return Finding(AREA, Severity.WARNING, "a rank may not read another rank's memory", evidence, remedy)
