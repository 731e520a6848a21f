"""Looks at everything: on each host once, at the job as a whole on rank 0."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hpccoll.doctor import (
    clock,
    cores,
    environment,
    gpu,
    limits,
    mpi_library,
    network,
    numa,
    rank_info,
    shared_memory,
    slurm,
    torch_backends,
)
from hpccoll.doctor.finding import Check, Finding, Severity, merge_findings, run_check
from hpccoll.doctor.mpi_job import Job
from hpccoll.errors import UnavailableError

# What `--require` may ask for: each is shown to work by a finding that provides it.
REQUIRABLE = (
    "mpi",
    "cma",
    "cuda",
    "cuda_aware",
    "cupy",
    "gloo",
    "infiniband",
    "ipc",
    "nccl",
    "nvml",
    "slurm",
    "torch",
)
_ORDER = (
    "versions",
    "mpi",
    "launcher",
    "slurm",
    "cores",
    "binding",
    "shared memory",
    "limits",
    "clock",
    "topology",
    "network",
    "gpu",
    "cuda ipc",
    "cuda-aware mpi",
    "torch",
    "environment",
)


@dataclass(frozen=True, slots=True)
class Host:
    """What was found on one host.

    Args:
        name: of the host.
        findings: all that concerns it alone.
        quota: cores' time that its control group allows; None where that does not limit.
        library: the MPI library's name and version; empty where MPI does not start.
    """

    name: str
    findings: tuple[Finding, ...]
    quota: float | None
    library: str


def this_host(ranks: Sequence[rank_info.Rank], limit_s: float, root: Path = Path("/")) -> Host:
    """Look at this host. What runs in processes of its own runs side by side.

    Args:
        ranks: of the job, those on this host, this one first.
        limit_s: seconds for each process.
        root: where /proc, /sys and /dev are.
    """
    have_torch = torch_backends.installed()
    together, own = len({core for each in ranks for core in each.cores}), len(ranks[0].cores)
    slow: list[tuple[str, Check]] = [
        ("gpu", lambda: gpu.examine(limit_s)),
        ("torch", lambda: torch_backends.examine(torch_backends.question(limit_s))),
        ("limits", lambda: limits.examine(limit_s, root)),
    ]
    quick: list[tuple[str, Check]] = [
        ("clock", lambda: clock.examine(root)),
        ("cores", lambda: cores.examine(root)),
        ("shared memory", lambda: shared_memory.examine(root)),
        ("topology", lambda: numa.examine(root)),
        ("network", lambda: [*network.examine(root), *environment.check_network_variables(os.environ)]),
        ("environment", lambda: environment.examine(os.environ, len(ranks), together, own, have_torch)),
    ]
    # The clock is timed before anything else runs beside it.
    found = [finding for area, check in quick for finding in run_check(area, check)]
    with ThreadPoolExecutor(len(slow)) as pool:
        asked = pool.map(lambda pair: run_check(*pair), slow)
        answer = mpi_library.question(limit_s)
        found += run_check("mpi", lambda: mpi_library.examine(answer, limit_s))
        found += [finding for findings in asked for finding in findings]
    told = answer.data()
    if told is not None:
        found.append(_versions(told["versions"]))
        mpirun = mpi_library.find_own_mpirun(told)
        if any("cuda" in finding.provides for finding in found):
            found += run_check("cuda-aware mpi", lambda: gpu.device_memory_in_mpi(mpirun, limit_s))
    return Host(os.uname().nodename, tuple(found), cores.read_cpu_quota(root)[0], told["library"] if told else "")


def _versions(versions: Mapping[str, str | None]) -> Finding:
    said = ", ".join(f"{name} {version}" for name, version in versions.items() if version and name != "mpi_wheel")
    absent = [name for name in ("torch", "cupy") if not versions.get(name)]
    without = f"; not installed: {', '.join(absent)}" if absent else ""
    return Finding(rank_info.AREA, Severity.OK, said + without, "importlib.metadata and MPI.get_vendor")


def everything(hosts: Sequence[Host], job: Job, limit_s: float) -> list[Finding]:
    """Join what the hosts found with what concerns the job as a whole, in the order of areas, the worst first in each.

    Args:
        hosts: of all ranks, one each.
        job: the ranks that met.
        limit_s: seconds for each process.
    """
    told = [(host.name, finding) for host in hosts for finding in host.findings]
    found = merge_findings(told) if len(hosts) > 1 else [finding for _, finding in told]
    found += job.findings
    quotas = {host.name: host.quota for host in hosts}
    size = len(job.ranks)
    found += run_check("slurm", lambda: slurm.examine(os.environ, size, hosts[0].library, limit_s))
    found += run_check(rank_info.AREA, lambda: rank_info.check_versions(job.ranks))
    if size > 1:
        found += run_check("binding", lambda: cores.check_rank_placement(job.ranks, quotas))
    return sorted(found, key=lambda finding: (_place(finding.area), -finding.severity))


def _place(area: str) -> int:
    return _ORDER.index(area) if area in _ORDER else len(_ORDER)


def require(names: Sequence[str], findings: Sequence[Finding], hosts: int) -> None:
    """Check that what was asked for is here, on every host.

    Args:
        names: some of REQUIRABLE.
        findings: of all hosts.
        hosts: how many there are.

    Raises:
        UnavailableError: names all that is missing, with the findings that say why.
    """
    missing = []
    for name in names:
        where = sum(len(finding.hosts) or hosts for finding in findings if name in finding.provides)
        if where < hosts:
            partly = f" on {hosts - where} of {hosts} hosts" if where else ""
            missing.append(f"--require {name}: not available{partly}: {_why_not(name, findings)}")
    if missing:
        raise UnavailableError("; ".join(missing))


def _why_not(name: str, findings: Sequence[Finding]) -> str:
    """Return the reasons from the first area with findings: where there is no device, IPC was not tried."""
    for area in _AREAS_OF.get(name, (name,)):
        here = [each for each in findings if each.area == area]
        bad = [f"{each.found} ({each.evidence})" for each in here if each.severity > Severity.OK]
        if here:
            return "; ".join(bad or [each.found for each in here])
    return "nothing was found that shows it to work"


_AREAS_OF = {
    "cma": ("limits",),
    "cuda": ("gpu",),
    "cupy": ("gpu",),
    "nvml": ("gpu",),
    "ipc": ("cuda ipc", "gpu"),
    "cuda_aware": ("cuda-aware mpi", "gpu"),
    "gloo": ("torch",),
    "nccl": ("torch",),
    "infiniband": ("network",),
}
