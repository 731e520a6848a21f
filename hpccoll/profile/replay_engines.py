"""The libraries that carry out the collectives of a replayed job: the MPI library, hpccoll, and Gloo through torch.

Arrays have elements of float32; a recorded size is rounded up to whole elements, and to whole blocks of all ranks.
"""

from __future__ import annotations

import os
from typing import Any, Final, Protocol

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpccoll.communicator import Communicator
from hpccoll.errors import UnavailableError, UnknownNameError
from hpccoll.profile.replay_steps import ReplayStep

ENGINES: Final = ("mpi", "hpccoll", "gloo")
ReplayArray = NDArray[np.float32]


class ReplayEngine(Protocol):
    """Carries out the collectives of a replay."""

    name: str

    def add_group(self, members: tuple[int, ...]) -> None:
        """Make the group of the next communicator; collective over the world."""

    def run(self, step: ReplayStep) -> None:
        """Carry out the collective of a step."""


def make_engine(name: str) -> ReplayEngine:
    """Return an engine by its name; collective.

    Raises:
        UnknownNameError: there is no such engine.
        UnavailableError: torch is not installed.
    """
    match name:
        case "mpi":
            return MpiReplay()
        case "hpccoll":
            return HpccollReplay()
        case "gloo":
            return GlooReplay()
    raise UnknownNameError("engine", name, list(ENGINES))


