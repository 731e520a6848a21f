"""The algorithms of the MPI library and of NCCL, each forced for all calls of an engine, to be measured side by side.

Open MPI looks at its variables when a communicator is created, so each of its algorithms has a communicator. MPICH
looks at them in every call, so they are set around the calls. NCCL reads environment variables when its communicator is
created.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

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
# Measurements call MPICH's barrier and broadcast around the timed calls, by these compositions.
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


class AlgorithmLibrary(Protocol):
    """An MPI library or NCCL whose collectives can be made to run an algorithm of the caller's choice."""

    buffer: str  # the kind of buffers to measure with: host or cuda

    def list_engines(self, operation: Operation) -> list[ForcedEngine]:
        """Return an engine per algorithm of an operation, first one that lets the library select. Collective."""

    def force(self, engine: ForcedEngine, *, strict: bool = False) -> AbstractContextManager[None]:
        """Return a context manager within which calls of `engine` run the engine's algorithm.

        With `strict`, a call that the algorithm does not support may fail; otherwise it runs another algorithm.
        """


def require_no_rules(name: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError if variables in `environ` already force algorithms of the library `name` (openmpi, mpich, nccl).

    The library's own selection could then not be measured.
    """
    found = [variable for variable in _FORCING[name] if environ.get(variable)]
    if found:
        raise UsageError(
            f"{', '.join(found)} already selects algorithms, so the library's default cannot be measured; "
            f"unset {' '.join(found)}"
        )


def require_library(name: str) -> None:
    """Raise UnavailableError if `name` is an MPI library (openmpi, mpich) and this job runs another one."""
    vendor, running = _VENDORS.get(name), job.get_mpi_library()
    if vendor and not running.startswith(vendor + " "):
        raise UnavailableError(
            f"--export {name} measures {vendor}, and this job runs {running}; start it with {vendor}'s mpirun, and "
            f"let mpi4py load {vendor}"
        )


class OpenMpiAlgorithms:
    """Forces the algorithms of Open MPI's component `tuned`, each by a communicator of its own.

    The constructor and `list_engines` are collective over `world`.
    """

    buffer = "host"

    def __init__(self, world: MPI.Intracomm) -> None:
        self._world, self._variables = world, ControlVariables()
        self._default = MpiEngine(world)
        self._several_nodes = job.detect_layout(world).nodes > 1
        self._engines: dict[int, MpiEngine] = {}

    def list_engines(self, operation: Operation) -> list[ForcedEngine]:
        """Return an engine per algorithm of an operation, first one that lets Open MPI select. Collective."""
        engines = [ForcedEngine(DEFAULT, self._default)]
        for name, number in self._variables.list_values(_name_open_mpi(operation)).items():
            # Algorithm 0 of Open MPI lets `tuned` select, as the default does on one node; `two_proc` needs 2 ranks.
            if (number == 0 and not self._several_nodes) or (name == "two_proc" and self._world.size != 2):
                continue
            algorithm = LibraryAlgorithm(name if number else "", number, open_mpi.TUNED)
            engines.append(ForcedEngine(algorithm, self._get_engine(number)))
        return engines

    def _get_engine(self, number: int) -> MpiEngine:
        """Return an engine that runs the algorithm `number` of each operation that has one. Collective."""
        if number not in self._engines:
            values = {_name_open_mpi(operation): number for operation in open_mpi.COLLECTIVES}
            known = {name: number for name in values if number in self._variables.list_values(name).values()}
            with self._variables.change({"coll_tuned_use_dynamic_rules": 1} | known):
                self._engines[number] = MpiEngine(self._duplicate())
        return self._engines[number]

    def _duplicate(self) -> MPI.Intracomm:
        """Return a duplicate of the world whose collectives are those of Open MPI's component `tuned`. Collective."""
        mpi = job.load_mpi()
        info = mpi.Info.Create({"ompi_comm_coll_preference": f"{open_mpi.TUNED},^{open_mpi.HAN}"})
        try:
            comm: MPI.Intracomm = mpi.Intracomm(self._world.Dup_with_info(info))
        finally:
            info.Free()
        return comm

    @contextmanager
    def force(self, engine: ForcedEngine, *, strict: bool = False) -> Iterator[None]:  # noqa: ARG002 - of a protocol
        """Return a context manager that does nothing, because the engine's communicator always runs its algorithm."""
        yield


def _name_open_mpi(operation: Operation) -> str:
    """Return the name of Open MPI's control variable that forces the algorithm of an operation."""
    return f"coll_tuned_{open_mpi.COLLECTIVES[operation][2]}_algorithm"


class MpichAlgorithms:
    """Forces MPICH's algorithms, and the compositions of its device ch4, by control variables around each call.

    A composition decides how a collective is divided between shared memory and the network.
    """

    buffer = "host"

    def __init__(self, world: MPI.Intracomm) -> None:
        self._variables, self._engine = ControlVariables(), MpiEngine(world)
        self._one_node = job.detect_layout(world).nodes == 1

    def list_engines(self, operation: Operation) -> list[ForcedEngine]:
        """Return an engine per algorithm and composition of an operation, first one that lets MPICH select."""
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
        for each in mpich.ALGORITHMS[operation]:
            if each in known:
                algorithm = LibraryAlgorithm(each, 0, flat)
                engines.append(ForcedEngine(algorithm, self._engine, below | {forcing: known[each]}))
        return engines

    @contextmanager
    def force(self, engine: ForcedEngine, *, strict: bool = False) -> Iterator[None]:
        """Context manager that sets the engine's control variables, so that calls run the engine's algorithm.

        MPICH replaces an algorithm that does not support a call by another one; with `strict`, MPICH fails instead.
        Collectives that MPICH itself calls on parts of the communicator need the replacement.
        """
        reactions = self._variables.list_values(_FALLBACK)
        values = {_FALLBACK: reactions["error" if strict else "silent"]}
        with self._variables.change(values | dict(engine.variables)):
            yield


class NcclAlgorithms:
    """Forces the algorithms and protocols of NCCL, each by a torch process group of its own.

    The constructor and `list_engines` are collective over `world`. The constructor raises UnavailableError if torch,
    NCCL or a GPU per rank is missing.
    """

    buffer = "cuda"

    def __init__(self, world: MPI.Intracomm) -> None:
        self._world, self._default = world, TorchEngine(world, NCCL)
        self._engines: dict[LibraryAlgorithm, TorchEngine] = {}

    def list_engines(self, operation: Operation) -> list[ForcedEngine]:
        """Return an engine per algorithm and protocol of an operation, first one that lets NCCL select. Collective."""
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

    @contextmanager
    def force(self, engine: ForcedEngine, *, strict: bool = False) -> Iterator[None]:  # noqa: ARG002 - of a protocol
        """Return a context manager that does nothing, because the engine's communicator always runs its algorithm."""
        yield


def open_library(name: str, world: MPI.Intracomm) -> AlgorithmLibrary:
    """Return an object that forces the algorithms of the library `name`. Collective over `world`.

    `name` is `openmpi` or `mpich`, which must be the MPI library of this job, or `nccl`.

    Raises:
        UsageError: the environment already forces algorithms.
        UnavailableError: the job runs another library, or the library has no such variables.
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
