"""Runs all ranks' loads, stores and fences in one process, by a scheduler that delays ranks at random.

Only fences order the ranks: between two fences, each rank runs independently, a part of an instruction at a time. A
rank's memories hold junk before it enters and after it leaves a collective, and scratch and slots hold junk when a
collective begins, so that a read that is too early or too late gives a wrong result.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan import Plan
from hpccoll.runtime.lowering import OWN, Copy, MemoryKind, MemoryRange, NodeFence, Program, Reduce, lower_plan
from tests.unit.runtime.simulated import JUNK

Array = NDArray[Any]
Combine = Callable[[Array, Array], Array]
ITEMSIZE = 8


def mixed(left: Array, right: Array) -> Array:
    """Return a combination that is neither commutative nor associative, so that another order gives another result."""
    return np.asarray(left * 31 + right * 17)


def take_turns(ranks: Sequence[Iterator[bool]], seed: int) -> None:
    """Run all ranks to the end; a rank yields True at a fence, and False where another rank may run.

    The seed draws the pace: random, one rank as far ahead of the others as possible, or one as far behind.
    """
    rng, met = random.Random(seed), [0] * len(ranks)
    running, pace, odd = set(range(len(ranks))), rng.choice(("random", "ahead", "behind")), rng.randrange(len(ranks))
    while running:
        able = [rank for rank in sorted(running) if met[rank] <= min(met)]
        assert able, f"ranks {sorted(running)} wait for ever; met {met}"
        others = [rank for rank in able if rank != odd]
        if pace != "random" and odd in able:
            able = [odd] if pace == "ahead" else others or able
        rank = rng.choice(able)
        for _ in range(rng.randrange(1, 9)):
            try:
                meets = next(ranks[rank])
            except StopIteration:
                running.remove(rank)
                break
            met[rank] += meets
            if meets:
                break
    assert len(set(met)) == 1, f"ranks came to different numbers of meetings: {met}"


def users(plan: Plan, rank: int, sizes: Array, in_place: bool) -> tuple[Array, Array]:
    """Return a rank's input and output arrays; in place, they share the memory of chunks that are in both."""
    of = np.array([rank]), plan.ranks, len(sizes), plan.root
    held, wanted = plan.operation.input_mask(*of)[0], plan.operation.output_mask(*of)[0]
    source, result = np.full(sizes[held].sum(), JUNK), np.full(sizes[wanted].sum(), JUNK)
    if shares(plan, rank, len(sizes), in_place):
        narrow, wide = (held, wanted) if wanted.sum() >= held.sum() else (wanted, held)
        begin = int(sizes[wide][: int(np.argmax(narrow[wide]))].sum())
        if wide is wanted:
            source = result[begin : begin + len(source)]
        else:
            result = source[begin : begin + len(result)]
    return source, result


def shares(plan: Plan, rank: int, chunks: int, in_place: bool) -> bool:
    """Whether a rank's input and output share memory: they do in place, if a chunk is in both."""
    of = np.array([rank]), plan.ranks, chunks, plan.root
    return in_place and bool((plan.operation.input_mask(*of) & plan.operation.output_mask(*of)).any())


@dataclass(slots=True)
class Leg:
    """One collective, or one part of every chunk of it, on all ranks; `outputs` is filled in as ranks end.

    `slot` is the number of the slot that it uses, None where buffers are touched where they are.
    """

    plan: Plan
    sizes: Array
    inputs: list[Array]
    in_place: bool
    slot: int | None
    programs: list[Program]
    memories: list[tuple[Array, Array]]
    outputs: list[Array]


def leg(
    plan: Plan, count: int, inputs: list[Array], in_place: bool, slot: int | None, sizes: Array | None = None
) -> Leg:
    """Return a collective lowered for all ranks, with the memories of its users.

    Args:
        plan: what to run.
        count: elements of the vector, or of one block.
        inputs: what each rank brings; of a part, that part.
        in_place: whether input and output share memory where they can.
        slot: see `Leg`.
        sizes: the elements of each chunk, where only part of each is run.
    """
    chunks = plan.column(0).chunks
    whole = plan.operation.chunk_sizes(count, plan.ranks, chunks) if sizes is None else sizes
    ranks = range(plan.ranks)
    programs = [
        lower_plan(plan, r, count, ITEMSIZE, shares(plan, r, chunks, in_place), staged=slot is not None, sizes=sizes)
        for r in ranks
    ]
    memories = [users(plan, rank, whole, in_place) for rank in ranks]
    return Leg(plan, whole, inputs, in_place, slot, programs, memories, [np.empty(0, np.int64)] * plan.ranks)


def simulate(legs: list[Leg], combine: Combine, seed: int) -> None:
    """Run collectives one after the other on all ranks, which do not wait for each other in between."""
    n = legs[0].plan.ranks
    slots = {slot: [np.full(_most(legs), JUNK) for _ in range(n)] for slot in (0, 1)}
    chance = random.Random(seed + 1)
    take_turns([_rank(rank, legs, slots, combine, chance) for rank in range(n)], seed)


def _most(legs: list[Leg]) -> int:
    return max(program.slot for each in legs for program in each.programs)


def _rank(
    rank: int, legs: list[Leg], slots: dict[int, list[Array]], combine: Combine, chance: random.Random
) -> Iterator[bool]:
    for each in legs:
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
            for begin, end in _cuts(step.out.count, chance):
                parts = [_view(rank, place.part(begin, end), each, slots, private) for place in _places(step)]
                parts[-1][:] = combine(parts[0], parts[1]) if isinstance(step, Reduce) else parts[0]
                yield False
        each.outputs[rank] = result.copy()
        if not shares(each.plan, rank, len(each.sizes), each.in_place):
            assert source.tolist() == each.inputs[rank].tolist(), f"the input of rank {rank} was written"
        source[:] = result[:] = JUNK  # whatever its user does next


def _places(step: Reduce | Copy) -> tuple[MemoryRange, ...]:
    return (step.left, step.right, step.out) if isinstance(step, Reduce) else (step.source, step.out)


def _cuts(count: int, chance: random.Random) -> Iterator[tuple[int, int]]:
    begin = 0
    while begin < count:
        end = min(begin + chance.randrange(1, count + 1), count)
        yield begin, end
        begin = end


def _view(
    rank: int, place: MemoryRange, each: Leg, slots: dict[int, list[Array]], private: dict[MemoryKind, Array]
) -> Array:
    owner = rank if place.owner == OWN else place.owner
    if place.memory in private:
        assert owner == rank, f"rank {rank} touches private memory of rank {owner}"
        memory = private[place.memory]
    elif place.memory is MemoryKind.SLOT:
        assert each.slot is not None, f"rank {rank} uses a slot where every buffer is touched where it is"
        memory = slots[each.slot][owner]
    else:
        assert each.slot is None or owner == rank, f"rank {rank} touches the user's memory of rank {owner}"
        memory = each.memories[owner][place.memory]
    assert 0 <= place.start <= place.stop <= len(memory), f"{place} reaches beyond {len(memory)} elements"
    return memory[place.start : place.stop]
