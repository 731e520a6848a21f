"""Check that the findings prove the capabilities that `hpccoll doctor --require` names."""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.errors import UnavailableError

# For each capability of --require, the areas of checks whose findings explain why the capability is missing.
_EXPLAINED_BY = {
    "mpi": ("mpi",),
    "cma": ("limits",),
    "cuda": ("gpu",),
    "cuda_aware": ("cuda-aware mpi", "gpu"),
    "cupy": ("gpu",),
    "gloo": ("torch",),
    "infiniband": ("network",),
    "ipc": ("cuda ipc", "gpu"),
    "nccl": ("torch",),
    "nvml": ("gpu",),
    "slurm": ("slurm",),
    "torch": ("torch",),
}
REQUIRABLE = tuple(_EXPLAINED_BY)


def require_capabilities(names: Sequence[str], findings: Sequence[Finding], hosts: int) -> None:
    """Raise UnavailableError, with explanations, unless the findings prove all capabilities on all hosts.

    Args:
        names: capabilities such as `cuda` or `cma`, as given to `--require`.
        findings: the results of all checks.
        hosts: the number of hosts of the job.
    """
    missing = []
    for name in names:
        available = sum(len(finding.hosts) or hosts for finding in findings if name in finding.provides)
        if available < hosts:
            place = f" on {hosts - available} of {hosts} hosts" if available else ""
            missing.append(f"--require {name}: not available{place}: {_explain_missing(name, findings)}")
    if missing:
        raise UnavailableError("; ".join(missing))


def _explain_missing(name: str, findings: Sequence[Finding]) -> str:
    """Return, as one string, the findings that explain why the capability `name` is missing."""
    for area in _EXPLAINED_BY[name]:
        relevant = [finding for finding in findings if finding.area == area]
        failures = [f"{finding.found} ({finding.evidence})" for finding in relevant if finding.severity > Severity.OK]
        if relevant:
            return "; ".join(failures or [finding.found for finding in relevant])
    return "no check proved it"
