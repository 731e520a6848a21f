"""Predictions of the time that a plan takes on a modelled machine, with one clock per rank.

Start with `simulate` in simulator.py and the cost model in machine.py. `round_costs` computes the cost of a round from
`links` and `chunk_bytes`, `symmetry` finds a few ranks that can represent all ranks, `critical_path` and `timeline`
explain a simulation, and `bounds` gives lower bounds on the time of plans of messages. `schedule_simulation` predicts
the times of pipeline schedules.
"""

from hpccoll.plan.simulation.bounds import compute_bounds
from hpccoll.plan.simulation.critical_path import CriticalPath, MessageWait
from hpccoll.plan.simulation.fabric import Fabric, FabricKind
from hpccoll.plan.simulation.machine import Link, Machine
from hpccoll.plan.simulation.schedule_simulation import PassTimes, ScheduleSimulation, simulate_schedule
from hpccoll.plan.simulation.simulator import Simulation, simulate
from hpccoll.plan.simulation.timeline import Slice, Timeline, build_round_timeline, build_simulated_timeline

__all__ = [
    "CriticalPath", "Fabric", "FabricKind", "Link", "Machine", "MessageWait", "PassTimes", "ScheduleSimulation",
    "Simulation", "Slice", "Timeline", "build_round_timeline", "build_simulated_timeline", "compute_bounds",
    "simulate", "simulate_schedule",
]  # fmt: skip
