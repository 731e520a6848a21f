"""Messages that are sent as private copies because their round overwrites the original memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from hpccoll.algorithms import get_algorithm
from hpccoll.lowering import Copy, MemoryKind, Program, Reduce, Send, Wait, lower_plan
from hpccoll.lowering import message_lowering as lowering
from hpccoll.lowering.message_lowering import PRIVATE
from hpccoll.plan import Operation
from tests.unit.lowering.test_lower import ALGORITHMS, CASES, ITEMSIZE, make_plan, run


def lower_doubling(nbytes: int, n: int = 2, **how: Any) -> Program:
    """Return rank 0's program of an all-reduce by recursive doubling."""
    plan = get_algorithm(Operation.ALL_REDUCE, "recursive_doubling").plan(n)
    return lower_plan(plan, 0, nbytes // ITEMSIZE, ITEMSIZE, **({"in_place": True} | how))


def copied(program: Program) -> bool:
    """Whether every message is sent from a copy that was made just before; False where none is."""
    sends = [(i, step) for i, step in enumerate(program.instructions) if isinstance(step, Send)]
    made = [
        isinstance(before := program.instructions[i - 1], Copy) and before.out == send.place and
        send.place.memory is MemoryKind.LANDING
        for i, send in sends
    ]  # fmt: skip
    assert len(set(made)) == 1
    return made[0]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_what_is_sent_and_then_summed_into_is_sent_as_a_copy(n):
    program = lower_doubling(64 * 1024, n)
    assert copied(program)
    kinds = [type(step) for step in program.instructions]
    sent, joined = kinds.index(Send), kinds.index(Reduce)
    assert Wait(sent) not in program.instructions[:joined], "a copy can be on its way while its original changes"


def test_only_sizes_that_gain_by_it_are_copied():
    assert [copied(lower_doubling(nbytes)) for nbytes in (PRIVATE[0] - ITEMSIZE, PRIVATE[0])] == [False, True]
    assert [copied(lower_doubling(nbytes)) for nbytes in (PRIVATE[-1], PRIVATE[-1] + ITEMSIZE)] == [True, False]


def test_device_memory_is_sent_from_where_it_is():
    assert not copied(lower_doubling(64 * 1024, on_device=True))


def test_out_of_place_the_first_message_is_the_input_itself_and_the_others_copies():
    program = lower_doubling(64 * 1024, 4, in_place=False)
    memories = [step.place.memory for step in program.instructions if isinstance(step, Send)]
    assert memories == [MemoryKind.SOURCE, MemoryKind.LANDING]


def test_a_ring_overwrites_nothing_in_the_round_that_sends_it_and_copies_nothing():
    program = lower_plan(get_algorithm(Operation.ALL_REDUCE, "ring").plan(4), 1, 64 * 1024, ITEMSIZE, in_place=True)
    assert not any(isinstance(step, Copy) for step in program.instructions)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.full_name)
@pytest.mark.parametrize("segment", [3 * ITEMSIZE, lowering.SEGMENT])
def test_programs_that_send_copies_do_what_replay_does_whatever_the_timing(algorithm, segment, monkeypatch):
    monkeypatch.setattr(lowering, "PRIVATE", range(1, 2**30))
    monkeypatch.setattr(lowering, "SEGMENT", segment)

    @settings(max_examples=6)
    @given(**CASES)
    def check(n, count, root, chunks, in_place, seed):
        run(make_plan(algorithm, n, root, chunks), count, in_place, seed)

    check()
