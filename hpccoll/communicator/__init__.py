"""The public API: collectives, messages, Python objects, groups and symmetric buffers on one class, `Communicator`.

Start with communicator.py; cartesian.py has communicators on grids of ranks.
base.py runs every collective; each other file has the methods of one group.
"""

from __future__ import annotations

from hpccoll.communicator.cartesian import CartesianCommunicator
from hpccoll.communicator.communicator import Communicator

__all__ = ["CartesianCommunicator", "Communicator"]
