"""Binds collectives by loads and stores: within the one node that there is, or within nodes and across them."""

from __future__ import annotations

from collections.abc import Callable, Sized
from functools import partial
from typing import NoReturn, Protocol

from mpi4py import MPI

from hpccoll.algorithms.registry import Algorithm
from hpccoll.errors import MismatchError, UsageError
from hpccoll.runtime.arrays import BoundCall, ScratchPool
from hpccoll.runtime.collective_call import CollectiveCall, bind_epilogue, bind_prologue
from hpccoll.runtime.cuda.executable import DeviceExecutable, bound_in
from hpccoll.runtime.hierarchical.executable import Crossing, MixedExecutable
from hpccoll.runtime.lowering import Program
from hpccoll.runtime.shared_memory.executable import NodeExecutable
from hpccoll.runtime.shared_memory.node import Node
from hpccoll.runtime.shared_memory.task import Task

FACTS_TAG = 8191
_NAMES = ("operation", "algorithm", "chunks", "root", "count", "dtype", "reduction", "memory")


class Programs(Protocol):
    """Gives the lowered plan of a job; see `Engine.program`."""

    def __call__(
        self,
        job: CollectiveCall,
        algorithm: Algorithm,
        chunks: int,
        in_place: bool,
        *,
        staged: bool = False,
        sizes: tuple[int, ...] | None = None,
    ) -> Program:
        """See there."""


class Binder:
    """Binds for one communicator.

    Args:
        comm: all ranks.
        node: those of this rank's node.
        nodes: the ranks of each node.
        programs: lowers plans.
        scratch: memory of blocking operations.
        under_way: the asynchronous operations of the communicator.
        progress: carries those on.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        node: Node,
        nodes: tuple[tuple[int, ...], ...],
        programs: Programs,
        scratch: ScratchPool,
        under_way: Sized,
        progress: Callable[[], object],
    ) -> None:
        self._comm, self._node, self._nodes, self._programs, self._scratch = comm, node, nodes, programs, scratch
        self._under_way, self._progress = under_way, progress

    def begin(self, job: CollectiveCall, algorithm: Algorithm) -> Crossing | None:
        """Begin a job that sends messages between nodes; carry out any other here and now, and return None.

        Loads and stores are work for this core, which nobody else could do.
        """
        executable = self.bind(job, algorithm, 1, ScratchPool())
        if isinstance(executable, MixedExecutable):
            return executable.begin()
        executable()
        return None

    def bind(
        self, job: CollectiveCall, algorithm: Algorithm, chunks: int, scratch: ScratchPool | None = None
    ) -> NodeExecutable | DeviceExecutable | MixedExecutable:
        """Bind a job to its buffers; `scratch` is the communicator's where none is given.

        Raises:
            UnavailableError: memory cannot be shared.
            UsageError: there are several nodes, and the algorithm is for one, or the memory a device's.
        """
        mixed = algorithm.is_hybrid and len(self._nodes) > 1
        if mixed:
            self._require_host(job, algorithm)
        else:
            self._node.require(algorithm.full_name, len(self._nodes))
        job, before, in_place = bind_prologue(job, self._comm.rank)
        lowered = partial(self._programs, job, algorithm, chunks, in_place)
        task = self._task(job, algorithm, chunks, lowered, before, scratch or self._scratch)
        disagree = partial(self._disagree, task.facts)
        executable: NodeExecutable | DeviceExecutable | MixedExecutable
        if mixed:
            executable = MixedExecutable(
                self._node, task, lowered, self._comm, disagree, self._under_way, self._progress
            )
        else:
            executable = bound_in(self._node, task, disagree)
        self._node.symmetric.uses(executable, job.source, job.result)
        return executable

    def _task(
        self,
        job: CollectiveCall,
        algorithm: Algorithm,
        chunks: int,
        lowered: Callable[..., Program],
        before: tuple[BoundCall, ...],
        scratch: ScratchPool,
    ) -> Task:
        called = (job.operation.value, algorithm.name, chunks, job.root, job.count)
        facts = (*called, job.dtype.name, job.reduction.name, "device" if job.module.on_device else "host")
        return Task(
            algorithm.plan(self._comm.size, job.root, chunks, self._nodes),
            job.source,
            job.result,
            job.count,
            job.dtype,
            job.module,
            job.reduction.function,
            lambda sizes: lowered(staged=sizes is not None, sizes=sizes),
            partial(scratch.take, job.module, job.dtype),
            before,
            bind_epilogue(job, self._comm.size),
            facts,
        )

    def _require_host(self, job: CollectiveCall, algorithm: Algorithm) -> None:
        self._node.require_memory(algorithm.full_name)
        if job.module.on_device:
            raise UsageError(
                f"{algorithm.full_name} does not reach device memory on {len(self._nodes)} nodes; choose hierarchical "
                "or another algorithm of messages, or leave the choice to auto"
            )

    def _disagree(self, facts: tuple[object, ...]) -> NoReturn:
        """Say which ranks came to one meeting with different collectives; all ranks of the node get here."""
        told = {self._comm.rank: facts}
        news = [self._comm.isend(facts, rank, FACTS_TAG) for rank in self._node.others]
        told |= {rank: self._comm.recv(source=rank, tag=FACTS_TAG) for rank in self._node.others}
        for each in news:
            each.wait()
        differ = [at for at in range(len(_NAMES)) if len({each[at] for each in told.values()}) > 1]
        shown = "; ".join(
            f"rank {rank}: " + ", ".join(f"{_NAMES[at]} {each[at]}" for at in differ)
            for rank, each in sorted(told.items())
        )
        raise MismatchError(f"ranks called different collectives: {shown}; pass the same arguments on every rank")
