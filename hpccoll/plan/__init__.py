"""Plans of collective algorithms, and functions that prove, simulate, draw and export plans.

A plan is a sequence of rounds. A round is a list of steps: messages (`Move`), accesses to shared memory (`Load`,
`Store`) or barriers (`Fence`). A step holds arrays with an entry per rank. Start with the modules `step`, `rounds` and
`plan`; docs/write-your-own.md introduces plans by an example. `check` proves a plan correct, `replay` executes a plan
in one process, and `simulate` predicts its time. This package uses only Python and NumPy: it imports neither MPI nor
torch, reads no clock and performs no I/O. Each exported name is imported at its first use, because a process that only
runs collectives needs neither proofs nor simulations.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpccoll.plan.groups import Groups, Nodes, run_across_groups, run_in_groups
    from hpccoll.plan.moves import to_moves
    from hpccoll.plan.operation import Count, Operation
    from hpccoll.plan.plan import Cost, Plan
    from hpccoll.plan.proof import (
        Proof,
        ScheduleProof,
        SurvivalProof,
        check,
        check_schedule,
        check_survival,
        keeps_rank_order,
    )
    from hpccoll.plan.rounds import (
        Rounds,
        empty_rounds,
        fold_ranks,
        keep_ranks,
        overlay,
        reduce_into_core,
        relabel_ranks,
    )
    from hpccoll.plan.schedule import ActionKind, PipelineAction, PipelineStep, Schedule
    from hpccoll.plan.serial_replay import replay
    from hpccoll.plan.simulation import (
        Fabric,
        FabricKind,
        Link,
        Machine,
        PassTimes,
        Simulation,
        simulate,
        simulate_schedule,
    )
    from hpccoll.plan.step import (
        NO_CHUNK,
        NO_PEER,
        SIGNAL,
        Fence,
        Floats,
        IntArray,
        Ints,
        Load,
        Move,
        Op,
        Picks,
        Region,
        Span,
        Step,
        Store,
    )

__all__ = [
    "NO_CHUNK", "NO_PEER", "SIGNAL", "ActionKind", "Cost", "Count", "Fabric", "FabricKind", "Fence", "Floats", "Groups",
    "IntArray", "Ints", "Link", "Load", "Machine", "Move", "Nodes", "Op", "Operation", "PassTimes", "Picks",
    "PipelineAction", "PipelineStep", "Plan", "Proof", "Region", "Rounds", "Schedule", "ScheduleProof", "Simulation",
    "Span", "Step", "Store", "SurvivalProof", "check", "check_schedule", "check_survival", "empty_rounds", "fold_ranks",
    "keep_ranks", "keeps_rank_order", "overlay", "reduce_into_core", "relabel_ranks", "replay", "run_across_groups",
    "run_in_groups", "simulate", "simulate_schedule", "to_moves",
]  # fmt: skip
_HOMES = ("operation", "step", "rounds", "groups", "plan", "moves", "schedule", "proof", "serial_replay", "simulation")


def __getattr__(name: str) -> Any:
    """Return the exported object `name`; import the modules of the package in turn until one of them has it."""
    if name in __all__:
        for module in _HOMES:
            home = import_module(f"{__name__}.{module}")
            if hasattr(home, name):
                return getattr(home, name)
    raise AttributeError(f"module 'hpccoll.plan' has no attribute {name!r}")
