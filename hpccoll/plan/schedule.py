"""Pipeline schedules: for each rank, the list of passes, sends and receives that it performs in a training step.

A model is cut into stages, numbered in the order in which data passes through them. Each stage is on one rank, and a
rank may have several stages. The batch is cut into micro-batches. Actions are written as in
torch.distributed.pipelining: `2F0` is the forward pass of stage 2 for micro-batch 0, and `2SEND_F0` sends the output of
this pass to stage 3.

A program is a list of steps. A step has one action, or the actions that a rank computes at the same time, such as a
forward and a backward pass. Neither sends nor receives block: a pass waits for the receive of its input. Any two ranks
list the messages between them in the same order, as NCCL requires. Files of torch from 2.15 on also have actions that
wait for sends and for sums of gradients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from hpccoll.errors import PlanError

NO_MICROBATCH = -1
OVERLAP = "OVERLAP_F_B"  # torch's name for a step of several actions


class ActionKind(StrEnum):
    """The kinds of actions, by their names in torch.distributed.pipelining."""

    FORWARD = "F"
    BACKWARD = "B"  # gradients of inputs and of weights
    BACKWARD_INPUT = "I"  # gradients of inputs alone
    BACKWARD_WEIGHT = "W"  # gradients of weights alone
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    UNSHARD = "UNSHARD"  # FSDP gathers the weights of the stage
    RESHARD = "RESHARD"  # FSDP frees the gathered weights
    REDUCE_GRAD = "REDUCE_GRAD"  # the sum of the gradients over data-parallel ranks, after the last backward pass
    WAIT_SEND_F = "WAIT_SEND_F"
    WAIT_SEND_B = "WAIT_SEND_B"
    WAIT_REDUCE_GRAD = "WAIT_REDUCE_GRAD"

    __hash__ = str.__hash__  # Enum.__hash__ would take a third of the time of a proof


PASSES = frozenset("FBIW")
GIVES_INPUT_GRADIENT = frozenset("BI")
GIVES_WEIGHT_GRADIENT = frozenset("BW")
MESSAGES = frozenset({ActionKind.SEND_F, ActionKind.RECV_F, ActionKind.SEND_B, ActionKind.RECV_B})
WAITS = {
    ActionKind.SEND_F: ActionKind.WAIT_SEND_F,
    ActionKind.SEND_B: ActionKind.WAIT_SEND_B,
    ActionKind.REDUCE_GRAD: ActionKind.WAIT_REDUCE_GRAD,
}  # the kind of each wait, by the kind of the awaited action
OF_STAGE = frozenset({ActionKind.UNSHARD, ActionKind.RESHARD, ActionKind.REDUCE_GRAD, ActionKind.WAIT_REDUCE_GRAD})


class PipelineAction(NamedTuple):
    """One action of a pipeline stage: a pass, send or receive of a micro-batch, or work on weights or gradients."""

    kind: ActionKind
    stage: int
    microbatch: int = NO_MICROBATCH

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{'' if self.microbatch == NO_MICROBATCH else self.microbatch}"


PipelineStep: TypeAlias = tuple[PipelineAction, ...]
PipelineProgram: TypeAlias = tuple[PipelineStep, ...]


def format_step(step: PipelineStep) -> str:
    """Return a step in the notation of torch, such as `2F0` or `(2F1;5B0)OVERLAP_F_B`."""
    return str(step[0]) if len(step) == 1 else f"({';'.join(map(str, step))}){OVERLAP}"


def list_actions(program: PipelineProgram) -> Iterator[tuple[int, PipelineAction]]:
    """Yield the actions of a program in order, each with the index of its step."""
    for index, step in enumerate(program):
        for action in step:
            yield index, action


@dataclass(frozen=True, slots=True)
class Schedule:
    """A pipeline schedule: `stage_ranks` has the rank of each stage, and `programs` the steps of each rank in order.

    If `has_messages` is false, the programs have no sends and receives, and the rank of the next stage has the result
    of a pass immediately. `activations` states the largest number of live micro-batches of each stage; None states no
    limit. A micro-batch is live from its forward pass to the end of the backward pass for the weights.
    """

    name: str
    microbatches: int
    stage_ranks: tuple[int, ...]
    programs: tuple[PipelineProgram, ...]
    activations: tuple[int, ...] | None = None
    has_messages: bool = False

    @property
    def ranks(self) -> int:
        """The number of ranks of the pipeline."""
        return len(self.programs)

    @property
    def stages(self) -> int:
        """The number of pipeline stages."""
        return len(self.stage_ranks)

    @property
    def kinds(self) -> frozenset[ActionKind]:
        """The kinds of actions that occur in the schedule."""
        return frozenset(action.kind for program in self.programs for _, action in list_actions(program))

    def share_rank(self, stage: int, other: int) -> bool:
        """Whether `other` is the number of a stage that is on the same rank as `stage`."""
        return 0 <= other < self.stages and self.stage_ranks[stage] == self.stage_ranks[other]

    def find_source(self, action: PipelineAction) -> int | None:
        """Return the stage whose result the pass `action` takes as input, or None if the pass needs no other stage."""
        if action.kind == ActionKind.FORWARD:
            return action.stage - 1 if action.stage else None
        if action.kind in GIVES_INPUT_GRADIENT:
            return action.stage + 1 if action.stage + 1 < self.stages else None
        return None

    def count_activations(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return two tuples: the largest number of live micro-batches of each stage, and of each rank (all its stages).

        A micro-batch is live from its forward pass to the end of its backward pass for the weights.
        """
        live, most = [0] * self.stages, [0] * self.stages
        rank_most = []
        for program in self.programs:
            now = peak = 0
            for _, action in list_actions(program):
                if action.kind == ActionKind.FORWARD:
                    live[action.stage] += 1
                    most[action.stage] = max(most[action.stage], live[action.stage])
                    now += 1
                    peak = max(peak, now)
                elif action.kind in GIVES_WEIGHT_GRADIENT:
                    live[action.stage] -= 1
                    now -= 1
            rank_most.append(peak)
        return tuple(most), tuple(rank_most)

    def select_passes(self) -> Schedule:
        """Return the schedule with its forward and backward passes only, without messages and other actions."""
        programs = (tuple(step for step in program if step[0].kind in PASSES) for program in self.programs)
        return replace(self, programs=tuple(programs), has_messages=False)

    def add_messages(self) -> Schedule:
        """Return the schedule with sends and receives added; it must have none, and `check_schedule` must accept it.

        The schedule is run step by step. Each send follows its pass, and at the same moment the receive is appended to
        the steps that the receiving rank has run, so that both ranks list their messages in the same order.
        torch.distributed.pipelining places sends and receives by the same rule.
        """
        return replace(self, programs=tuple(map(tuple, _MessagePlacer(self).place())), has_messages=True)

    def add_reductions(self) -> Schedule:
        """Return the schedule with a sum of gradients over replicas for each stage, after its last weight gradient."""
        missing = [self.microbatches] * self.stages
        programs = []
        for program in self.programs:
            steps: list[PipelineStep] = []
            for step in program:
                steps.append(step)
                for action in step:
                    missing[action.stage] -= action.kind in GIVES_WEIGHT_GRADIENT
                    if missing[action.stage] == 0 and action.kind in GIVES_WEIGHT_GRADIENT:
                        steps.append((PipelineAction(ActionKind.REDUCE_GRAD, action.stage),))
            programs.append(tuple(steps))
        return replace(self, programs=tuple(programs))

    def add_waits(self) -> Schedule:
        """Return the schedule with a wait for each send and for each sum of gradients; it must have no waits yet.

        The wait for a sum of gradients follows the sum immediately. The wait for the send of a stage's output follows
        the stage's backward pass for the same micro-batch, before which the receiver must have had the output; the
        waits for all other sends are at the end of the program. torch.distributed.pipelining places waits by the same
        rules.
        """
        return replace(self, programs=tuple(_list_steps_with_waits(program) for program in self.programs))


