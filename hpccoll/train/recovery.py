"""The state with which the survivors of a training run continue, put together from the copies in their memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch

from hpccoll.parallel.mesh import Mesh
from hpccoll.records import AllocatedBytes, TrainStepRecord
from hpccoll.train import full_parameters
from hpccoll.train.model import make_model
from hpccoll.train.options import TrainOptions
from hpccoll.train.rank_layers import TrainedModel
from hpccoll.train.shards import ParameterShard
from hpccoll.train.start import TrainingStart, broadcast_start
from hpccoll.train.state_copies import CopyKey, FlatState, StateCopy

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator

RECOVERY_TAG: Final = 5


@dataclass(frozen=True, slots=True)
class SurvivorReport:
    """A rank's report to the others before a recovery; the defaults are those of a rank that has not trained.

    Attributes:
        steps: the number of steps whose records this rank has; -1 before the first mesh.
        record: the record of the last of the `steps` steps.
        generation: the number of recoveries so far; -1 before the first mesh.
        copies: by `CopyKey` of a copy, the ranks of the old mesh whose states this rank holds.
        lost_ranks, lost_hosts: the dead ranks of the old mesh, and their hosts.
        allocated_bytes: the bytes of tensors in the first step; None if the first step has not been completed.
    """

    steps: int = -1
    record: TrainStepRecord | None = None
    generation: int = -1
    copies: Mapping[CopyKey, Sequence[int]] = field(default_factory=dict)
    lost_ranks: tuple[int, ...] = ()
    lost_hosts: tuple[str, ...] = ()
    allocated_bytes: AllocatedBytes | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """The state from which the ranks continue.

    Attributes:
        start: the state, or None if no complete copy is left.
        kept: this rank's copy of the state; None if the rank has none.
        reports: the reports of the ranks that have trained; empty on the first mesh. The reports of ranks that have
            done exactly the steps of `start` come first.
    """

    start: TrainingStart | None
    kept: StateCopy | None
    reports: Sequence[SurvivorReport]
    generation: int


def choose_copy(reports: Sequence[SurvivorReport], options: TrainOptions) -> tuple[CopyKey, dict[int, int]] | None:
    """Return the key and the holders of the latest copy of the training state that the survivors hold completely.

    `reports` has the report of each surviving rank. The holders map each rank of the old mesh whose state is needed to
    the new rank that holds this state. The result is None if no copy is complete. A copy after a step is used only if a
    survivor has the record of the step, because otherwise some ranks may not have made this copy.
    """
    holders: dict[CopyKey, dict[int, int]] = {}
    for new, report in enumerate(reports):
        for key, ranks in report.copies.items():
            for old in ranks:
                holders.setdefault(key, {}).setdefault(old, new)
    steps = max((report.steps for report in reports), default=-1)
    for key in sorted((key for key in holders if key.step <= steps), key=lambda key: key[:2], reverse=True):
        sources = _find_sources(key.mesh, holders[key], options)
        if sources is not None:
            return key, sources
    return None


def _find_sources(mesh: Mesh, holders: Mapping[int, int], options: TrainOptions) -> dict[int, int] | None:
    """Return one entry of `holders` for each group of ranks with equal states; None if a group has no entry.

    `holders` maps ranks of the old mesh `mesh` to the new ranks that hold their states.
    """
    axes, sources = options.get_state_replicas(mesh), dict[int, int]()
    for group in {tuple(mesh.get_group_ranks(rank, *axes)) for rank in range(mesh.ranks)}:
        held = [rank for rank in group if rank in holders]
        if not held:
            return None
        first = min(held, key=lambda rank: holders[rank])
        sources[first] = holders[first]
    return sources


def recover(comm: Communicator, options: TrainOptions, report: SurvivorReport, copies: Sequence[StateCopy]) -> Recovery:
    """Return the `Recovery` with the state from which the ranks of `comm` continue after a death; collective.

    Cost: rank 0 receives the states that it does not hold, and broadcasts the full parameters and optimizer state.
    """
    reports: list[SurvivorReport] = comm.all_gather_object(report)
    trained = [report for report in reports if report.generation >= 0]
    generation = max(report.generation for report in reports) + 1
    chosen = choose_copy(reports, options)
    if chosen is None:
        return Recovery(None, None, trained, generation)
    key, sources = chosen
    trained.sort(key=lambda report: report.steps != key.step)
    kept = next((copy for copy in copies if copy.key == key), None)
    states = _gather_states(comm, kept, sources, getattr(torch, options.dtype))
    model, names = make_model(options.model), ("", *options.optimizer.state_names)
    full = None if comm.rank else assemble_state(model, key.mesh, states, names)
    start = broadcast_start(comm, options, key.step, key.samples, full, resumed=False)
    return Recovery(start, kept, trained, generation)


def _gather_states(
    comm: Communicator, kept: StateCopy | None, sources: Mapping[int, int], dtype: Any
) -> dict[int, FlatState]:
    """Return, on rank 0, the states of ranks of the old mesh by rank; collective over `comm`.

    Other ranks return only the states that they send. `kept` is the copy on this rank, if any, and `sources` has the
    rank of `comm` that holds the state of each old rank.
    """
    states: dict[int, FlatState] = {}
    for old, holder in sorted(sources.items()):
        if comm.rank == holder:
            assert kept is not None  # noqa: S101 - this rank has reported the copy
            states[old] = state = kept.by_rank[old]
            if holder:
                comm.send_object((state.pieces, len(state.flat)), 0, RECOVERY_TAG)
                comm.send(state.flat.cpu(), 0, RECOVERY_TAG)
        elif comm.rank == 0:
            pieces, count = comm.recv_object(holder, RECOVERY_TAG)
            states[old] = FlatState(pieces, comm.recv(torch.empty(count, dtype=dtype), holder, RECOVERY_TAG))
    return states


def assemble_state(
    model: TrainedModel[Any], mesh: Mesh, states: Mapping[int, FlatState], names: Sequence[str]
) -> dict[str, Any]:
    """Return the full parameters and optimizer states by name (`join_name`), from the states of ranks of a mesh.

    Args:
        mesh: the mesh whose ranks had the states.
        states: the states by rank of `mesh`; of each group of ranks with equal states, one state suffices.
        names: the names of the parts of a state in order: empty for the parameters, then those of optimizer states.
    """
    full: dict[str, Any] = {}
    for index, name in enumerate(names):
        shards: dict[tuple[str, str], tuple[ParameterShard, Any]] = {}  # by name and position
        for rank, state in states.items():
            part = state.flat.cpu().chunk(len(names))[index]
            own = model.list_shards(mesh, rank)
            for piece in state.pieces:
                shard = own[piece.shard]
                _, values = shards.setdefault((shard.name, str(shard.slices)), (shard, part.new_empty(shard.count)))
                values[piece.begin : piece.begin + piece.elements] = part[piece.offset : piece.offset + piece.elements]
        for shard, values in shards.values():
            key = full_parameters.join_name(name, shard.name)
            full.setdefault(key, values.new_empty(shard.full_shape))[shard.slices] = values.view(shard.shape)
    return full
