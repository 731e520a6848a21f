"""The job as a whole: who launched it, whether its ranks met, and what they say of themselves."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpccoll.doctor import rank_info
from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import format_list
from hpccoll.errors import LauncherError, UnavailableError
from hpccoll.runtime import job

if TYPE_CHECKING:
    from mpi4py import MPI

AREA = "launcher"
# Waits for a word on its standard input; where none comes, says why and ends the process that started it. MPI_Init may
# hang inside C, where no Python thread and no signal handler of this process would get its turn.
_WATCHER = """
import os, select, signal, sys
limit, parent, words = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if not select.select([0], [], [], limit)[0] and os.getppid() == parent:
    sys.stderr.write(words + "\\n")
    sys.stderr.flush()
    os.kill(parent, signal.SIGKILL)
"""


@dataclass(frozen=True, slots=True)
class Job:
    """The ranks that met: their communicator (None where MPI did not start), their facts, and findings on that."""

    world: MPI.Intracomm | None
    ranks: tuple[rank_info.Rank, ...]
    findings: tuple[Finding, ...]


@contextmanager
def kill_after(limit_s: float, words: str) -> Iterator[None]:
    """End this process with `words` if the body takes longer than `limit_s` seconds."""
    import os

    command = [sys.executable, "-S", "-E", "-c", _WATCHER, str(limit_s), str(os.getpid()), words]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):
            watcher.communicate(b"done")


def met(environ: Mapping[str, str], limit_s: float) -> Job:
    """Start MPI in this process, which a launcher started, and gather what the ranks say. Collective.

    Args:
        environ: of this process.
        limit_s: seconds after which a rank that still waits for MPI says so and is ended.

    Cost: one all-gather of about a kilobyte a rank.
    """
    words = (
        f"hpccoll doctor: MPI did not bring the ranks together within {limit_s:g} s (rank on {platform.node()}); run "
        "hpccoll doctor without a launcher for the rest, and see whether hosts reach each other (UCX_NET_DEVICES, "
        "FI_TCP_IFACE, OMPI_MCA_btl_tcp_if_include)"
    )
    with kill_after(limit_s, words):
        try:
            world = job.get_world()
        except LauncherError as error:
            told, _, remedy = str(error).partition(". ")
            return alone((Finding(AREA, Severity.PROBLEM, told, _claim(environ), remedy),))
        except UnavailableError as error:
            return alone((Finding("mpi", Severity.PROBLEM, str(error), "importing mpi4py.MPI"),))
        ranks = tuple(world.allgather(rank_info.describe_this_rank(world.rank, job.collect_versions())))
    hosts = tuple(dict.fromkeys(each.host for each in ranks))
    found = f"{len(ranks)} ranks met, on {len(hosts)} host{'s' * (len(hosts) > 1)}"
    evidence = f"MPI.COMM_WORLD.size: {world.size}; {_claim(environ)}; hosts {format_list(hosts)}"
    return Job(world, ranks, (Finding(AREA, Severity.OK, found, evidence),))


def alone(findings: Sequence[Finding]) -> Job:
    """Return the job that is one process without MPI."""
    return Job(None, (rank_info.describe_this_rank(0, {}),), tuple(findings))


def not_launched(environ: Mapping[str, str]) -> Job:
    """Return the job of a process that no launcher started, which leaves MPI to a process of its own."""
    told = "started without a launcher; under mpirun or srun, ranks, binding and hosts are looked at, too"
    return alone((Finding(AREA, Severity.NOTE, told, _claim(environ), "mpirun -n 2 hpccoll doctor"),))


def _claim(environ: Mapping[str, str]) -> str:
    """Return what launchers say of the number of ranks: the variables and nothing else."""
    names = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
    said = [f"{name}={environ[name]}" for name in names if name in environ]
    return ", ".join(said) or f"none of {', '.join(names)} is set"
