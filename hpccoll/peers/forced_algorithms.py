"""Makes the MPI library or NCCL run one chosen algorithm in all calls of an engine, to compare the algorithms.

Open MPI reads the control variables that force algorithms when a communicator is created, so each of its algorithms has
a communicator of its own. MPICH reads its control variables in every call, so they are set only around the calls. NCCL
reads environment variables when its communicator is created, so each of its algorithms has a process group of its own.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hpccoll.errors import UnavailableError, UsageError
from hpccoll.library_rules import DEFAULT, LibraryAlgorithm, mpich, nccl, open_mpi
from hpccoll.peers.control_variables import ControlVariables
from hpccoll.peers.library_engine import LibraryEngine
from hpccoll.peers.mpi_engine import MpiEngine
from hpccoll.peers.torch_engine import TorchEngine
from hpccoll.plan import Operation
from hpccoll.runtime import job

if TYPE_CHECKING:
    from mpi4py import MPI

OPEN_MPI, MPICH, NCCL = "openmpi", "mpich", "nccl"
_VENDORS = {OPEN_MPI: "Open MPI", MPICH: "MPICH"}
# If one of these environment variables is set, the library does not select algorithms by its own defaults.
_FORCING = {
    OPEN_MPI: ("OMPI_MCA_coll_tuned_use_dynamic_rules", "OMPI_MCA_coll_han_use_dynamic_file_rules"),
    MPICH: ("MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE", "MPIR_CVAR_CH4_COLL_SELECTION_TUNING_JSON_FILE"),
    NCCL: ("NCCL_ALGO", "NCCL_PROTO", "NCCL_TUNER_PLUGIN"),
}

_FALLBACK = "MPIR_CVAR_COLLECTIVE_FALLBACK"
# The values of variables that speed up MPICH's barrier and broadcast, which measurements call around the timed calls.
# By default, MPICH's barrier and broadcast take 0.1 s in shared memory if ranks share cores.
_AROUND = (
    (Operation.BARRIER, "MPIR_CVAR_BARRIER_COMPOSITION", 2),
    (Operation.BROADCAST, "MPIR_CVAR_BCAST_COMPOSITION", 3),
)


@dataclass(frozen=True, slots=True)
class ForcedEngine:
    """An engine whose collectives run one chosen algorithm of its library, to measure this algorithm."""

    algorithm: LibraryAlgorithm
    engine: LibraryEngine
    variables: Mapping[str, int] = field(default_factory=dict)  # control variables to set around calls; MPICH only


class AlgorithmLibrary(ABC):
    """An MPI library or NCCL whose collectives can be made to run an algorithm of the caller's choice."""

    buffer = "host"  # the kind of buffers to measure with: host or cuda

    @abstractmethod
    def list_engines(self, operation: Operation) -> list[ForcedEngine]:
        """Return one engine per algorithm of an operation; the first engine lets the library select. Collective."""

    def force(self, engine: ForcedEngine, *, strict: bool = False) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return a context manager within which calls of `engine` run the engine's algorithm.

        With `strict`, a call that the algorithm does not support may fail; otherwise, such a call runs another
        algorithm. The default does nothing, for engines whose communicator always runs the engine's algorithm.
        """
        return nullcontext()


def require_no_rules(name: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError if variables in `environ` already force algorithms of the library `name` (openmpi, mpich, nccl).

    If the environment forces algorithms, the library's own selection cannot be measured.
    """
    forcing = [variable for variable in _FORCING[name] if environ.get(variable)]
    if forcing:
        raise UsageError(
            f"{', '.join(forcing)} already selects algorithms, so the library's default cannot be measured; "
            f"unset {' '.join(forcing)}"
        )


def require_library(name: str) -> None:
    """Raise UnavailableError if `name` is an MPI library (openmpi, mpich) and this job runs another one."""
    vendor, running = _VENDORS.get(name), job.get_mpi_library()
    if vendor and not running.startswith(vendor + " "):
        raise UnavailableError(
            f"--export {name} measures {vendor}, and this job runs {running}; start it with {vendor}'s mpirun, and "
            f"let mpi4py load {vendor}"
        )


class OpenMpiAlgorithms(AlgorithmLibrary):
    """Forces the algorithms of Open MPI's component `tuned`, each by a communicator of its own.

    The constructor and `list_engines` are collective over `world`.
    """

    def __init__(self, world: MPI.Intracomm) -> None:
        self._world, self._variables = world, ControlVariables()
        self._default = MpiEngine(world)
        self._several_nodes = job.detect_layout(world).nodes > 1
        self._engines: dict[int, MpiEngine] = {}

    def list_engines(self, operation: Operation) -> list[ForcedEngine]:
        """Return one engine per algorithm of an operation; the first engine lets Open MPI select. Collective."""
        engines = [ForcedEngine(DEFAULT, self._default)]
        for name, number in self._variables.list_values(_name_open_mpi(operation)).items():
            # Algorithm 0 of Open MPI lets `tuned` select, as the default does on one node; `two_proc` needs 2 ranks.
            if (number == 0 and not self._several_nodes) or (name == "two_proc" and self._world.size != 2):
                continue
            algorithm = LibraryAlgorithm(name if number else "", number, open_mpi.TUNED)
            engines.append(ForcedEngine(algorithm, self._get_engine(number)))
        return engines

    def _get_engine(self, number: int) -> MpiEngine:
        """Return an engine that runs algorithm `number` of Open MPI for each operation that has it. Collective."""
        if number not in self._engines:
            values = {_name_open_mpi(operation): number for operation in open_mpi.COLLECTIVES}
            known = {name: number for name in values if number in self._variables.list_values(name).values()}
            with self._variables.change({"coll_tuned_use_dynamic_rules": 1} | known):
                self._engines[number] = MpiEngine(self._duplicate())
        return self._engines[number]

    def _duplicate(self) -> MPI.Intracomm:
        """Return a duplicate of `world` whose collectives are those of Open MPI's component `tuned`. Collective."""
        mpi = job.load_mpi()
        info = mpi.Info.Create({"ompi_comm_coll_preference": f"{open_mpi.TUNED},^{open_mpi.HAN}"})
        try:
            comm: MPI.Intracomm = mpi.Intracomm(self._world.Dup_with_info(info))
        finally:
            info.Free()
        return comm


