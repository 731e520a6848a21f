"""Export of plans as JSON, as GOAL for LogGOPSim, and as XML for MSCCL, and import of plans from JSON."""

from hpccoll.plan.interchange.goal import to_goal
from hpccoll.plan.interchange.json_plans import from_json, to_json
from hpccoll.plan.interchange.msccl import to_msccl

__all__ = ["from_json", "to_goal", "to_json", "to_msccl"]
