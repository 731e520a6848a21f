"""The rows of numbers that native/interpreter.h describes, for programs of messages and for memory of other ranks."""

from __future__ import annotations

from hpccoll.lowering import Instruction, MemoryKind, MemoryRange, NodeFence, Receive, Send, Wait
from hpccoll.lowering.native_rows import make_locate, make_rows

SEND, RECEIVE, WAIT, FENCE, ROUND = 7, 6, 8, 5, 9
INPUT, LANDING = MemoryRange(MemoryKind.SOURCE, 2, 5), MemoryRange(MemoryKind.LANDING, 1, 4)


def test_messages_have_rows_with_places_peers_and_requests():
    program: list[Instruction] = [Receive(3, LANDING), Send(1, INPUT), NodeFence(), Wait(0), Wait(1)]
    rows, requests = make_rows(program, make_locate(10, 4), 4)
    assert rows == [
        (RECEIVE, 0, 0, 3, 0, 2, (10 + 1) * 4, 12),  # LANDING follows the 10 elements of WORK in memory 2
        (SEND, 0, 2 * 4, 1, 1, 0, 0, 12),
        (FENCE, 0, 0, 0, 0, 0, 0, 0),
        (WAIT, 0, 0, 0, 0, 0, 0, 12),  # the size of the message to receive
        (WAIT, 0, 0, 0, 1, 0, 0, 0),
    ]
    assert requests == 2


def test_rounds_have_rows_where_they_begin_and_after_the_last():
    program: list[Instruction] = [Send(1, INPUT), Wait(0), Send(2, INPUT), Wait(2)]
    rows, _ = make_rows(program, make_locate(0, 4), 4, round_starts=(0, 2))
    assert [row[0] for row in rows] == [ROUND, SEND, WAIT, ROUND, SEND, WAIT, ROUND]
    assert [row[-1] for row in rows if row[0] == ROUND] == [2 << 32, (2 << 32) + 1, 0]


def test_only_slots_and_memory_of_other_ranks_are_found_in_shared_memory():
    locate = make_locate(10, 4, lambda place: 100 + place.owner)
    assert locate(INPUT) == (0, 8)
    assert locate(MemoryRange(MemoryKind.SOURCE, 2, 5, owner=1)) == (101, 8)
    slot = MemoryRange(MemoryKind.SLOT, 3, 5)
    assert locate(slot) == (100 + slot.owner, 12)
