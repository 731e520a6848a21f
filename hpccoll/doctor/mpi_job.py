"""Start MPI under a launcher, gather the host, cores and versions of each rank, and compare the versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.errors import LauncherError, UnavailableError
from hpccoll.processes.start_limit import kill_after
from hpccoll.runtime import job
from hpccoll.units import format_count, format_list, format_ranges

if TYPE_CHECKING:
    from mpi4py import MPI

AREA, VERSIONS = "launcher", "versions"


@dataclass(frozen=True, slots=True)
class RankInfo:
    """One rank of the job: its host, the cores that it may run on, and its package versions (None: not installed)."""

    rank: int
    host: str
    cores: tuple[int, ...]
    versions: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class MpiJob:
    """The MPI job in which `hpccoll doctor` runs: its ranks, their communicator, and findings on the launcher."""

    world: MPI.Intracomm | None  # MPI.COMM_WORLD; None if this process did not start MPI
    ranks: tuple[RankInfo, ...]  # one entry per rank
    findings: tuple[Finding, ...]  # findings on the launcher


def start_mpi_job(environ: Mapping[str, str], limit_s: float) -> MpiJob:
    """Start MPI in this process, which a launcher started; return an `MpiJob` with the data of all ranks. Collective.

    If MPI cannot start, returns a job of one process with a finding on the reason. A rank that still waits in MPI after
    `limit_s` seconds is killed with a message. `environ` has the environment variables.
    """
    message = (
        f"hpccoll doctor: MPI did not connect the ranks within {limit_s:g} s (rank on {platform.node()}); run hpccoll "
        "doctor without a launcher for all other checks, and check that the hosts reach each other (UCX_NET_DEVICES, "
        "FI_TCP_IFACE, OMPI_MCA_btl_tcp_if_include)"
    )
    with kill_after(limit_s, message):
        try:
            world = job.get_world()
        except LauncherError as error:
            found, _, remedy = str(error).partition(". ")
            sizes = _format_launcher_sizes(environ)
            return _make_single_process_job(Finding(AREA, Severity.PROBLEM, found, sizes, remedy))
        except UnavailableError as error:
            return _make_single_process_job(Finding("mpi", Severity.PROBLEM, str(error), "importing mpi4py.MPI"))
        ranks = tuple(world.allgather(describe_this_rank(world.rank, job.collect_versions())))
    hosts = tuple(dict.fromkeys(rank.host for rank in ranks))
    found = f"MPI connected {format_count(len(ranks), 'rank')}, on {format_count(len(hosts), 'host')}"
    evidence = f"MPI.COMM_WORLD.size: {world.size}; {_format_launcher_sizes(environ)}; hosts {format_list(hosts)}"
    return MpiJob(world, ranks, (Finding(AREA, Severity.OK, found, evidence),))


def describe_unlaunched_process(environ: Mapping[str, str]) -> MpiJob:
    """Return an `MpiJob` whose only rank is this process, which no launcher started, without starting MPI.

    `environ` has the environment variables.
    """
    found = "started without a launcher; under mpirun or srun, ranks, binding and hosts are checked as well"
    remedy = "mpirun -n 2 hpccoll doctor"
    return _make_single_process_job(Finding(AREA, Severity.NOTE, found, _format_launcher_sizes(environ), remedy))


def _make_single_process_job(finding: Finding) -> MpiJob:
    """Return an `MpiJob` of this process alone, without MPI; `finding` states why MPI was not started."""
    return MpiJob(None, (describe_this_rank(0, {}),), (finding,))


def _format_launcher_sizes(environ: Mapping[str, str]) -> str:
    """Return a string with the names and values of the variables in which launchers state the number of ranks."""
    names = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
    settings = [f"{name}={environ[name]}" for name in names if name in environ]
    return ", ".join(settings) or f"none of {', '.join(names)} is set"


def describe_this_rank(rank: int, versions: Mapping[str, str | None]) -> RankInfo:
    """Return a `RankInfo` with the host and cores of this process, which is rank `rank`, and its package `versions`."""
    return RankInfo(rank, platform.node(), tuple(sorted(os.sched_getaffinity(0))), dict(versions))


def check_versions(ranks: Sequence[RankInfo]) -> list[Finding]:
    """Return a list of problems, one per package whose version differs between ranks, or of one OK finding.

    Returns an empty list for a job of one rank.
    """
    findings = []
    for name in dict.fromkeys(name for rank in ranks for name in rank.versions):
        by_version: dict[str, list[RankInfo]] = {}
        for rank in ranks:
            by_version.setdefault(rank.versions.get(name) or "not installed", []).append(rank)
        if len(by_version) == 1:
            continue
        evidence = "; ".join(
            f"{version}: ranks {format_ranges([rank.rank for rank in group])} on "
            f"{format_list(list(dict.fromkeys(rank.host for rank in group)))}"
            for version, group in by_version.items()
        )
        found = f"the ranks have different versions of {name}"
        remedy = "use one environment on all hosts: put it on a shared file system, or install the same versions"
        findings.append(Finding(VERSIONS, Severity.PROBLEM, found, evidence, remedy))
    if not findings and len(ranks) > 1:
        names = [name for name, version in ranks[0].versions.items() if version]
        hosts = len({rank.host for rank in ranks})
        found = f"{format_count(len(ranks), 'rank')} on {format_count(hosts, 'host')} have the same versions"
        findings.append(Finding(VERSIONS, Severity.OK, found, f"compared: {', '.join(names)}"))
    return findings
