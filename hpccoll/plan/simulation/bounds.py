"""Lower bounds on the time of any plan of messages on a machine model: the latency bound and the bandwidth bound.

The latency bound holds because the data of one rank must reach all ranks, or one rank must obtain the data of all
ranks. A rank that has the data can send it to one more rank every `overhead` seconds, and a message takes alpha
seconds. The latency bound is the time of the optimal broadcast of Karp, Sahay, Santos and Schauser (SPAA 1993), which
is ceil(log2 n) alpha if overhead = alpha. For nodes, the latency bound assumes that a node sends to as many nodes at
once as it has ranks.

The bandwidth bound is the time in which the busiest rank sends or receives its bytes over its fastest link, or the
busiest node its bytes over all its NICs, whichever is longer. A plan takes at least the larger of latency bound and
bandwidth bound, not their sum. Plans that load and store in shared memory pay no alpha and may be faster than both
bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from hpccoll.plan.operation import Operation
from hpccoll.plan.simulation.machine import Machine


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds of a collective's time in seconds: by the latency of messages, and by the bytes of the busiest port.

    `binding` names the links that cause the bandwidth bound; it is empty if they are unknown.
    """

    latency_s: float
    bandwidth_s: float
    binding: str = ""

    @property
    def seconds(self) -> float:
        """The lower bound of the time in seconds: the larger of the latency bound and the bandwidth bound."""
        return max(self.latency_s, self.bandwidth_s)


def compute_bounds(operation: Operation, n: int, machine: Machine, nbytes: int) -> Bounds:
    """Return lower bounds of the time of `operation` on n ranks of `machine`.

    `nbytes` is the message size (S of nccl-tests) in bytes.
    """
    if n == 1 or (nbytes == 0 and operation is not Operation.BARRIER):
        return Bounds(0.0, 0.0)
    near, wide = machine.within, machine.between
    nodes, q = machine.count_nodes(n), min(machine.ranks_per_node, n)
    links = [near] * (q > 1) + [wide] * (nodes > 1)
    alpha, overhead = min(link.alpha_s for link in links), min(link.overhead_s for link in links)
    latency = compute_broadcast_bound(n, alpha, overhead)
    bandwidth = _required_share(operation, n, 1) * nbytes * min(link.min_beta for link in links)
    if nodes > 1:
        latency = max(latency, compute_broadcast_bound(nodes, wide.alpha_s, wide.overhead_s, q))
        bandwidth_of_node = _required_share(operation, n, q) * nbytes * wide.min_beta / machine.nics_per_node
        bandwidth = max(bandwidth, bandwidth_of_node)
    return Bounds(latency, bandwidth)


def compute_broadcast_bound(n: int, alpha_s: float, overhead_s: float, at_once: int = 1) -> float:
    """Return the shortest time in seconds in which a broadcast can reach n ranks by messages.

    A rank that receives the data after a chain of i messages, whose senders sent j other messages before, has the data
    after i alpha + j overhead seconds. Ranks with equal i and j are counted together to save time.

    Args:
        alpha_s: the seconds from the start of a message to its arrival.
        overhead_s: the seconds after which a sender can send again.
        at_once: the number of messages that a rank can send at the same time.
    """
    if n > 1 and not overhead_s:
        return alpha_s
    known, now = 1, 0.0
    coming = [(alpha_s, 1, 0)]
    paths = {(1, 0): 1}
    while known < n:
        now, i, j = heappop(coming)
        count = paths.pop((i, j))
        known += count * at_once**i
        # Ranks that just received the data begin to send it, and the ranks that sent it continue with other ranks.
        for later in ((i + 1, j), (i, j + 1)):
            if later not in paths:
                heappush(coming, (later[0] * alpha_s + later[1] * overhead_s, *later))
            paths[later] = paths.get(later, 0) + count
    return now


def _required_share(operation: Operation, n: int, q: int) -> float:
    """Return the bytes, per byte of the message, that a group of q of n ranks (a rank or a node) must send or receive.

    Of all groups of q ranks, the group that must transfer the most determines the result.
    """
    if operation is Operation.BARRIER:
        return 0.0
    if operation in (Operation.BROADCAST, Operation.REDUCE) or operation.is_scan:
        return 1.0
    if operation is Operation.ALL_REDUCE:
        groups = -(-n // q)
        return 2 * (groups - 1) / groups
    if operation is Operation.ALL_TO_ALL:
        # Each of the q ranks of a full group sends S/n bytes to each of the n - q ranks outside the group.
        return q * (n - q) / n
    return (n - q) / n
