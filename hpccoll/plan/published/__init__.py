"""Reads, proves and converts schedules of other tools: MSCCL (XML), MSCCL++, TE-CCL, TACCL and SCCL (JSON).

`parse_published` reads the text of a file as a program of thread blocks, `prove_program` proves the program, and
`convert_to_plan` makes the plan that hpccoll draws, simulates, exports and runs. Start with block_program.py.
"""

from hpccoll.plan.published.block_program import BlockProgram
from hpccoll.plan.published.parsing import parse_published
from hpccoll.plan.published.plan_conversion import convert_to_plan
from hpccoll.plan.published.proof import PublishedProof, prove_program, refuse_deadlock

__all__ = [
    "BlockProgram", "PublishedProof", "convert_to_plan", "parse_published", "prove_program", "refuse_deadlock",
]  # fmt: skip
