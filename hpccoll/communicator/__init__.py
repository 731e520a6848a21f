"""The public API: collectives, messages, Python objects, groups and symmetric buffers on one class, `Communicator`.

Start with communicator.py. base.py has the path of every collective; the other files have a group of methods each.
"""

from __future__ import annotations

from hpccoll.communicator.communicator import Communicator

__all__ = ["Communicator"]
