"""What no plan of messages can be faster than on a machine: the latency bound and the bandwidth bound of an operation.

Latency: news of one rank must reach all others (or all others' news one rank, which is the same backwards). Who knows
tells one more every `overhead`, and a message takes alpha: the best broadcast of Karp, Sahay, Santos and Schauser
(SPAA 1993), ceil(log2 n) alpha where overhead = alpha. Across nodes the same holds for whole nodes, each of which
tells as many at once as it has ranks.

Bandwidth: what the busiest rank must send or receive at least, over its fastest link; and what the busiest node must
send or receive at least, over all its NICs. The two bounds cannot be added up; a plan takes at least the larger. They
are those of messages: ranks that load and store in shared memory pay no alpha for it, and may be faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from hpccoll.plan.operation import Operation
from hpccoll.plan.simulation.machine import Machine

_ALL = (Operation.BROADCAST, Operation.REDUCE)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds that any plan takes at least: by its number of messages in a row, and by its bytes."""

    latency_s: float
    bandwidth_s: float

    @property
    def seconds(self) -> float:
        """The larger of the two."""
        return max(self.latency_s, self.bandwidth_s)


def compute_bounds(operation: Operation, n: int, machine: Machine, nbytes: int) -> Bounds:
    """Return the bounds of an operation over n ranks for a message of `nbytes` (nccl-tests' S)."""
    if n == 1 or (nbytes == 0 and operation is not Operation.BARRIER):
        return Bounds(0.0, 0.0)
    near, wide = machine.within, machine.between
    nodes, q = machine.nodes(n), min(machine.ranks_per_node, n)
    links = [near] * (q > 1) + [wide] * (nodes > 1)
    alpha, overhead = min(link.alpha_s for link in links), min(link.overhead_s for link in links)
    latency = compute_broadcast_bound(n, alpha, overhead)
    bandwidth = _share(operation, n, 1) * nbytes * min(link.least_beta for link in links)
    if nodes > 1:
        latency = max(latency, compute_broadcast_bound(nodes, wide.alpha_s, wide.overhead_s, q))
        through = _share(operation, n, q) * nbytes * wide.least_beta / machine.nics_per_node
        bandwidth = max(bandwidth, through)
    return Bounds(latency, bandwidth)


def compute_broadcast_bound(n: int, alpha_s: float, overhead_s: float, at_once: int = 1) -> float:
    """Return the least time until all of n know, where who knows tells `at_once` more every `overhead_s`."""
    coming, known, now = [(alpha_s, at_once)], 1, 0.0
    while known < n:
        now, told = heappop(coming)
        # Those that were told now tell on, and those who told them tell others.
        heappush(coming, (now + alpha_s, told * at_once))
        heappush(coming, (now + overhead_s, told))
        known += told
    return now


def _share(operation: Operation, n: int, q: int) -> float:
    """Return what some group of q ranks must send or receive at least, in multiples of S."""
    if operation is Operation.BARRIER:
        return 0.0
    if operation in _ALL:
        return 1.0
    if operation is Operation.ALL_REDUCE:
        groups = -(-n // q)
        return 2 * (groups - 1) / groups
    if operation is Operation.ALL_TO_ALL:
        # Each of the q ranks of a full group sends S/n to each of the n - q others.
        return q * (n - q) / n
    return (n - q) / n
