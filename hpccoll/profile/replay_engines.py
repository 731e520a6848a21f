"""Carries out the collectives of a replayed job by the MPI library, by hpccoll, or by Gloo through torch.

Arrays have elements of float32; a recorded size is rounded up to whole elements, and to whole blocks of all ranks.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from mpi4py import MPI

from hpccoll.algorithms import get_algorithm
from hpccoll.arrays import BoundCall
from hpccoll.communicator import Communicator
from hpccoll.errors import UnknownNameError
from hpccoll.peers import LibraryEngine, start_engine
from hpccoll.plan import Operation
from hpccoll.profile.replay_steps import ReplayStep

OWN: Final = "hpccoll"
ENGINES: Final = ("mpi", OWN, "gloo")
NAMED: Final = "OPERATION/ALGORITHM"
_WHOLE_IS_SOURCE: Final = (Operation.SCATTER, Operation.REDUCE_SCATTER)


class ReplayEngine:
    """Carries out the collectives of a replayed job by one library, which is started on each recorded communicator.

    Args:
        name: one of `ENGINES`. The engine `hpccoll` uses the algorithms that its selector chooses. OPERATION/ALGORITHM,
            such as `all_reduce/ring`, stands for hpccoll with this algorithm for this operation.

    Raises:
        UnknownNameError: there is no such engine, operation or algorithm.
    """

    def __init__(self, name: str) -> None:
        operation, slash, algorithm = name.partition("/")
        if not slash and name not in ENGINES:
            raise UnknownNameError("engine", name, [*ENGINES, NAMED])
        self._algorithms = {Operation.from_name(operation): algorithm} if slash else {}
        named = [f"{chosen.value}/{algorithm}" for chosen in self._algorithms]
        self.name, self._library = named[0] if named else name, OWN if slash else name
        for chosen in self._algorithms:
            get_algorithm(chosen, algorithm)
        self._groups: list[Communicator | LibraryEngine | None] = []
        self._ranks: list[int] = []  # this process's rank in each group; -1: not a member
        self._sizes: list[int] = []
        self._calls: dict[tuple[int, str, int, int], BoundCall] = {}

    def add_group(self, members: tuple[int, ...]) -> None:
        """Start the library on the ranks `members` of the world, the next recorded communicator. Collective over them.

        Raises:
            UnavailableError: the library cannot run on some rank.
        """
        group = None
        comm = _make_comm(members)
        if comm is not None:
            group = Communicator(comm) if self._library == OWN else start_engine(self._library, comm)
        self._groups.append(group)
        self._ranks.append(-1 if comm is None else comm.rank)
        self._sizes.append(len(members))

    def run(self, step: ReplayStep) -> None:
        """Carry out the collective of a step on buffers that equal steps share. Collective over the step's ranks."""
        key = step.comm, step.operation, step.nbytes, step.root
        if key not in self._calls:
            self._calls[key] = self._bind(step)
        self._calls[key]()

    def close(self) -> None:
        """Free the groups. Collective."""
        self._calls.clear()
        for group in self._groups:
            if group is not None:
                group.close()

    def _bind(self, step: ReplayStep) -> BoundCall:
        """Return a function without arguments that carries out the collective of a step on new buffers."""
        operation, group, size = Operation(step.operation), self._groups[step.comm], self._sizes[step.comm]
        if group is None:
            raise RuntimeError(f"a replayed {step.operation} is on a communicator that does not contain this rank")
        count = count_elements(step, size)
        source = result = np.zeros(count, np.float32)
        if operation is Operation.ALL_TO_ALL:
            source, result = (np.zeros(size * count, np.float32) for _ in range(2))
        elif operation in _WHOLE_IS_SOURCE:
            source = np.zeros(size * count, np.float32)
        elif operation.has_blocks:
            result = np.zeros(size * count, np.float32)
        if not isinstance(group, Communicator):
            return group.prepare(operation, source, result, "sum", step.root)
        method = partial(getattr(group, operation.value), algorithm=self._algorithms.get(operation, "auto"))
        if operation is Operation.BARRIER:
            return method
        root = {"root": step.root} if operation.has_root else {}
        if source is result:
            return partial(method, source, **root)
        is_root = self._ranks[step.comm] == step.root
        has_source = operation is not Operation.SCATTER or is_root
        has_result = operation is not Operation.GATHER or is_root
        return partial(method, source if has_source else None, out=result if has_result else None, **root)


def count_elements(step: ReplayStep, ranks: int) -> int:
    """Return the number of float32 elements for a step on `ranks` ranks: at least 1, rounded up.

    The elements are those of a rank's vector, or of one block if the recorded buffer has a block per rank.
    """
    is_whole = step.operation in ("all_to_all", "reduce_scatter")
    return max(-(-step.nbytes // (4 * ranks if is_whole else 4)), 1)


def _make_comm(members: tuple[int, ...]) -> MPI.Intracomm | None:
    """Return a communicator of the ranks `members` of the world; None on other ranks. Collective over `members`."""
    world = MPI.COMM_WORLD
    if world.rank not in members:
        return None
    group = world.Get_group().Incl(list(members))
    return world.Create_group(group)
