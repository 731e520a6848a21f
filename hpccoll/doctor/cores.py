"""Cores: how many this process may use, how many ranks share them, and where ranks are bound."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import format_list, number, ranges, text
from hpccoll.doctor.rank_info import Rank

AREA = "cores"
_BIND = (
    "mpirun --bind-to core (Open MPI), mpirun -bind-to core (MPICH), or srun --cpu-bind=cores --cpus-per-task=1; "
    "to bind nothing: --bind-to none, -bind-to none, --cpu-bind=none"
)
_FEWER = (
    "start fewer ranks, or ask for more cores; with Open MPI and more ranks than cores: --map-by :OVERSUBSCRIBE "
    "--bind-to none and OMPI_MCA_mpi_yield_when_idle=1, or each wait lasts a time slice"
)


def examine(root: Path = Path("/")) -> list[Finding]:
    """Return findings on the cores of this host that this process may use."""
    mine, online = sorted(os.sched_getaffinity(0)), os.cpu_count() or 1
    physical = count_physical_cores(mine, root)
    found = f"{len(mine)} of {online} logical cores may be used" + (
        f" ({physical} whole ones: hyperthreads share them)" if physical < len(mine) else ""
    )
    evidence = f"os.sched_getaffinity: {ranges(mine)}; os.cpu_count: {online}"
    remedy = "as many ranks as whole cores, for steady times" if physical < len(mine) else ""
    result = [Finding(AREA, Severity.OK, found, evidence, remedy)]
    quota, where = read_cpu_quota(root)
    if quota is not None and quota < len(mine):
        told = f"the control group allows {quota:g} cores' time, fewer than the {len(mine)} that are shown"
        remedy = (
            f"start at most {max(1, int(quota))} ranks, or raise the quota (docker run --cpus, Kubernetes limits.cpu)"
        )
        result.append(Finding(AREA, Severity.WARNING, told, where, remedy))
    return result


def count_physical_cores(cpus: Sequence[int], root: Path) -> int:
    """Return how many cores there are behind `cpus`, hyperthreads of one counted once."""
    where = root / "sys/devices/system/cpu"
    return len({text(where / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus})


def read_cpu_quota(root: Path = Path("/")) -> tuple[float | None, str]:
    """Return how many cores' time our control groups allow (None: no limit), and which file says so.

    Version 2 has `cpu.max` (`max 100000` or `50000 100000`: of a period), version 1 `cpu.cfs_quota_us` (-1: none).
    The limit of every group above ours holds as well.
    """
    found: list[tuple[float, str]] = []
    for line in (text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        version_2 = controllers == ""
        if not version_2 and "cpu" not in controllers.split(","):
            continue
        tops = ("sys/fs/cgroup", "sys/fs/cgroup/unified") if version_2 else (f"sys/fs/cgroup/{controllers}",)
        for top in tops:
            here = root / top / path.strip("/")
            for group in (here, *here.parents):
                allowed = _version_2(group) if version_2 else _version_1(group)
                if allowed is not None:
                    found.append(allowed)
                if group == root / top:
                    break
    return min(found, default=(None, "no cpu.max or cpu.cfs_quota_us that limits us"))


def _version_2(group: Path) -> tuple[float, str] | None:
    words = (text(group / "cpu.max") or "max").split()
    if words[0] == "max":
        return None
    period = int(words[1]) if len(words) > 1 else 100_000
    return int(words[0]) / period, f"{group / 'cpu.max'}: {' '.join(words)}"


def _version_1(group: Path) -> tuple[float, str] | None:
    quota, period = (number(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    if quota is None or quota < 0 or not period:
        return None
    return quota / period, f"{group / 'cpu.cfs_quota_us'}: {quota} of {period}"


def check_rank_placement(ranks: Sequence[Rank], quotas: dict[str, float | None]) -> list[Finding]:
    """Return findings on how the ranks of a job share the cores of each host.

    Args:
        ranks: what each rank said of itself.
        quotas: cores' time that the control group of each host allows; None where it does not limit.
    """
    found = []
    for host in dict.fromkeys(rank.host for rank in ranks):
        here = [rank for rank in ranks if rank.host == host]
        found += [_crowded(host, here, quotas.get(host)), *_bound(here)]
    return found


def _crowded(host: str, ranks: Sequence[Rank], quota: float | None) -> Finding:
    cores = sorted({core for rank in ranks for core in rank.cores})
    limit = len(cores) if quota is None else min(len(cores), quota)
    found = f"{len(ranks)} ranks on {limit:g} core{'s' * (limit != 1)}" + (
        "" if limit == len(cores) else f" (of {len(cores)} shown)"
    )
    evidence = f"os.sched_getaffinity of all ranks of {host}: {ranges(cores)}"
    if len(ranks) > limit:
        return Finding(
            AREA, Severity.WARNING, f"{found}: waiting ranks take the time of working ones", evidence, _FEWER
        )
    return Finding(AREA, Severity.OK, found, evidence)


def _bound(ranks: Sequence[Rank]) -> list[Finding]:
    """Judge the binding on one host: ranks piled upon a core are a problem, ranks that wander worth a note."""
    evidence = "os.sched_getaffinity: " + format_list([f"rank {rank.rank}: {ranges(rank.cores)}" for rank in ranks])
    alone = Counter(rank.cores[0] for rank in ranks if len(rank.cores) == 1)
    core, count = alone.most_common(1)[0] if alone else (0, 0)
    if count > 1:
        all_of_them = "all" if count == len(ranks) else f"{count} of"
        found = f"{all_of_them} {len(ranks)} ranks are bound to core {core} and take turns on it"
        return [Finding("binding", Severity.PROBLEM, found, evidence, _BIND)]
    sets = [frozenset(rank.cores) for rank in ranks]
    shared = sum(1 for at, one in enumerate(sets) if any(one & other for other in sets[at + 1 :]))
    if not shared:
        told = f"each rank has cores of its own ({format_list([len(one) for one in sets])})"
        return [Finding("binding", Severity.OK, told, evidence)]
    cores = len(frozenset().union(*sets))
    if len(ranks) <= cores:
        told = "ranks are not bound to cores of their own: the system may move them while they are measured"
        return [Finding("binding", Severity.NOTE, told, evidence, _BIND)]
    return [Finding("binding", Severity.OK, "ranks are not bound, which suits more ranks than cores", evidence)]