class _Buffers:
    """Arrays that are used again for the same size."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[int, int], ReplayArray] = {}

    def get(self, elements: int, which: int = 0) -> ReplayArray:
        """Return an array; arrays with different `which` are different."""
        key = elements, which
        if key not in self._arrays:
            self._arrays[key] = np.zeros(elements, np.float32)
        return self._arrays[key]


def count_elements(step: ReplayStep, ranks: int) -> int:
    """Return the elements of a rank's vector or, if blocks of all ranks make it up, of one block."""
    is_whole = step.operation in ("all_to_all", "reduce_scatter")
    return max(-(-step.nbytes // (4 * ranks if is_whole else 4)), 1)


class MpiReplay:
    """The collectives of the MPI library, by mpi4py."""

    name = "mpi"

    def __init__(self) -> None:
        self._groups: list[MPI.Intracomm | None] = []
        self._buffers = _Buffers()

    def add_group(self, members: tuple[int, ...]) -> None:
        """Make the group of the next communicator."""
        self._groups.append(_make_comm(members))

    def run(self, step: ReplayStep) -> None:
        """Carry out the collective of a step."""
        comm = _require_group(self._groups, step)
        n, count, root = comm.size, count_elements(step, comm.size), step.root
        one, all_blocks = self._buffers.get(count), self._buffers.get(n * count, 1)
        match step.operation:
            case "all_reduce":
                comm.Allreduce(MPI.IN_PLACE, one)
            case "broadcast":
                comm.Bcast(one, root)
            case "reduce":
                comm.Reduce(one, self._buffers.get(count, 1), MPI.SUM, root)
            case "all_gather":
                comm.Allgather(one, all_blocks)
            case "gather":
                comm.Gather(one, all_blocks, root)
            case "scatter":
                comm.Scatter(all_blocks, one, root)
            case "all_to_all":
                comm.Alltoall(all_blocks, self._buffers.get(n * count, 2))
            case "reduce_scatter":
                comm.Reduce_scatter_block(all_blocks, one)
            case _:
                comm.Barrier()


class HpccollReplay:
    """The collectives of hpccoll, with the algorithms that it selects."""

    name = "hpccoll"

    def __init__(self) -> None:
        self._groups: list[Communicator | None] = []
        self._buffers = _Buffers()

    def add_group(self, members: tuple[int, ...]) -> None:
        """Make the group of the next communicator."""
        comm = _make_comm(members)
        self._groups.append(None if comm is None else Communicator(comm))

    def run(self, step: ReplayStep) -> None:
        """Carry out the collective of a step."""
        comm = _require_group(self._groups, step)
        n, count, root = comm.size, count_elements(step, comm.size), step.root
        one, all_blocks = self._buffers.get(count), self._buffers.get(n * count, 1)
        match step.operation:
            case "all_reduce":
                comm.all_reduce(one)
            case "broadcast":
                comm.broadcast(one, root)
            case "reduce":
                comm.reduce(one, root=root)
            case "all_gather":
                comm.all_gather(one, out=all_blocks)
            case "gather":
                comm.gather(one, out=all_blocks if comm.rank == root else None, root=root)
            case "scatter":
                comm.scatter(all_blocks if comm.rank == root else None, out=one, root=root)
            case "all_to_all":
                comm.all_to_all(all_blocks, out=self._buffers.get(n * count, 2))
            case "reduce_scatter":
                comm.reduce_scatter(all_blocks, out=one)
            case _:
                comm.barrier()


class GlooReplay:
    """The collectives of Gloo, through torch.distributed."""

    name = "gloo"

    def __init__(self) -> None:
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            raise UnavailableError("--engine gloo needs torch, which is not installed: pip install torch") from error
        self._torch, self._dist = torch, dist
        self._groups: list[Any] = []
        self._buffers = _Buffers()
        world = MPI.COMM_WORLD
        if not dist.is_initialized():
            store = _make_store(dist, world)
            dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)

    def add_group(self, members: tuple[int, ...]) -> None:
        """Make the group of the next communicator."""
        self._groups.append(self._dist.new_group(list(members), backend="gloo") if members else None)

    def run(self, step: ReplayStep) -> None:
        """Carry out the collective of a step."""
        group, dist = _require_group(self._groups, step), self._dist
        n = dist.get_world_size(group)
        count, root = count_elements(step, n), dist.get_global_rank(group, step.root)
        one = self._torch.from_numpy(self._buffers.get(count))
        blocks = self._torch.from_numpy(self._buffers.get(n * count, 1))
        is_root = dist.get_rank() == root
        match step.operation:
            case "all_reduce":
                dist.all_reduce(one, group=group)
            case "broadcast":
                dist.broadcast(one, root, group=group)
            case "reduce":
                dist.reduce(one, root, group=group)
            case "all_gather":
                dist.all_gather_into_tensor(blocks, one, group=group)
            case "gather":
                dist.gather(one, list(blocks.chunk(n)) if is_root else None, root, group=group)
            case "scatter":
                dist.scatter(one, list(blocks.chunk(n)) if is_root else None, root, group=group)
            case "all_to_all":
                received = self._torch.from_numpy(self._buffers.get(n * count, 2))
                dist.all_to_all_single(received, blocks, group=group)
            case "reduce_scatter":
                dist.reduce_scatter_tensor(one, blocks, group=group)
            case _:
                dist.barrier(group=group)


def _make_store(dist: Any, world: MPI.Intracomm) -> Any:
    """Return a store of torch.distributed that rank 0 serves at a free port."""
    store = (
        dist.TCPStore(os.uname().nodename, 0, world.size, is_master=True, wait_for_workers=False)
        if not world.rank
        else None
    )
    host, port = world.bcast((os.uname().nodename, store.port) if store is not None else None)
    return store or dist.TCPStore(host, port, world.size, is_master=False)


def _make_comm(members: tuple[int, ...]) -> MPI.Intracomm | None:
    """Return a communicator of ranks of the world; None on other ranks. Collective over `members`."""
    world = MPI.COMM_WORLD
    if world.rank not in members:
        return None
    group = world.Get_group().Incl(list(members))
    return world.Create_group(group)


def _require_group(groups: list[Any], step: ReplayStep) -> Any:
    """Return the group of a step."""
    group = groups[step.comm]
    if group is None:
        raise RuntimeError(f"a replayed {step.operation} is on a communicator that does not contain this rank")
    return group
