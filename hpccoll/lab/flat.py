"""Flat mode: all daemons share the host's name and the loopback address, so each needs a port of its own."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from hpccoll.lab.config import Ports


def free_ports(nodes: int) -> Ports:
    """Return ports that nobody listens at, one for the controller and one a node."""
    with ExitStack() as stack:
        found = []
        for _ in range(nodes + 1):
            held = stack.enter_context(socket.socket())
            held.bind(("127.0.0.1", 0))
            found.append(held.getsockname()[1])
    return Ports(found[0], tuple(found[1:]), socket.gethostname())