def _name_open_mpi(operation: Operation) -> str:
    """Return the name of Open MPI's control variable that forces the algorithm of an operation."""
    return f"coll_tuned_{open_mpi.COLLECTIVES[operation][2]}_algorithm"


class MpichAlgorithms(AlgorithmLibrary):
    """Forces MPICH's algorithms, and compositions of its device ch4, by control variables set around the calls.

    A composition decides how a collective is divided between shared memory and the network.
    """

    def __init__(self, world: MPI.Intracomm) -> None:
        self._variables, self._engine = ControlVariables(), MpiEngine(world)
        self._one_node = job.detect_layout(world).nodes == 1

    def list_engines(self, operation: Operation) -> list[ForcedEngine]:
        """Return one engine per algorithm and composition of an operation; the first engine lets MPICH select."""
        name = mpich.get_collective_name(operation).upper()
        composing, forcing = f"MPIR_CVAR_{name}_COMPOSITION", f"MPIR_CVAR_{name}_INTRA_ALGORITHM"
        compositions, flat = mpich.COMPOSITIONS.get(operation, ((), ""))
        around = {variable: value for other, variable, value in _AROUND if other is not operation}
        engines = [ForcedEngine(DEFAULT, self._engine, around)]
        for number, composition in enumerate(compositions, 1):
            if composition != "gamma" or operation is not Operation.ALL_REDUCE or self._one_node:
                algorithm = LibraryAlgorithm("", 0, composition)
                engines.append(ForcedEngine(algorithm, self._engine, around | {composing: number}))
        known = self._variables.list_values(forcing)
        below = around | ({composing: compositions.index(flat) + 1} if flat else {})
        for choice in mpich.ALGORITHMS[operation]:
            if choice in known:
                algorithm = LibraryAlgorithm(choice, 0, flat)
                engines.append(ForcedEngine(algorithm, self._engine, below | {forcing: known[choice]}))
        return engines

    @contextmanager
    def force(self, engine: ForcedEngine, *, strict: bool = False) -> Iterator[None]:
        """Context manager that sets the engine's control variables, so that calls run the engine's algorithm.

        If the algorithm does not support a call, MPICH runs another algorithm or, with `strict`, fails. Collectives
        that MPICH itself calls on parts of the communicator may need another algorithm than the forced one.
        """
        reactions = self._variables.list_values(_FALLBACK)
        values = {_FALLBACK: reactions["error" if strict else "silent"]}
        with self._variables.change(values | dict(engine.variables)):
            yield


class NcclAlgorithms(AlgorithmLibrary):
    """Forces the algorithms and protocols of NCCL, each by a torch process group of its own.

    The constructor and `list_engines` are collective over `world`. The constructor raises UnavailableError if torch,
    NCCL or a GPU per rank is missing.
    """

    buffer = "cuda"

    def __init__(self, world: MPI.Intracomm) -> None:
        self._world, self._default = world, TorchEngine(world, NCCL)
        self._engines: dict[LibraryAlgorithm, TorchEngine] = {}

    def list_engines(self, operation: Operation) -> list[ForcedEngine]:
        """Return one engine per algorithm and protocol of an operation; the first lets NCCL select. Collective."""
        engines = [ForcedEngine(DEFAULT, self._default)]
        for name in nccl.ALGORITHMS[operation]:
            for protocol in nccl.PROTOCOLS:
                algorithm = LibraryAlgorithm(name, 0, protocol)
                engines.append(ForcedEngine(algorithm, self._get_engine(algorithm)))
        return engines

    def _get_engine(self, algorithm: LibraryAlgorithm) -> TorchEngine:
        """Return the engine that runs `algorithm`. Collective.

        NCCL reads its environment variables in the first call of a new engine, so this method makes one call.
        """
        if algorithm not in self._engines:
            os.environ |= {"NCCL_ALGO": algorithm.name, "NCCL_PROTO": algorithm.composition}
            try:
                self._engines[algorithm] = TorchEngine(self._world, NCCL)
                self._engines[algorithm].prepare(Operation.BARRIER, None, None, "sum", 0)()
            finally:
                del os.environ["NCCL_ALGO"], os.environ["NCCL_PROTO"]
        return self._engines[algorithm]


def open_library(name: str, world: MPI.Intracomm) -> AlgorithmLibrary:
    """Return an object that forces the algorithms of the library `name`. Collective over `world`.

    `name` is `openmpi` or `mpich`, which must be the MPI library of this job, or `nccl`.

    Raises:
        UsageError: the environment already forces algorithms.
        UnavailableError: the job runs another library, or the library has no variables that force algorithms.
    """
    require_no_rules(name)
    require_library(name)
    libraries: dict[str, Callable[[MPI.Intracomm], AlgorithmLibrary]] = {
        OPEN_MPI: OpenMpiAlgorithms,
        MPICH: MpichAlgorithms,
        NCCL: NcclAlgorithms,
    }
    return libraries[name](world)


def find_mpi_library_file() -> Path:
    """Return the path of the MPI library that this process has loaded; raise UnavailableError if it is not found."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith(("libmpi.so", "libmpich.so", "libmpi_abi.so")):
            return path
    raise UnavailableError("no libmpi.so is loaded in this process; use a dynamically linked MPICH")
