"""Prepares contenders on the same buffers: hpccoll's algorithms, and the engines of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpccoll.errors import HpccollError, UsageError
from hpccoll.measure.data import Array, get_reduction_function
from hpccoll.measure.interleaved import Contender
from hpccoll.measure.workload import Workload
from hpccoll.plan import Operation, Plan, replay
from hpccoll.records import Staging

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator
    from hpccoll.peers import LibraryEngine

REPLAYED_BYTES = 64 * 1024  # larger results are compared with the reference only: replay runs all ranks serially


def prepare_own(comm: Communicator, workload: Workload, algorithm: str) -> Contender:
    """Return hpccoll with an algorithm (or `auto`) as a contender, prepared on the workload's buffers; collective."""
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
    contender = Contender("hpccoll", algorithm, executable, executable.free, staging)
    # `auto` may select the MPI library's own collective, which has no plan to replay.
    if executable.plan is not None and task.count * task.dtype.itemsize * task.ranks <= REPLAYED_BYTES:
        contender.oracle = _oracle(executable.plan, workload)
    return contender


def _oracle(plan: Plan, workload: Workload) -> Callable[[], Array]:
    task = workload.task

    def play() -> Array:
        combine = get_reduction_function(task.redop) if task.operation.reduces else None
        result = replay(plan, task.count, workload.inputs, combine)[task.rank]
        return np.divide(result, result.dtype.type(task.ranks)) if task.redop == "avg" else result

    return play


def prepare_peer(peer: LibraryEngine, workload: Workload) -> Contender:
    """Return a peer, prepared on the workload's buffers.

    Raises:
        UsageError: the peer does not offer this operation, dtype or reduction.
    """
    task = workload.task
    call = peer.prepare(task.operation, workload.source, workload.result, task.redop, task.root)
    return Contender(peer.name, None, call, _nothing)


def _nothing() -> None:
    """Other engines hold no resources for a prepared call."""


def prepare_contenders(
    comm: Communicator, peers: Sequence[LibraryEngine], workload: Workload, algorithms: Sequence[str]
) -> tuple[list[Contender], list[str]]:
    """Return the contenders that can run here, and a reason for each that cannot; collective, the same on all ranks.

    Args:
        comm: hpccoll's communicator.
        peers: the other engines, started.
        workload: the buffers.
        algorithms: hpccoll's algorithms, none to leave hpccoll out.
    """
    ready: list[Contender] = []
    refused: list[str] = []
    for algorithm in algorithms:
        try:
            ready.append(prepare_own(comm, workload, algorithm))
        except UsageError as error:  # on every rank: this memory cannot be shared, say
            refused.append(f"hpccoll {algorithm}: {error}")
    for peer in peers:
        try:
            ready.append(prepare_peer(peer, workload))
        except UsageError as error:
            refused.append(f"{peer.name}: {error}")
        except HpccollError as error:
            raise UsageError(f"{peer.name}: {error}") from error
    return ready, refused
