"""Proofs that plans and other programs of sends and receives are correct, without running them.

Start with `check` in checker.py, which proves a plan. `transfers` reads rounds as flat arrays and checks each transfer;
`symbolic_state` tracks the contributions in each chunk and checks the final state; `races` proves that loads and stores
are free of data races; `survival` proves that the death of a rank gives no other rank a wrong result; `reduction_order`
tells whether data is reduced in rank order. `check_program` proves a free program, which is one list of sends and
receives per rank, without rounds. `check_schedule` proves a pipeline schedule.
"""

from hpccoll.plan.proof.checker import Proof, check
from hpccoll.plan.proof.free_programs import Action, FreeProgram, RecvAction, SendAction, check_program
from hpccoll.plan.proof.reduction_order import keeps_rank_order
from hpccoll.plan.proof.schedule_proof import ScheduleProof, check_schedule
from hpccoll.plan.proof.survival import SurvivalProof, check_survival

__all__ = [
    "Action", "FreeProgram", "Proof", "RecvAction", "ScheduleProof", "SendAction", "SurvivalProof",
    "check", "check_program", "check_schedule", "check_survival", "keeps_rank_order",
]  # fmt: skip
