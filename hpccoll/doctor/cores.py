"""Check the cores that this process may use, its CPU quota, and how ranks share cores and are bound to them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import read_int, read_text
from hpccoll.doctor.mpi_job import RankInfo
from hpccoll.units import format_count, format_list, format_ranges

AREA = "cores"
_BIND = (
    "mpirun --bind-to core (Open MPI), mpirun -bind-to core (MPICH), or srun --cpu-bind=cores --cpus-per-task=1; "
    "to bind nothing: --bind-to none, -bind-to none, --cpu-bind=none"
)
_FEWER_RANKS = (
    "start fewer ranks, or ask for more cores; with Open MPI and more ranks than cores: --map-by :OVERSUBSCRIBE "
    "--bind-to none and OMPI_MCA_mpi_yield_when_idle=1, or each wait lasts a time slice"
)


def check_cores(root: Path = Path("/")) -> list[Finding]:
    """Return findings on the cores that this process may use, and on a control group's limit of its CPU time."""
    usable, online = sorted(os.sched_getaffinity(0)), os.cpu_count() or 1
    physical = count_physical_cores(usable, root)
    found, remedy = f"{len(usable)} of {online} logical cores may be used", ""
    if physical < len(usable):
        found += f" ({physical} physical cores with hyperthreads)"
        remedy = "for steady times, start at most one rank per physical core"
    evidence = f"os.sched_getaffinity: {format_ranges(usable)}; os.cpu_count: {online}"
    findings = [Finding(AREA, Severity.OK, found, evidence, remedy)]
    quota, source = read_cpu_quota(root)
    if quota is not None and quota < len(usable):
        found = f"the control group limits CPU time to {quota:g} cores, fewer than the {len(usable)} visible cores"
        most = max(1, int(quota))
        remedy = (
            f"start at most {format_count(most, 'rank')}, or raise the quota (docker run --cpus, Kubernetes limits.cpu)"
        )
        findings.append(Finding(AREA, Severity.WARNING, found, source, remedy))
    return findings


def count_physical_cores(cpus: Sequence[int], root: Path) -> int:
    """Return the number of physical cores to which the logical cores `cpus` belong, as files in `root`/sys state it."""
    topology = root / "sys/devices/system/cpu"
    return len({read_text(topology / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus})


def read_cpu_quota(root: Path = Path("/")) -> tuple[float | None, str]:
    """Return the limit of this process's CPU time by control groups, in cores (None: unlimited), and its evidence.

    The evidence is the file and value that set the limit. The file is `cpu.max` in cgroup v2 (`max 100000`, or quota
    and period such as `50000 100000`), and `cpu.cfs_quota_us` in cgroup v1 (-1: unlimited). Of the quotas of a cgroup
    and its ancestors, the smallest applies.
    """
    quotas: list[tuple[float, str]] = []
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        is_v2 = controllers == ""
        if not is_v2 and "cpu" not in controllers.split(","):
            continue
        mounts = ("sys/fs/cgroup", "sys/fs/cgroup/unified") if is_v2 else (f"sys/fs/cgroup/{controllers}",)
        for mount in mounts:
            own = root / mount / path.strip("/")
            for group in (own, *own.parents):
                quota = _read_quota_v2(group) if is_v2 else _read_quota_v1(group)
                if quota is not None:
                    quotas.append(quota)
                if group == root / mount:
                    break
    return min(quotas, default=(None, "no cpu.max or cpu.cfs_quota_us limits this process"))


def _read_quota_v2(group: Path) -> tuple[float, str] | None:
    """Return the CPU quota of a control group (version 2) in cores, and its file and value; None if unlimited."""
    words = (read_text(group / "cpu.max") or "max").split()
    if words[0] == "max":
        return None
    period = int(words[1]) if len(words) > 1 else 100_000
    return int(words[0]) / period, f"{group / 'cpu.max'}: {' '.join(words)}"


def _read_quota_v1(group: Path) -> tuple[float, str] | None:
    """Return the CPU quota of a control group (version 1) in cores, and its file and value; None if unlimited."""
    quota, period = (read_int(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    if quota is None or quota < 0 or not period:
        return None
    return quota / period, f"{group / 'cpu.cfs_quota_us'}: {quota} of {period}"


def check_rank_placement(ranks: Sequence[RankInfo], quotas: Mapping[str, float | None]) -> list[Finding]:
    """Return two findings per host: on more ranks than cores, and on the binding of ranks to cores.

    Args:
        ranks: all ranks of the job.
        quotas: the CPU quota of each host in cores; None means unlimited.
    """
    findings = []
    for host in dict.fromkeys(rank.host for rank in ranks):
        on_host = [rank for rank in ranks if rank.host == host]
        findings += [_check_oversubscription(host, on_host, quotas.get(host)), _check_binding(on_host)]
    return findings


def _check_oversubscription(host: str, ranks: Sequence[RankInfo], quota: float | None) -> Finding:
    """Return a finding on whether a host has more ranks than cores that these ranks may use."""
    cores = sorted({core for rank in ranks for core in rank.cores})
    limit = len(cores) if quota is None else min(len(cores), quota)
    found = f"{format_count(len(ranks), 'rank')} on {limit:g} core{'s' * (limit != 1)}"
    if limit != len(cores):
        found += f" (of {len(cores)} visible)"
    evidence = f"os.sched_getaffinity of all ranks of {host}: {format_ranges(cores)}"
    if len(ranks) > limit:
        found += ": waiting ranks take CPU time from working ones"
        return Finding(AREA, Severity.WARNING, found, evidence, _FEWER_RANKS)
    return Finding(AREA, Severity.OK, found, evidence)


def _check_binding(ranks: Sequence[RankInfo]) -> Finding:
    """Return a finding on the binding of one host's ranks; it is a problem if several ranks are bound to one core."""
    bindings = [f"rank {rank.rank}: {format_ranges(rank.cores)}" for rank in ranks]
    evidence = f"os.sched_getaffinity: {format_list(bindings)}"
    bound = Counter(rank.cores[0] for rank in ranks if len(rank.cores) == 1)
    core, count = bound.most_common(1)[0] if bound else (0, 0)
    if count > 1:
        subset = "all" if count == len(ranks) else f"{count} of"
        found = f"{subset} {len(ranks)} ranks are bound to core {core} and take turns on it"
        return Finding("binding", Severity.PROBLEM, found, evidence, _BIND)
    sets = [frozenset(rank.cores) for rank in ranks]
    if all(a.isdisjoint(b) for index, a in enumerate(sets) for b in sets[index + 1 :]):
        found = f"each rank has cores of its own ({format_list([len(cores) for cores in sets])})"
        return Finding("binding", Severity.OK, found, evidence)
    if len(ranks) <= len(frozenset().union(*sets)):
        found = "ranks are not bound to cores of their own: the system may move them during a measurement"
        return Finding("binding", Severity.NOTE, found, evidence, _BIND)
    return Finding("binding", Severity.OK, "ranks are not bound, which suits more ranks than cores", evidence)
