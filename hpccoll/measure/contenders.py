"""Prepares calls of hpccoll's algorithms and of other libraries on the same buffers, to be timed against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpccoll.errors import HpccollError, UsageError
from hpccoll.measure.data import HostArray, get_reduction_function
from hpccoll.measure.interleaved import Contender
from hpccoll.measure.workload import Workload
from hpccoll.plan import Operation, Plan, replay
from hpccoll.records import Staging
from hpccoll.selection import MPI_LIBRARY

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator
    from hpccoll.peers import LibraryEngine

# Only results of at most this size (over all ranks) are compared with a serial replay of the plan: replays are slow.
REPLAYED_BYTES = 64 * 1024
AUTO = "auto"
OWN = "hpccoll"  # the engine of hpccoll's own algorithms


def prepare_own(comm: Communicator, workload: Workload, algorithm: str) -> Contender:
    """Return a `Contender`: an algorithm of hpccoll, or `auto`, bound to a benchmark's buffers. Collective."""
    task = workload.task
    x, out = workload.source, workload.result
    if task.operation is Operation.BROADCAST:
        x, out = out, None
    elif out is x and task.operation is not Operation.ALL_TO_ALL:
        out = None
    executable = comm.prepare(task.operation, x, out=out, op=task.redop, root=task.root, algorithm=algorithm)
    staging: Staging = None
    if workload.module.on_device:
        staging = "pinned" if comm.stages(workload.module) else "direct"
    contender = Contender(OWN, algorithm, executable, executable.free, staging)
    plan = executable.plan  # None: `auto` selected the MPI library's own collective, which has no plan to replay
    if algorithm == AUTO:
        contender.selected = plan.algorithm if plan is not None else MPI_LIBRARY
    if plan is not None and task.count * task.dtype.itemsize * task.ranks <= REPLAYED_BYTES:
        contender.oracle = _make_oracle(plan, workload)
    return contender


def _make_oracle(plan: Plan, workload: Workload) -> Callable[[], HostArray]:
    """Return a function that computes this rank's exact output, by running the plan of all ranks in this process."""
    task = workload.task

    def replay_plan() -> HostArray:
        combine = get_reduction_function(task.redop) if task.operation.reduces else None
        result = replay(plan, task.count, workload.make_inputs(), combine)[task.rank]
        return np.divide(result, result.dtype.type(task.ranks)) if task.redop == "avg" else result

    return replay_plan


def prepare_peer(peer: LibraryEngine, workload: Workload) -> Contender:
    """Return a `Contender`: another library's collective, bound to a benchmark's buffers.

    Raises UsageError if the library lacks the operation, dtype or reduction.
    """
    task = workload.task
    call = peer.prepare(task.operation, workload.source, workload.result, task.redop, task.root)
    wake_threads = None
    if peer.works_in_threads and not workload.module.on_device:
        wake_threads = peer.prepare(Operation.BARRIER, None, None, task.redop, task.root)
    # Prepared calls of other libraries hold no resources, so there is nothing to free.
    return Contender(
        peer.name, None, call, lambda: None, works_in_threads=peer.works_in_threads, wake_threads=wake_threads
    )


def prepare_contenders(
    comm: Communicator, peers: Sequence[LibraryEngine], workload: Workload, algorithms: Sequence[str]
) -> tuple[list[Contender], list[str]]:
    """Bind algorithms of hpccoll and other libraries to the buffers of one benchmark. Collective over `comm`.

    Args:
        peers: the other libraries, already started.
        workload: the operation with its buffers.
        algorithms: names of hpccoll's algorithms, or `auto`.

    Returns:
        The bound calls, and a sentence for each algorithm or library that cannot run the operation; equal on all ranks.
    """
    ready: list[Contender] = []
    refused: list[str] = []
    for algorithm in algorithms:
        try:
            ready.append(prepare_own(comm, workload, algorithm))
        except UsageError as error:  # on every rank, for instance if the algorithm needs shared memory
            refused.append(f"hpccoll {algorithm}: {error}")
    for peer in peers:
        try:
            ready.append(prepare_peer(peer, workload))
        except UsageError as error:
            refused.append(f"{peer.name}: {error}")
        except HpccollError as error:
            raise UsageError(f"{peer.name}: {error}") from error
    return ready, refused
