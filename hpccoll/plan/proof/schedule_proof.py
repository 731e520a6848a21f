"""The proof of pipeline schedules: no deadlock, complete gradients, matching messages, bounded activations.

The proof has four parts. First, each rank's program is read on its own: every pass exists once, after the passes and
receives that it needs. Second, any two ranks must list the messages between them in the same order, so that each
message finds its receive on a transport that keeps the order of messages, also where a send waits for its receive
(NCCL). Third, a run of all programs side by side finds circular waits; in this run, a wait for a send ends when the
other rank has started the receive. Fourth, the live micro-batches of each stage are compared with the stated number.

Cost: O(actions) time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from hpccoll.errors import DeadlockError, PlanError
from hpccoll.plan.proof.free_programs import find_cycle
from hpccoll.plan.schedule import (
    GIVES_INPUT_GRADIENT,
    GIVES_WEIGHT_GRADIENT,
    MESSAGES,
    OF_STAGE,
    PASSES,
    WAITS,
    ActionKind,
    PipelineAction,
    Schedule,
    format_step,
    list_actions,
)

_FORWARD, _BACKWARD = ActionKind.FORWARD, ActionKind.BACKWARD
_INPUT, _WEIGHT = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT
_NAMES = {
    ActionKind.FORWARD: "forward pass",
    ActionKind.BACKWARD: "backward pass",
    ActionKind.BACKWARD_INPUT: "backward pass for inputs",
    ActionKind.BACKWARD_WEIGHT: "backward pass for weights",
    ActionKind.SEND_F: "send of the output",
    ActionKind.RECV_F: "receive of the input",
    ActionKind.SEND_B: "send of the input's gradient",
    ActionKind.RECV_B: "receive of the output's gradient",
    ActionKind.UNSHARD: "gathering of the weights",
    ActionKind.RESHARD: "freeing of the gathered weights",
    ActionKind.REDUCE_GRAD: "sum of the gradients over ranks",
    ActionKind.WAIT_SEND_F: "wait for the send of the output",
    ActionKind.WAIT_SEND_B: "wait for the send of the input's gradient",
    ActionKind.WAIT_REDUCE_GRAD: "wait for the sum of the gradients",
}
_PEER_ACTION = {
    ActionKind.SEND_F: (ActionKind.RECV_F, 1),
    ActionKind.RECV_F: (ActionKind.SEND_F, -1),
    ActionKind.SEND_B: (ActionKind.RECV_B, -1),
    ActionKind.RECV_B: (ActionKind.SEND_B, 1),
}  # the action at a message's other end, and its stage number minus this end's
_MAY_REPEAT = frozenset({ActionKind.UNSHARD, ActionKind.RESHARD})
_AWAITED = {wait: kind for kind, wait in WAITS.items()}


@dataclass(frozen=True, slots=True)
class ScheduleProof:
    """The result of the proof of a pipeline schedule.

    A micro-batch is live from its forward pass to the end of its backward pass, while its activations are kept.

    Args:
        actions: the number of actions of all ranks: passes, sends, receives, waits and collectives.
        messages: the number of messages between ranks.
        activations: the largest number of live micro-batches of each stage.
        rank_activations: the largest number of live micro-batches of each rank, all its stages together.
    """

    actions: int
    messages: int
    activations: tuple[int, ...]
    rank_activations: tuple[int, ...]


def check_schedule(schedule: Schedule) -> ScheduleProof:
    """Prove that a schedule ends, computes every gradient once, and keeps at most the stated activations.

    Returns the proof with the counts of actions, messages and live micro-batches.

    In a schedule without messages, the result of a pass is assumed to be on the rank of the next stage immediately.

    Raises:
        DeadlockError: ranks wait for each other in a circle; the error text and `stuck` name their actions.
        PlanError: an action is missing, repeated, on the wrong rank or too early, the messages of two ranks are in
            different orders, or more micro-batches are live than stated. The error text names rank and action.
    """
    kinds = schedule.kinds
    for rank in range(schedule.ranks):
        _ProgramChecker(schedule, rank, kinds).check()
    _check_message_order(schedule)
    _check_circular_waits(schedule)
    activations, rank_activations = schedule.count_activations()
    for stage, (found, stated) in enumerate(zip(activations, schedule.activations or activations, strict=True)):
        if found > stated:
            raise _make_excess_error(schedule, stage, stated)
    actions = [action.kind for program in schedule.programs for _, action in list_actions(program)]
    messages = sum(kind in (ActionKind.SEND_F, ActionKind.SEND_B) for kind in actions)
    return ScheduleProof(len(actions), messages, activations, rank_activations)


def _describe(schedule: Schedule, rank: int, index: int) -> str:
    """Return the name of step `index` (from 0) of a rank's program for error messages, which number steps from 1."""
    return f"rank {rank}, action {index + 1} ({format_step(schedule.programs[rank][index])})"


