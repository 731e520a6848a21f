"""Check that the findings prove the capabilities that `hpccoll doctor --require` names."""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.errors import UnavailableError

# The capabilities, and the areas whose findings explain why one is missing.
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
    """Check that each named capability is available on every host.

    Args:
        names: some of REQUIRABLE.
        findings: findings of all hosts.
        hosts: the number of hosts.

    Raises:
        UnavailableError: names every missing capability, with the findings that explain it.
    """
    missing = []
    for name in names:
        available = sum(len(finding.hosts) or hosts for finding in findings if name in finding.provides)
        if available < hosts:
            where = f" on {hosts - available} of {hosts} hosts" if available else ""
            missing.append(f"--require {name}: not available{where}: {_explain_missing(name, findings)}")
    if missing:
        raise UnavailableError("; ".join(missing))


def _explain_missing(name: str, findings: Sequence[Finding]) -> str:
    """Return the findings that explain why a capability is missing, from the first of its areas that has any."""
    for area in _EXPLAINED_BY[name]:
        relevant = [finding for finding in findings if finding.area == area]
        failures = [f"{each.found} ({each.evidence})" for each in relevant if each.severity > Severity.OK]
        if relevant:
            return "; ".join(failures or [each.found for each in relevant])
    return "no check proved it"
