"""Proofs that plans and free programs are correct, without running them.

Start with `check` in checker.py, which proves a plan. `transfers` reads rounds as flat arrays and checks each transfer;
`symbolic_state` tracks the contributions in each chunk and checks the final state; `races` proves that loads and stores
are free of data races. `check_program` proves free programs, which are lists of sends and receives per rank, without
rounds.
"""

from hpccoll.plan.proof.checker import Proof, check
from hpccoll.plan.proof.free_programs import Action, FreeProgram, RecvAction, SendAction, check_program, flatten_plan

__all__ = [
    "Action", "FreeProgram", "Proof", "RecvAction", "SendAction", "check", "check_program", "flatten_plan",
]  # fmt: skip