def _list_steps_with_waits(program: PipelineProgram) -> PipelineProgram:
    """Return a rank's program with the waits for sends and sums of gradients that `Schedule.add_waits` describes."""
    steps: list[PipelineStep] = []
    pending: dict[PipelineAction, PipelineStep] = {}  # the wait of each send
    for step in program:
        steps.append(step)
        for action in step:
            if action.kind in GIVES_INPUT_GRADIENT:
                if (send := action._replace(kind=ActionKind.SEND_F)) in pending:
                    steps.append(pending.pop(send))
            elif action.kind == ActionKind.REDUCE_GRAD:
                steps.append((action._replace(kind=WAITS[action.kind]),))
            elif action.kind in WAITS:
                pending[action] = (action._replace(kind=WAITS[action.kind]),)
    return (*steps, *pending.values())


class _MessagePlacer:
    """Adds sends and receives to a schedule without messages, by running it: one step of each rank in turn."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.programs: list[list[PipelineStep]] = [[] for _ in schedule.programs]
        self.results: list[set[tuple[bool, int, int]]] = [set() for _ in schedule.programs]  # of passes, by rank

    def place(self) -> list[list[PipelineStep]]:
        """Return the programs of all ranks with sends and receives added; raise PlanError for a deadlock."""
        waiting = [deque(program) for program in self.schedule.programs]
        while any(waiting):
            moved = [rank for rank, steps in enumerate(waiting) if steps and self.try_step(rank, steps[0])]
            for rank in moved:
                waiting[rank].popleft()
            if not moved:
                raise PlanError(f"{self.schedule.name} deadlocks, so it has no place for messages; check it first")
        return self.programs

    def try_step(self, rank: int, step: PipelineStep) -> bool:
        """Append a step and its messages to the programs, if the rank has the step's inputs.

        Returns whether the rank has the inputs of the step.
        """
        schedule = self.schedule
        for action in step:
            source = schedule.find_source(action)
            if source is not None and (source < action.stage, source, action.microbatch) not in self.results[rank]:
                return False
        self.programs[rank].append(step)
        for action in step:
            is_forward = action.kind == ActionKind.FORWARD
            if is_forward or action.kind in GIVES_INPUT_GRADIENT:
                self.pass_on(rank, action, action.stage + (1 if is_forward else -1), is_forward=is_forward)
        return True

    def pass_on(self, rank: int, action: PipelineAction, dest: int, *, is_forward: bool) -> None:
        """Give the result of a pass to its own rank and to the rank of stage `dest`, by a message if the ranks differ.

        `is_forward` states whether the result is that of a forward pass.
        """
        result = (is_forward, action.stage, action.microbatch)
        self.results[rank].add(result)
        if not 0 <= dest < self.schedule.stages or self.schedule.share_rank(action.stage, dest):
            return
        peer = self.schedule.stage_ranks[dest]
        send, recv = (ActionKind.SEND_F, ActionKind.RECV_F) if is_forward else (ActionKind.SEND_B, ActionKind.RECV_B)
        self.programs[rank].append((PipelineAction(send, action.stage, action.microbatch),))
        self.programs[peer].append((PipelineAction(recv, dest, action.microbatch),))
        self.results[peer].add(result)
