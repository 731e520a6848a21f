"""What carries out a job: what was asked for, or what `auto` takes, told in the log."""

from __future__ import annotations

from dataclasses import replace

from mpi4py import MPI

from hpccoll.errors import UsageError
from hpccoll.plan import Operation
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.job import RankLayout, get_mpi_library
from hpccoll.runtime.messages.mpi_collectives import MpiCollectives
from hpccoll.runtime.shared_memory.node import Node
from hpccoll.selection import BufferKind, Selection, SelectionQuery, Selector, choose_chunk_count
from hpccoll.selection.selector import open_selection_log
from hpccoll.selection.tuning_files import load_tuning_table


class Decider:
    """Decides for one communicator.

    Args:
        comm: all ranks; collective over it.
        layout: where they run.
        node: the ranks of this node, whose symmetric buffers are known there.
        library: the MPI library's own collectives.
    """

    def __init__(self, comm: MPI.Intracomm, layout: RankLayout, node: Node, library: MpiCollectives) -> None:
        self._ranks, self._node, self._library = comm.size, node, library
        table = load_tuning_table(
            comm,
            get_mpi_library(),
            layout.ranks_per_node,
            oversubscribed=layout.oversubscribed,
            whole_job=comm.size == MPI.COMM_WORLD.size,
        )
        self._selector = Selector(comm.size, layout.nodes, table)
        self._log = open_selection_log(comm.rank, comm.size)

    def choose(self, job: CollectiveCall) -> Selection:
        """Return what carries out a job: the algorithm, None for the MPI library's own; in how many chunks; and why.

        Raises:
            UsageError: the library was asked for, and its result is not what hpccoll promises.
        """
        nbytes = job.count * job.dtype.itemsize * (self._ranks if job.operation.has_blocks else 1)
        if job.library:
            if not self._library.can_run(job):
                raise UsageError(
                    f"the MPI library's own {job.operation.value} does not mean the same for {job.dtype.name} and "
                    f"{job.reduction.name} here; choose an algorithm by name, or auto"
                )
            choice = Selection(None, 1, "asked for")
        elif job.algorithm is not None:
            choice = Selection(job.algorithm, choose_chunk_count(job.algorithm, self._ranks, nbytes), "asked for")
        else:
            shared = not self._node.problem and not job.module.on_device
            question = SelectionQuery(
                job.operation,
                nbytes,
                job.dtype.itemsize,
                memory_of(job, self._node),
                self._library.can_run(job),
                shared,
            )
            choice = self._selector.select(question)
            if self._log is not None:
                self._log(question, choice, job.dtype.name, job.reduction.name)
        if choice.chunks <= max(job.count, 1):
            return choice
        return replace(choice, chunks=max(job.count, 1))


def memory_of(job: CollectiveCall, node: Node) -> BufferKind:
    """Return where the buffers of a job are that every rank has: those that only the root has decide nothing."""
    if job.module.on_device:
        return BufferKind.CUDA
    buffers = [job.source] if job.operation not in (Operation.BROADCAST, Operation.SCATTER) else []
    buffers += [job.result] if job.operation not in (Operation.REDUCE, Operation.GATHER) else []
    symmetric = [node.symmetric.find(each.address, each.nbytes) for each in buffers if each and each.nbytes]
    return BufferKind.SYMMETRIC if symmetric and all(symmetric) else BufferKind.HOST
