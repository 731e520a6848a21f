"""The machine model of simulations: nodes of ranks, a link within nodes, and links between nodes through NICs.

A message of B bytes takes alpha + B * beta seconds on its link, and keeps the ports of sender and receiver busy for
overhead + B * beta. A port carries one message at a time in each direction. The remaining alpha - overhead seconds of a
message are time of flight, during which the next message may start. With overhead = alpha, the default, the model is
the one-port model of textbooks (Hockney); with a smaller overhead, it is LogP.

Ranks fill nodes in order and share the NICs of their node: rank i of the q ranks of a node uses NIC i * nics // q in
both directions. Reducing or copying a byte in memory takes gamma seconds. Sources: Hockney, Parallel Computing 1994;
Culler et al., LogP, PPoPP 1993.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hpccoll.plan.simulation.fabric import Fabric
from hpccoll.plan.step import Floats


@dataclass(frozen=True, slots=True)
class Link:
    """The cost of a message of b bytes: alpha + b * beta seconds, of which overhead + b * beta keep ports busy.

    `bands` are pairs (size, beta) by ascending size: the bytes of a message beyond `size` bytes, up to the size of the
    next band, take `beta` seconds each. Bands stand for the effects of buffers, protocols and caches, which make larger
    messages slower or faster.
    """

    alpha_s: float
    beta_s_per_byte: float
    overhead_s: float
    bands: tuple[tuple[float, float], ...] = ()

    @classmethod
    def one_port(cls, alpha_s: float, beta_s_per_byte: float) -> Link:
        """Return a link of the one-port model, in which ports are busy during the whole message.

        A message of b bytes takes `alpha_s` + b * `beta_s_per_byte` seconds.
        """
        return cls(alpha_s, beta_s_per_byte, alpha_s)

    def transfer_s(self, nbytes: Floats) -> Floats:
        """Return the seconds (without overhead) for which messages of `nbytes` bytes keep ports busy, as an array."""
        seconds = nbytes * self.beta_s_per_byte
        for start, change in self.bends:
            seconds += np.maximum(nbytes - start, 0) * change
        return seconds

    @property
    def min_beta(self) -> float:
        """The smallest beta (seconds per byte) of all bands of message sizes."""
        return min(self.beta_s_per_byte, *(beta for _, beta in self.bands), self.beta_s_per_byte)

    @property
    def bends(self) -> tuple[tuple[float, float], ...]:
        """One pair (size, change) per band of `bands`: beyond `size` bytes of a message, beta is larger by `change`.

        A change is the difference from the beta of the next smaller band, in seconds per byte, and may be negative.
        """
        betas = [self.beta_s_per_byte, *(beta for _, beta in self.bands)]
        return tuple((start, beta - before) for (start, beta), before in zip(self.bands, betas, strict=False))


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine model: nodes with `ranks_per_node` ranks each (the last may have fewer), and the costs of the links.

    Args:
        ranks_per_node: ranks r and s are on one node if r // ranks_per_node == s // ranks_per_node.
        within: the link between two ranks of a node.
        between: the link between two nodes; its beta is that of one NIC.
        nics_per_node: the number of messages that can leave (or enter) a node at full speed at the same time.
        gamma_s_per_byte: the seconds that reducing or copying a byte in memory takes.
        sources: citations for the values of the other fields.
        call_s: the seconds of overhead on every rank before the first round of a call.
        fence_s: the seconds from the last rank's arrival at a fence until all leave (None: alpha of `within`).
        peak_flop_per_s: the peak rate of a rank's matrix products, in FLOP/s; None if it is not stated.
        memory_bytes: the memory of a rank; None if it is not stated.
        fabric: the links that the messages of several nodes share; None if messages of different nodes share no links.
    """

    name: str
    ranks_per_node: int
    within: Link
    between: Link
    nics_per_node: int
    gamma_s_per_byte: float
    sources: tuple[str, ...] = ()
    call_s: float = 0.0
    fence_s: float | None = None
    peak_flop_per_s: float | None = None
    memory_bytes: float | None = None
    fabric: Fabric | None = None

    @classmethod
    def flat(cls, alpha_s: float, beta_s_per_byte: float, gamma_s_per_byte: float) -> Machine:
        """Return a machine model with one rank per node, so that all links are equal.

        `alpha_s` is the latency in seconds, `beta_s_per_byte` the seconds per byte of a message, and `gamma_s_per_byte`
        those per byte that is reduced.
        """
        link = Link.one_port(alpha_s, beta_s_per_byte)
        return cls("flat", 1, link, link, 1, gamma_s_per_byte)

    def with_ranks_per_node(self, ranks: int) -> Machine:
        """Return a copy of this machine model with `ranks` ranks per node and at most `ranks` NICs per node."""
        return replace(self, ranks_per_node=ranks, nics_per_node=min(self.nics_per_node, ranks))

    @property
    def period(self) -> int:
        """The number of consecutive ranks after which the pattern of nodes and switches repeats."""
        return self.ranks_per_node * (1 if self.fabric is None else self.fabric.nodes_per_switch)

    def count_nodes(self, ranks: int) -> int:
        """Return the number of nodes that `ranks` ranks occupy."""
        return -(-ranks // self.ranks_per_node)
