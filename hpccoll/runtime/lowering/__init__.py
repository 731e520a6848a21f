"""Lowers one rank's part of a plan (its column) to a `Program` of instructions on ranges of memory.

Start reading with `lower_plan` in lowering.py and the instructions in program.py.
"""

from __future__ import annotations

from hpccoll.runtime.lowering.lowering import lower_plan
from hpccoll.runtime.lowering.program import (
    OWN,
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

__all__ = [
    "OWN", "Copy", "Instruction", "LocalInstruction", "MemoryKind", "MemoryRange", "NodeFence", "Program",
    "Receive", "Reduce", "Send", "Wait", "lower_plan",
]  # fmt: skip
