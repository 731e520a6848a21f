"""Programs of the extension: wrong ones are refused before they run, right ones run part by part."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hpccoll.lowering.native_rows import CLAIM, COPY, DIVIDE, FENCE, REDUCE, TILE, claim_reads
from hpccoll.native import CallTable, EntryRing, MemoryTable, NodeBarrier, Program, Reducer, StagedCall

ADD = Reducer(np.add, 8, np.dtype("f8").num, -1)
LIMITS = np.array([64, 64, 64, 64], np.int64)


def make_program(*rows, limits=LIMITS, reducer=ADD, **options):
    """Return a native program of the given rows."""
    return Program(np.array(rows, np.int64).reshape(-1, 8), limits, reducer, tile_bytes=16, **options)


WRONG = {
    "outside": (COPY, 0, 8, 0, 0, 1, 0, 64),
    "negative": (COPY, 0, -8, 0, 0, 1, 0, 8),
    "no memory": (COPY, 4, 0, 0, 0, 1, 0, 8),
    "negative memory": (COPY, -1, 0, 0, 0, 1, 0, 8),
    "into the input": (COPY, 1, 0, 0, 0, 0, 0, 8),
    "overflow": (COPY, 0, 2**63 - 8, 0, 0, 1, 0, 16),
    "right outside": (REDUCE, 0, 0, 1, 60, 1, 0, 8),
    "half an element": (REDUCE, 0, 0, 1, 0, 2, 0, 12),
    "not aligned": (REDUCE, 0, 4, 1, 0, 2, 0, 8),
    "partial overlap": (REDUCE, 0, 0, 1, 0, 1, 8, 16),
    "copy onto itself": (COPY, 1, 0, 0, 0, 1, 8, 16),
    "no divider": (DIVIDE, 1, 0, 0, 0, 1, 0, 8),
    "no such code": (10, 0, 0, 0, 0, 0, 0, 0),
    "claim of scratch memory": (CLAIM, 2, 0, 0, 0, 0, 0, 8),
    "claim outside": (CLAIM, 3, 8, 0, 0, 0, 0, 64),
    "negative size": (COPY, 0, 0, 0, 0, 1, 0, -8),
    "empty group": (TILE, 0, 0, 0, 0, 0, 0, 0),
    "group beyond the end": (TILE, 0, 0, 0, 0, 0, 0, 1),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_instruction_is_refused(case):
    with pytest.raises(ValueError, match="instruction 0 cannot be executed"):
        make_program(WRONG[case])


def test_the_message_names_the_instruction():
    right = COPY, 0, 0, 0, 0, 1, 0, 64
    with pytest.raises(ValueError, match="instruction 2 cannot be executed: the input would be written"):
        make_program(right, (FENCE, 0, 0, 0, 0, 0, 0, 0), WRONG["into the input"])


def test_words_at_random_are_refused_or_run_inside_of_their_memories():
    rng, accepted = random.Random(3), 0
    for _ in range(20_000):
        rows = [
            [
                rng.randrange(TILE + 2),
                *(rng.choice((0, 1, 2, 3, 8, 16, -1, 64)) for _ in range(6)),
                rng.choice((0, 8, 16, 2)),
            ]
            for _ in range(rng.randrange(1, 5))
        ]
        memories = [np.full(64 + 32, 7, np.uint8) for _ in range(4)]
        try:
            program = make_program(*rows)
        except ValueError:
            continue
        accepted += 1
        first, second, *_ = addresses = [each.__array_interface__["data"][0] for each in memories]
        table = MemoryTable(addresses, [], memories)
        at = 0
        while at < len(program):
            at = program.execute(table, first, second, at) + 1
        assert all((each[64:] == 7).all() for each in memories)
        assert (memories[0] == 7).all()
    assert accepted > 500


def test_a_program_runs_from_fence_to_fence():
    x, out, scratch, slot = (np.full(8, float(value)) for value in range(4))
    program = make_program((COPY, 0, 0, 0, 0, 3, 0, 64), (FENCE, *[0] * 7), (REDUCE, 3, 0, 0, 0, 1, 0, 64))
    addresses = [each.__array_interface__["data"][0] for each in (x, out, scratch, slot)]
    table = MemoryTable(addresses, [], None)
    x[:] = 5
    assert program.execute(table, *addresses[:2], 0) == 1
    assert slot.tolist() == [5.0] * 8
    assert out.tolist() == [1.0] * 8
    assert program.execute(table, *addresses[:2], 2) == 3 == len(program)
    assert out.tolist() == [10.0] * 8


def test_copies_of_any_size_and_offset_copy_these_bytes_and_no_others():
    rng = np.random.default_rng(5)
    memories = [rng.integers(0, 255, 40_000).astype(np.uint8) for _ in range(4)]
    addresses = [each.__array_interface__["data"][0] for each in memories]
    table, limits = MemoryTable(addresses, [], memories), np.full(4, 40_000)
    for nbytes in (*range(4090, 4200), 5000, 16_384, 33_333):
        source, target = rng.integers(0, 40_000 - nbytes, 2).tolist()
        memories[3][:] = rng.integers(0, 255, 40_000)
        expected = memories[3].copy()
        expected[target : target + nbytes] = memories[0][source : source + nbytes]
        row = COPY, 0, source, 0, 0, 3, target, nbytes
        make_program(row, limits=limits).execute(table, addresses[0], addresses[1], 0)
        assert np.array_equal(memories[3], expected), (source, target, nbytes)


def test_claims_leave_their_memory_unchanged():
    slot = np.arange(40_000).astype(np.uint8)
    address = slot.__array_interface__["data"][0]
    table = MemoryTable([address] * 4, [], slot)
    for offset, nbytes in ((0, 40_000), (1, 4096), (63, 1), (64, 64), (7, 0), (39_999, 1)):
        make_program((CLAIM, 3, offset, 0, 0, 0, 0, nbytes), limits=np.full(4, 40_000)).execute(table, 0, 0, 0)
        assert np.array_equal(slot, np.arange(40_000).astype(np.uint8))


def test_reads_of_slots_that_the_rank_never_writes_are_claimed():
    stage, fence, size = (COPY, 0, 0, 0, 0, 3, 0, 8192), (FENCE, 0, 0, 0, 0, 0, 0, 0), 4096
    reduce = REDUCE, 0, size, 4, size, 1, 0, size
    store = COPY, 1, 0, 0, 0, 4, size, size
    claim = CLAIM, 4, size, 0, 0, 0, 0, size
    group = TILE, 0, 0, 0, 0, 0, 0, 2
    assert claim_reads([stage, fence, reduce]) == [stage, fence, group, reduce, claim]
    assert claim_reads([stage, fence, group, reduce, store]) == [stage, fence, group, reduce, store]
    short = COPY, 4, 0, 0, 0, 1, 0, size - 1
    assert claim_reads([stage, fence, short]) == [stage, fence, short]
    own = COPY, 3, 0, 0, 0, 1, 0, size  # this rank has written its own slot
    assert claim_reads([stage, own]) == [stage, own]


def test_an_error_of_the_users_function_ends_the_run():
    def fail(*_):
        raise KeyError("no")

    x = np.ones(8)
    address = x.__array_interface__["data"][0]
    program = make_program((REDUCE, 0, 0, 0, 0, 1, 0, 64), reducer=Reducer(fail, 8, -1, -1))
    with pytest.raises(KeyError):
        program.execute(MemoryTable([address] * 4, [], x), address, address, 0)


def test_other_memories_than_those_of_the_program_are_refused():
    program = make_program((COPY, 0, 0, 0, 0, 1, 0, 64))
    with pytest.raises(ValueError, match="not those of the program"):
        program.execute(MemoryTable([0, 0, 0], [], None), 0, 0, 0)
    with pytest.raises(ValueError, match="not those of the program"):  # there is no bounce buffer
        program.execute(MemoryTable([0, 0, 0, 0], [0, 0, 0, 1], None), 0, 0, 0)


@pytest.mark.parametrize("kind", [CallTable, EntryRing, MemoryTable, NodeBarrier, Program, Reducer, StagedCall])
def test_wrong_arguments_raise_errors(kind):
    wrong: list[tuple[object, ...]] = [(), (1,), (None, None), ([], [], []), (np.zeros(3), np.zeros(3)), ("x",) * 11]
    for arguments in wrong:
        with pytest.raises((TypeError, ValueError)):
            kind(*arguments)


def test_a_ufunc_without_the_type_is_refused():
    with pytest.raises(ValueError, match="is no ufunc of two arrays"):
        Reducer(np.bitwise_and, 8, np.dtype("f8").num, -1)
    with pytest.raises(ValueError, match="is no ufunc of two arrays"):
        Reducer(np.sin, 8, np.dtype("f8").num, -1)
