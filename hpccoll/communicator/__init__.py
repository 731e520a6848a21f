"""The public API: collectives, messages, Python objects, groups and symmetric buffers on one class, `Communicator`.

Start with communicator.py; cartesian.py has communicators on grids of ranks.
survival.py lets a program go on after the death of ranks. base.py runs every collective; each other file has the
methods of one group.
"""

from __future__ import annotations

from hpccoll.communicator.cartesian import CartesianCommunicator
from hpccoll.communicator.communicator import Communicator
from hpccoll.communicator.survivors import survivors

__all__ = ["CartesianCommunicator", "Communicator", "survivors"]