class _ProgramChecker:
    """Checks the program (the list of steps) of one rank of a pipeline schedule, without those of other ranks.

    `kinds` are the kinds of actions that occur in the whole schedule.
    """

    def __init__(self, schedule: Schedule, rank: int, kinds: frozenset[ActionKind]) -> None:
        self.schedule, self.rank = schedule, rank
        self.reduces, self.shards = ActionKind.REDUCE_GRAD in kinds, not kinds.isdisjoint(_MAY_REPEAT)
        self.awaited = [kind for kind, wait in WAITS.items() if wait in kinds]  # kinds whose actions each need a wait
        self.done: dict[PipelineAction, int] = {}  # the actions of the steps before the current one, by step
        self.unsharded: set[int] = set()

    def check(self) -> None:
        """Raise PlanError at the first wrong action of the program, or at the first action that the program lacks."""
        for index, step in enumerate(self.schedule.programs[self.rank]):
            for position, action in enumerate(step):
                fault = self.find_fault(action)
                if len(step) > 1 and (action.kind not in PASSES or action in step[:position]):
                    fault = "only different passes can be computed at the same time; list this action on its own"
                if fault is not None:
                    raise PlanError(f"{_describe(self.schedule, self.rank, index)}: {fault}")
            for action in step:
                self.done[action] = index
        for missing in self.list_missing():
            raise PlanError(
                f"rank {self.rank}: {missing} is missing, the {_NAMES[missing.kind]} of stage {missing.stage}"
                + (f" for micro-batch {missing.microbatch}" if missing.microbatch >= 0 else "")
                + "; add it"
            )

    def find_fault(self, action: PipelineAction) -> str | None:
        """Return an error message if `action` is not allowed after the rank's earlier actions, else None."""
        kind, stage, microbatch = action
        schedule = self.schedule
        if not 0 <= stage < schedule.stages:
            return f"there is no stage {stage}; the stages are 0 to {schedule.stages - 1}"
        if schedule.stage_ranks[stage] != self.rank:
            return f"stage {stage} is on rank {schedule.stage_ranks[stage]}; move the action there"
        if kind not in OF_STAGE and not 0 <= microbatch < schedule.microbatches:
            return f"there is no micro-batch {microbatch}; the micro-batches are 0 to {schedule.microbatches - 1}"
        if kind in _MAY_REPEAT:
            return self.change_sharding(action)
        if action in self.done:
            return f"it repeats action {self.done[action] + 1}; remove one of them"
        return self.find_conflict(action) or self.find_missing_prerequisite(action)

    def find_conflict(self, action: PipelineAction) -> str | None:
        """Return an error message if `action` repeats or contradicts an earlier action, or belongs to another rank.

        The result is None if `action` has no such conflict.
        """
        kind, stage, microbatch = action
        if kind in GIVES_INPUT_GRADIENT | GIVES_WEIGHT_GRADIENT:
            others = (_INPUT, _WEIGHT) if kind == _BACKWARD else (_BACKWARD,)
            for other in (PipelineAction(other_kind, stage, microbatch) for other_kind in others):
                if other in self.done:
                    return f"action {self.done[other] + 1} ({other}) has computed this gradient; remove one of them"
        if kind in MESSAGES:
            if not self.schedule.has_messages:
                return "this schedule has no messages; remove it"
            peer = stage + _PEER_ACTION[kind][1]
            if not 0 <= peer < self.schedule.stages:
                return f"stage {stage} is the {'last' if stage else 'first'} one and has no such message; remove it"
            if self.schedule.share_rank(stage, peer):
                return f"stage {peer} is on the same rank, so no message is needed; remove it"
        if kind in PASSES and self.shards and stage not in self.unsharded:
            return f"the weights of stage {stage} are not gathered; put {stage}UNSHARD before it"
        if kind == ActionKind.REDUCE_GRAD:
            for wait in self.list_missing_waits(kind):
                return f"the sum of the gradients of stage {wait.stage} is not complete; put {wait} before it"
        return None

    def change_sharding(self, action: PipelineAction) -> str | None:
        """Apply an UNSHARD or RESHARD of a stage's weights; return an error message if it is not allowed, else None."""
        gathers = action.kind == ActionKind.UNSHARD
        if gathers == (action.stage in self.unsharded):
            return f"the weights of stage {action.stage} are {'already' if gathers else 'not'} gathered; remove it"
        self.unsharded ^= {action.stage}
        return None

    def find_missing_prerequisite(self, action: PipelineAction) -> str | None:
        """Return an error message if an action that must precede `action` on this rank is missing, else None."""
        for alternatives in self.list_prerequisites(action):
            if not any(alternative in self.done for alternative in alternatives):
                needed = alternatives[0]
                return f"it needs the {_NAMES[needed.kind]} {' or '.join(map(str, alternatives))}; put it before"
        return None

    def list_prerequisites(self, action: PipelineAction) -> Iterator[tuple[PipelineAction, ...]]:
        """Yield the prerequisites of `action`: tuples of actions, of which one or more must be earlier on this rank."""
        kind, stage, microbatch = action
        if kind in _AWAITED:
            yield (action._replace(kind=_AWAITED[kind]),)
        if kind == ActionKind.REDUCE_GRAD:
            for other in range(self.schedule.microbatches):
                yield PipelineAction(_BACKWARD, stage, other), PipelineAction(_WEIGHT, stage, other)
        if kind in GIVES_INPUT_GRADIENT or kind == ActionKind.SEND_F:
            yield (PipelineAction(_FORWARD, stage, microbatch),)
        if kind == _WEIGHT:
            yield (PipelineAction(_INPUT, stage, microbatch),)
        if kind == ActionKind.SEND_B:
            yield PipelineAction(_BACKWARD, stage, microbatch), PipelineAction(_INPUT, stage, microbatch)
        source = self.schedule.find_source(action)
        if source is None:
            return
        if self.schedule.share_rank(stage, source):
            kinds = (_FORWARD,) if kind == _FORWARD else (_BACKWARD, _INPUT)
            yield tuple(PipelineAction(sent_kind, source, microbatch) for sent_kind in kinds)
        elif self.schedule.has_messages:
            yield (PipelineAction(ActionKind.RECV_F if kind == _FORWARD else ActionKind.RECV_B, stage, microbatch),)

    def list_missing(self) -> Iterator[PipelineAction]:
        """Yield the actions that the program lacks at its end."""
        schedule = self.schedule
        for stage in (stage for stage, rank in enumerate(schedule.stage_ranks) if rank == self.rank):
            needed = [_FORWARD]
            for kind in (ActionKind.SEND_F, ActionKind.SEND_B) if schedule.has_messages else ():
                peer = stage + _PEER_ACTION[kind][1]
                if 0 <= peer < schedule.stages and not schedule.share_rank(stage, peer):
                    needed.append(kind)
            for microbatch in range(schedule.microbatches):
                is_split = PipelineAction(_INPUT, stage, microbatch) in self.done
                for kind in (*needed, *((_INPUT, _WEIGHT) if is_split else (_BACKWARD,))):
                    if (wanted := PipelineAction(kind, stage, microbatch)) not in self.done:
                        yield wanted
            if self.reduces and PipelineAction(ActionKind.REDUCE_GRAD, stage) not in self.done:
                yield PipelineAction(ActionKind.REDUCE_GRAD, stage)
        for stage in self.unsharded:
            yield PipelineAction(ActionKind.RESHARD, stage)
        for kind in self.awaited:
            yield from self.list_missing_waits(kind)

    def list_missing_waits(self, awaited: ActionKind) -> Iterator[PipelineAction]:
        """Yield the waits that the program lacks for its actions of kind `awaited`."""
        for action in self.done if awaited in self.awaited else ():
            if action.kind == awaited and (wait := action._replace(kind=WAITS[awaited])) not in self.done:
                yield wait


