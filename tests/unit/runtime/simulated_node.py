"""Runs all ranks' loads, stores and fences in one process, by a scheduler that delays ranks at random.

Only fences order the ranks: between two fences, each rank runs independently, a part of an instruction at a time. The
user's arrays contain JUNK before the rank enters and after it leaves a collective, and scratch and slots contain JUNK
when a collective begins, so that a read that is too early or too late gives a wrong result.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.lowering import OWN, Copy, MemoryKind, MemoryRange, NodeFence, Program, Reduce, lower_plan
from hpccoll.native import NodeBarrier
from hpccoll.plan import Plan
from hpccoll.runtime.progress import Progress
from tests.unit.runtime.simulated import JUNK

Array = NDArray[Any]
Combine = Callable[[Array, Array], Array]
ITEMSIZE = 8


def make_barrier(lines: Array, row: int, oversubscribed: bool, progress: Progress) -> NodeBarrier:
    """Return the barrier of a rank, whose words are in row `row` of `lines`."""
    return NodeBarrier(lines, row, oversubscribed, progress.attend, progress.operations, progress.transfers)


def mix(left: Array, right: Array) -> Array:
    """Return a combination that is neither commutative nor associative, so that another order gives another result."""
    return np.asarray(left * 31 + right * 17)


def run_in_turns(ranks: Sequence[Iterator[bool]], seed: int) -> None:
    """Run all ranks to the end in one thread, a few steps of a random rank at a time.

    The pace is random: either all ranks run alike, or one rank runs as far ahead of the others as possible, or one rank
    stays as far behind as possible.

    Args:
        ranks: the generator of each rank, which yields True at a fence, and False where another rank may run.
        seed: seed of all random choices.
    """
    rng, fences = random.Random(seed), [0] * len(ranks)
    running, pace, odd = set(range(len(ranks))), rng.choice(("random", "ahead", "behind")), rng.randrange(len(ranks))
    while running:
        able = [rank for rank in sorted(running) if fences[rank] <= min(fences)]
        assert able, f"ranks {sorted(running)} wait for ever; fences: {fences}"
        others = [rank for rank in able if rank != odd]
        if pace != "random" and odd in able:
            able = [odd] if pace == "ahead" else others or able
        rank = rng.choice(able)
        for _ in range(rng.randrange(1, 9)):
            try:
                is_fence = next(ranks[rank])
            except StopIteration:
                running.remove(rank)
                break
            fences[rank] += is_fence
            if is_fence:
                break
    assert len(set(fences)) == 1, f"ranks came to different numbers of fences: {fences}"


def make_buffers(plan: Plan, rank: int, sizes: Array, in_place: bool) -> tuple[Array, Array]:
    """Return the input and output arrays of a rank, filled with JUNK; in place, common chunks share memory.

    `sizes` has the number of elements of each chunk.
    """
    of = np.array([rank]), plan.ranks, len(sizes), plan.root
    held, wanted = plan.operation.input_mask(*of)[0], plan.operation.output_mask(*of)[0]
    source, result = np.full(sizes[held].sum(), JUNK), np.full(sizes[wanted].sum(), JUNK)
    if shares_memory(plan, rank, len(sizes), in_place):
        narrow, wide = (held, wanted) if wanted.sum() >= held.sum() else (wanted, held)
        begin = int(sizes[wide][: int(np.argmax(narrow[wide]))].sum())
        if wide is wanted:
            source = result[begin : begin + len(source)]
        else:
            result = source[begin : begin + len(result)]
    return source, result


def shares_memory(plan: Plan, rank: int, chunks: int, in_place: bool) -> bool:
    """Whether the input and the output of a rank share memory: the call is in place, and a chunk is in both."""
    of = np.array([rank]), plan.ranks, chunks, plan.root
    return in_place and bool((plan.operation.input_mask(*of) & plan.operation.output_mask(*of)).any())


@dataclass(slots=True)
class SimulatedCollective:
    """A collective on all ranks, or the part of it that moves the same range of elements of every chunk.

    Args:
        plan: the plan.
        sizes: the number of elements of each chunk, or of its part.
        inputs: the input of each rank.
        in_place: whether a rank's input and output share memory where possible.
        slot: the number (0 or 1) of the slot that holds all shared data; None if ranks access each other's buffers.
        programs: the program of each rank.
        memories: the input and output array of each rank.
        outputs: the result of each rank, filled in when the rank ends the collective.
    """

    plan: Plan
    sizes: Array
    inputs: list[Array]
    in_place: bool
    slot: int | None
    programs: list[Program]
    memories: list[tuple[Array, Array]]
    outputs: list[Array]


def lower_collective(
    plan: Plan, count: int, inputs: list[Array], in_place: bool, slot: int | None, sizes: Array | None = None
) -> SimulatedCollective:
    """Return a collective lowered for all ranks, with new input and output arrays.

    Args:
        plan: the plan.
        count: number of elements of the vector, or of one block.
        inputs: the input of each rank, or the part of it that the collective moves.
        in_place: whether a rank's input and output share memory where possible.
        slot: as in `SimulatedCollective`.
        sizes: the number of elements of each chunk's part; None to move whole chunks.
    """
    chunks = plan.column(0).chunks
    whole = plan.operation.chunk_sizes(count, plan.ranks, chunks) if sizes is None else sizes
    ranks = range(plan.ranks)
    programs = [
        lower_plan(
            plan, r, count, ITEMSIZE, shares_memory(plan, r, chunks, in_place), staged=slot is not None, sizes=sizes
        )
        for r in ranks
    ]
    memories = [make_buffers(plan, rank, whole, in_place) for rank in ranks]
    return SimulatedCollective(
        plan, whole, inputs, in_place, slot, programs, memories, [np.empty(0, np.int64)] * plan.ranks
    )


def simulate(collectives: list[SimulatedCollective], combine: Combine, seed: int) -> None:
    """Run collectives one after the other on all ranks, which do not wait for each other in between."""
    n = collectives[0].plan.ranks
    slots = {slot: [np.full(_find_slot_size(collectives), JUNK) for _ in range(n)] for slot in (0, 1)}
    chance = random.Random(seed + 1)
    run_in_turns([_run_rank(rank, collectives, slots, combine, chance) for rank in range(n)], seed)


def _find_slot_size(collectives: list[SimulatedCollective]) -> int:
    """Return the number of elements that a slot needs."""
    return max(program.slot for each in collectives for program in each.programs)


def _run_rank(
    rank: int,
    collectives: list[SimulatedCollective],
    slots: dict[int, list[Array]],
    combine: Combine,
    chance: random.Random,
) -> Iterator[bool]:
    """Run the programs of a rank one after the other; yield True at a fence, and False between parts of instructions.

    `slots` has the slots of all ranks by the number of the slot.
    """
    for each in collectives:
        program, (source, result) = each.programs[rank], each.memories[rank]
        private = {MemoryKind.WORK: np.full(program.work, JUNK), MemoryKind.LANDING: np.full(program.landing, JUNK)}
        if each.slot is not None:
            slots[each.slot][rank][:] = JUNK  # a rank that begins may fill its slot
        result[:] = JUNK
        source[:] = each.inputs[rank]
        yield False
        for step in program.instructions:
            if isinstance(step, NodeFence):
                yield True
                continue
            assert isinstance(step, Reduce | Copy)
            for begin, end in _split_randomly(step.out.count, chance):
                parts = [_view(rank, place.part(begin, end), each, slots, private) for place in _list_ranges(step)]
                parts[-1][:] = combine(parts[0], parts[1]) if isinstance(step, Reduce) else parts[0]
                yield False
        each.outputs[rank] = result.copy()
        if not shares_memory(each.plan, rank, len(each.sizes), each.in_place):
            assert source.tolist() == each.inputs[rank].tolist(), f"the input of rank {rank} was written"
        source[:] = result[:] = JUNK  # the user may overwrite them now


def _list_ranges(step: Reduce | Copy) -> tuple[MemoryRange, ...]:
    return (step.left, step.right, step.out) if isinstance(step, Reduce) else (step.source, step.out)


def _split_randomly(count: int, chance: random.Random) -> Iterator[tuple[int, int]]:
    """Split range(count) into parts of random sizes; yield the begin and the end of each."""
    begin = 0
    while begin < count:
        end = min(begin + chance.randrange(1, count + 1), count)
        yield begin, end
        begin = end


def _view(
    rank: int,
    place: MemoryRange,
    each: SimulatedCollective,
    slots: dict[int, list[Array]],
    private: dict[MemoryKind, Array],
) -> Array:
    """Return a view of the elements of `place`; assert that `rank` may access them."""
    owner = rank if place.owner == OWN else place.owner
    if place.memory in private:
        assert owner == rank, f"rank {rank} touches private memory of rank {owner}"
        memory = private[place.memory]
    elif place.memory is MemoryKind.SLOT:
        assert each.slot is not None, f"rank {rank} uses a slot, but the collective accesses buffers directly"
        memory = slots[each.slot][owner]
    else:
        assert each.slot is None or owner == rank, f"rank {rank} touches the user's memory of rank {owner}"
        memory = each.memories[owner][place.memory]
    assert 0 <= place.start <= place.stop <= len(memory), f"{place} reaches beyond {len(memory)} elements"
    return memory[place.start : place.stop]
