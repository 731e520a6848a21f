"""Run the checks of a host on each host, and the checks of the whole job on rank 0."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hpccoll.doctor import slurm
from hpccoll.doctor.clock import check_clock
from hpccoll.doctor.copies import check_copies
from hpccoll.doctor.cores import check_cores, check_rank_placement, read_cpu_quota
from hpccoll.doctor.environment import check_environment, report_network_variables
from hpccoll.doctor.finding import Check, Finding, Severity, merge_findings, run_check
from hpccoll.doctor.gpu import check_cuda_aware_mpi, check_gpus
from hpccoll.doctor.limits import check_limits
from hpccoll.doctor.mpi_job import VERSIONS, MpiJob, RankInfo, check_versions
from hpccoll.doctor.mpi_library import check_mpi_library, find_own_mpirun, run_mpi_probe
from hpccoll.doctor.network import check_network
from hpccoll.doctor.numa import check_topology
from hpccoll.doctor.shared_memory import check_shared_memory
from hpccoll.doctor.torch_backends import check_torch, is_torch_installed, run_torch_probe

_AREA_ORDER = (
    *("versions", "mpi", "launcher", "slurm", "cores", "binding", "shared memory", "limits", "clock", "copies"),
    *("topology", "network", "gpu", "cuda ipc", "cuda-aware mpi", "torch", "environment"),
)


@dataclass(frozen=True, slots=True)
class HostReport:
    """The results of all checks of one host (`hpccoll doctor`), and the host's CPU quota and MPI library."""

    name: str  # host name
    findings: tuple[Finding, ...]  # findings that concern this host alone
    quota: float | None  # CPU quota of this host's ranks in cores; None if unlimited
    library: str  # the MPI library's name and version; empty if MPI does not start


def check_host(ranks: Sequence[RankInfo], limit_s: float) -> HostReport:
    """Run all checks of this host; return a `HostReport` of their findings, the CPU quota and the MPI library.

    Args:
        ranks: the ranks of the job on this host, this rank first.
        limit_s: seconds that each process which a check starts may run.
    """
    threads = len(ranks[0].cores) if is_torch_installed() else 1
    cores = len({core for rank in ranks for core in rank.cores})
    in_processes: list[tuple[str, Check]] = [
        ("gpu", lambda: check_gpus(limit_s)),
        ("torch", lambda: check_torch(run_torch_probe(limit_s))),
        ("limits", lambda: check_limits(limit_s)),
    ]
    in_this_process: list[tuple[str, Check]] = [
        ("clock", check_clock),
        ("copies", check_copies),
        ("cores", check_cores),
        ("shared memory", check_shared_memory),
        ("topology", check_topology),
        ("network", lambda: [*check_network(), report_network_variables(os.environ)]),
        ("environment", lambda: check_environment(os.environ, len(ranks), cores, threads)),
    ]
    # Measure the clock before other processes run, because they would disturb the measurement.
    findings = [finding for area, check in in_this_process for finding in run_check(area, check)]
    with ThreadPoolExecutor(len(in_processes)) as pool:
        pending = pool.map(lambda check: run_check(*check), in_processes)
        result = run_mpi_probe(limit_s)
        findings += run_check("mpi", lambda: check_mpi_library(result, limit_s))
        findings += [finding for group in pending for finding in group]
    library = result.parse_json()
    if library is not None:
        findings.append(_report_versions(library["versions"]))
        mpirun = find_own_mpirun(library["files"])
        if any("cuda" in finding.provides for finding in findings):
            findings += run_check("cuda-aware mpi", lambda: check_cuda_aware_mpi(mpirun, limit_s))
    name = library["library"] if library else ""
    return HostReport(os.uname().nodename, tuple(findings), read_cpu_quota()[0], name)


def _report_versions(versions: Mapping[str, str | None]) -> Finding:
    """Return a finding that lists `versions` by package, MPI included; None stands for a missing package."""
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version and name != "mpi_wheel")
    missing = [name for name in ("torch", "cupy") if not versions.get(name)]
    if missing:
        found += f"; not installed: {', '.join(missing)}"
    return Finding(VERSIONS, Severity.OK, found, "importlib.metadata and MPI.get_vendor")


def check_job(hosts: Sequence[HostReport], job: MpiJob, limit_s: float) -> list[Finding]:
    """Run the checks of the whole job on rank 0; return all findings of hosts and job, sorted by area and severity.

    Args:
        hosts: the results of `check_host` on each host.
        job: the ranks of the job.
        limit_s: seconds that each process which a check starts may run.
    """
    by_host = [(host.name, finding) for host in hosts for finding in host.findings]
    findings = merge_findings(by_host) if len(hosts) > 1 else [finding for _, finding in by_host]
    findings += job.findings
    quotas = {host.name: host.quota for host in hosts}
    ranks = len(job.ranks)
    findings += run_check("slurm", lambda: slurm.check_slurm(os.environ, ranks, hosts[0].library, limit_s))
    findings += run_check(VERSIONS, lambda: check_versions(job.ranks))
    if ranks > 1:
        findings += run_check("binding", lambda: check_rank_placement(job.ranks, quotas))
    order = {area: place for place, area in enumerate(_AREA_ORDER)}
    return sorted(findings, key=lambda finding: (order.get(finding.area, len(order)), -finding.severity))
