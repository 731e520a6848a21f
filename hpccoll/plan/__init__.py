"""Plans of collective algorithms, and functions that prove, simulate, draw and export plans.

A plan is a sequence of rounds. A round is a list of steps: messages (`Move`), accesses to shared memory (`Load`,
`Store`) or barriers (`Fence`). A step holds arrays with an entry per rank. Start with the modules `step`, `rounds` and
`plan`; docs/write-your-own.md introduces plans by an example. `check` proves a plan correct, `replay` executes a plan
in one process, and `simulate` predicts its time. This package uses only Python and NumPy: it imports neither MPI nor
torch, reads no clock and performs no I/O. The proof, the replay and the simulation are imported at their first use,
because running a plan needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpccoll.plan.groups import Groups, Nodes, run_across_groups, run_in_groups
from hpccoll.plan.moves import MoveRounds, TransferKind, to_moves, transfer_kind
from hpccoll.plan.operation import Operation
from hpccoll.plan.plan import Cost, Plan
from hpccoll.plan.rounds import Rounds, empty_rounds, fold_ranks, keep_ranks, overlay, reduce_into_core, relabel_ranks
from hpccoll.plan.step import (
    NO_CHUNK,
    NO_PEER,
    SIGNAL,
    Fence,
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

if TYPE_CHECKING:
    from hpccoll.plan.proof import Proof, check
    from hpccoll.plan.serial_replay import replay
    from hpccoll.plan.simulation import Link, Machine, Simulation, simulate

__all__ = [
    "NO_CHUNK", "NO_PEER", "SIGNAL", "Cost", "Fence", "Groups", "IntArray", "Ints", "Link", "Load", "Machine",
    "Move", "MoveRounds", "Nodes", "Op", "Operation", "Picks", "Plan", "Proof", "Region", "Rounds",
    "Simulation", "Span", "Step", "Store", "TransferKind", "check", "empty_rounds", "fold_ranks", "keep_ranks",
    "overlay", "reduce_into_core", "relabel_ranks", "replay", "run_across_groups", "run_in_groups", "simulate",
    "to_moves", "transfer_kind",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import the proof, the replay or the simulation at the first use of one of its names."""
    if name in ("Proof", "check"):
        from hpccoll.plan import proof

        return getattr(proof, name)
    if name == "replay":
        from hpccoll.plan.serial_replay import replay

        return replay
    if name in ("Link", "Machine", "Simulation", "simulate"):
        from hpccoll.plan import simulation

        return getattr(simulation, name)
    raise AttributeError(f"module 'hpccoll.plan' has no attribute {name!r}")