def _check_message_order(schedule: Schedule) -> None:
    """Raise PlanError unless any two ranks list the messages between them in the same order."""
    by_pair: dict[tuple[int, int], list[tuple[int, PipelineAction]]] = {}
    for rank, program in enumerate(schedule.programs):
        for index, action in list_actions(program):
            if action.kind in MESSAGES:
                peer = schedule.stage_ranks[action.stage + _PEER_ACTION[action.kind][1]]
                by_pair.setdefault((rank, peer), []).append((index, action))
    for (rank, peer), own in by_pair.items():
        for (index, action), (there, found) in zip(own, by_pair.get((peer, rank), []), strict=True):
            kind, distance = _PEER_ACTION[action.kind]
            wanted = PipelineAction(kind, action.stage + distance, action.microbatch)
            if found != wanted:
                raise PlanError(
                    f"{_describe(schedule, rank, index)} meets {_describe(schedule, peer, there)}, but needs {wanted}; "
                    f"list the messages of ranks {rank} and {peer} in the same order on both ranks"
                )


def _check_circular_waits(schedule: Schedule) -> None:
    """Run all programs side by side; raise DeadlockError if ranks wait for each other in a circle."""
    at = [0] * schedule.ranks
    passed: set[PipelineAction] = set()
    moving = True
    while moving:
        moving = False
        for rank, program in enumerate(schedule.programs):
            while at[rank] < len(program) and _find_awaited(schedule, rank, at[rank], passed) is None:
                passed.update(program[at[rank]])
                at[rank] += 1
                moving = True
    stuck: dict[int, str] = {}
    peers: dict[int, int] = {}
    for rank in range(schedule.ranks):
        if at[rank] < len(schedule.programs[rank]):
            awaited = _find_awaited(schedule, rank, at[rank], passed)
            assert awaited is not None  # noqa: S101 - the rank would have gone on
            peers[rank] = schedule.stage_ranks[awaited.stage]
            stuck[rank] = f"action {at[rank] + 1} ({format_step(schedule.programs[rank][at[rank]])}) for {awaited}"
    if stuck:
        cycle = find_cycle(peers)
        waits = "; ".join(f"rank {rank} waits at {stuck[rank]} of rank {peers[rank]}" for rank in cycle[:-1])
        raise DeadlockError(f"deadlock: {waits}. Move the awaited actions before the waits.", stuck)


