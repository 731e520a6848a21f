"""The compared barriers: hpccoll's plans, the MPI library's own barriers, one-element all-reduces, Gloo and NCCL.

An all-reduce of one element is a barrier, too: no rank can have the sum before every rank has contributed. Libraries
without a barrier of their own, such as NCCL, implement a barrier by an all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hpccoll.algorithms import get_algorithm, list_algorithm_names
from hpccoll.errors import UsageError
from hpccoll.plan import Operation, Plan
from hpccoll.runtime.job import has_persistent_collectives

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.communicator import Communicator
    from hpccoll.peers import LibraryEngine

OWN, LIBRARY = "hpccoll", "mpi"
ONE_ELEMENT = "all_reduce_1"  # an all-reduce of one element
PERSISTENT = "persistent_barrier"
LIBRARY_BARRIERS = ("barrier", "ibarrier", PERSISTENT, ONE_ELEMENT)


def _free_nothing() -> None:
    """Do nothing: the default of `BarrierCall.free`, because most barriers of other libraries hold no resources."""


@dataclass(frozen=True, slots=True)
class BarrierCall:
    """One barrier to measure, of hpccoll or another library: functions that run and free it, and its plan, if any."""

    engine: str
    algorithm: str
    call: Callable[[], object]  # runs the barrier
    free: Callable[[], object] = _free_nothing  # frees the barrier's resources; collective
    plan: Plan | None = None  # the plan that runs; None for barriers of other libraries and for all-reduces

    @property
    def name(self) -> str:
        """The engine and the algorithm, such as `hpccoll/tree` or `mpi/ibarrier`."""
        return f"{self.engine}/{self.algorithm}"


def list_barrier_names(engine: str) -> list[str]:
    """Return the names of an engine's barriers, as in the option --algorithm, such as `tree` of `hpccoll`."""
    if engine == OWN:
        return [*list_algorithm_names(Operation.BARRIER), ONE_ELEMENT]
    return list(LIBRARY_BARRIERS) if engine == LIBRARY else ["barrier"]


def prepare_barriers(
    comm: Communicator, world: MPI.Intracomm, engines: Sequence[str], peers: Sequence[LibraryEngine], names: set[str]
) -> tuple[list[BarrierCall], list[str]]:
    """Prepare all barriers of `engines` whose algorithm is in `names` (all if `names` is empty).

    Collective over `comm`, which has the ranks of `world`. Returns the barriers that can run, and a sentence with the
    reason for each barrier that cannot run. All ranks get the same barriers and reasons.

    Args:
        comm: the communicator on which hpccoll's barriers run.
        world: the MPI communicator on which the MPI library's barriers run.
        engines: names of engines; only `hpccoll` and `mpi` have an effect, because `peers` has the others.
        peers: the other engines (Gloo, NCCL), already started.
        names: names of barriers, as `list_barrier_names` returns them.
    """
    makers: list[tuple[str, str, Callable[[], BarrierCall]]] = []
    if OWN in engines:
        makers += [(OWN, name, partial(_prepare_own, comm, name)) for name in list_barrier_names(OWN)]
    if LIBRARY in engines:
        makers += [(LIBRARY, name, partial(_prepare_library, world, name)) for name in LIBRARY_BARRIERS]
    makers += [(peer.name, "barrier", partial(_prepare_peer, peer)) for peer in peers]
    ready, refused = [], []
    for engine, name, make in makers:
        if names and name not in names:
            continue
        try:
            ready.append(make())
        except UsageError as error:
            refused.append(f"{engine}/{name}: {error}")
    return ready, refused


def _prepare_own(comm: Communicator, name: str) -> BarrierCall:
    """Return the barrier of hpccoll's algorithm `name`, or hpccoll's all-reduce of one element. Collective."""
    if name == ONE_ELEMENT:
        run = comm.prepare(Operation.ALL_REDUCE, np.zeros(1), algorithm="auto")
        return BarrierCall(OWN, name, run, run.free)
    run = comm.prepare(Operation.BARRIER, None, algorithm=get_algorithm(Operation.BARRIER, name).name)
    return BarrierCall(OWN, name, run, run.free, run.plan)


def _prepare_library(world: MPI.Intracomm, name: str) -> BarrierCall:
    """Return the barrier `name` of the MPI library, one of LIBRARY_BARRIERS. Collective.

    Raises UsageError if the library or mpi4py lacks the barrier.
    """
    if name == "ibarrier":
        return BarrierCall(LIBRARY, name, lambda: world.Ibarrier().Wait())
    if name == ONE_ELEMENT:
        one, total = np.zeros(1), np.zeros(1)
        return BarrierCall(LIBRARY, name, partial(world.Allreduce, one, total))
    if name != PERSISTENT:
        return BarrierCall(LIBRARY, name, world.Barrier)
    if not has_persistent_collectives():
        raise UsageError("this MPI library has no MPI_Barrier_init, which is part of MPI 4.0")
    request = world.Barrier_init()

    def run() -> None:
        """Start the persistent barrier of the MPI library, and wait for its end."""
        request.Start()
        request.Wait()

    return BarrierCall(LIBRARY, name, run, request.Free)


def _prepare_peer(peer: LibraryEngine) -> BarrierCall:
    """Return the barrier of another library, Gloo or NCCL."""
    return BarrierCall(peer.name, "barrier", peer.prepare(Operation.BARRIER, None, None, "sum", 0))
