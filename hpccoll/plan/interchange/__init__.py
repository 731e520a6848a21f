"""Plans in other tools' formats: JSON (both ways), GOAL for LogGOPSim, and XML for MSCCL."""

from hpccoll.plan.interchange.goal import to_goal
from hpccoll.plan.interchange.json_plans import from_json, to_json
from hpccoll.plan.interchange.msccl import to_msccl

__all__ = ["from_json", "to_goal", "to_json", "to_msccl"]
