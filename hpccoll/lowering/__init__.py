"""Lowers one rank's part of a plan (its column) to a `Program` of instructions on ranges of memory.

Start reading with `lower_plan` in lowering.py and the instructions in program.py. native_rows.py translates programs to
rows of numbers, which the native extension runs. segments.py cuts chunks into segments.
"""

from __future__ import annotations

from hpccoll.lowering.lowering import lower_plan
from hpccoll.lowering.program import (
    OWN,
    USER_MEMORY,
    Copy,
    Instruction,
    LocalInstruction,
    MemoryKind,
    MemoryRange,
    NodeFence,
    Program,
    Receive,
    Reduce,
    Send,
    Wait,
)
from hpccoll.lowering.segments import Segment, chunk_sizes, cut_chunks, list_sizes, make_find_start

__all__ = [
    "OWN", "USER_MEMORY", "Copy", "Instruction", "LocalInstruction", "MemoryKind", "MemoryRange", "NodeFence",
    "Program", "Receive", "Reduce", "Segment", "Send", "Wait", "chunk_sizes", "cut_chunks", "list_sizes", "lower_plan",
    "make_find_start",
]  # fmt: skip