def _find_awaited(schedule: Schedule, rank: int, index: int, passed: set[PipelineAction]) -> PipelineAction | None:
    """Return the action of another rank for which step `index` of a rank waits; None if it waits for none.

    `passed` has all actions that any rank has executed.
    """
    for action in schedule.programs[rank][index]:
        if action.kind in (ActionKind.WAIT_SEND_F, ActionKind.WAIT_SEND_B):
            receive, distance = _PEER_ACTION[_AWAITED[action.kind]]
            awaited_receive = PipelineAction(receive, action.stage + distance, action.microbatch)
            if awaited_receive not in passed:
                return awaited_receive
        source = schedule.find_source(action)
        if source is None or schedule.share_rank(action.stage, source):
            continue
        is_forward = action.kind == _FORWARD
        if schedule.has_messages:
            kinds: tuple[ActionKind, ...] = (ActionKind.SEND_F if is_forward else ActionKind.SEND_B,)
        else:
            kinds = (_FORWARD,) if is_forward else (_BACKWARD, _INPUT)
        awaited = [PipelineAction(kind, source, action.microbatch) for kind in kinds]
        if passed.isdisjoint(awaited):
            return awaited[0]
    return None


def _make_excess_error(schedule: Schedule, stage: int, stated: int) -> PlanError:
    """Return an unraised error about a stage that keeps more micro-batches than the number `stated`."""
    rank = schedule.stage_ranks[stage]
    own = [(index, action) for index, action in list_actions(schedule.programs[rank]) if action.stage == stage]
    changes = [(action.kind == _FORWARD) - (action.kind in GIVES_WEIGHT_GRADIENT) for _, action in own]
    first = next(number for number, live in enumerate(accumulate(changes)) if live > stated)
    return PlanError(
        f"{_describe(schedule, rank, own[first][0])}: {stated + 1} micro-batches are live on stage {stage}, and the "
        f"schedule states at most {stated}; run a backward pass first, or state more"
    )
