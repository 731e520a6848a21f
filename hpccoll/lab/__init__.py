"""A throw-away SLURM cluster on this machine: nodes with their own host names, addresses, processes, /tmp and links.

Start reading at `cluster.Lab`. A lab is a supervisor process (supervisor.py) and its descendants, which all end when
the supervisor ends.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpccoll.lab.cluster import Lab as Lab
    from hpccoll.lab.cluster_spec import ClusterSpec as ClusterSpec
    from hpccoll.lab.cluster_spec import parse_rate as parse_rate

_MODULES = {"Lab": "cluster", "ClusterSpec": "cluster_spec", "parse_rate": "cluster_spec"}
__all__ = ["ClusterSpec", "Lab", "parse_rate"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that a lab's processes start without modules that they do not need."""
    if name not in _MODULES:
        raise AttributeError(f"module 'hpccoll.lab' has no attribute {name!r}")
    return getattr(import_module(f"hpccoll.lab.{_MODULES[name]}"), name)
