"""Maximum flows and minimum cuts of graphs with integer capacities, by scipy's implementation of Dinic's algorithm."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from hpccoll.synthesis.network import NetworkError

_MOST = 2**31 - 1  # scipy computes flows with 32-bit integers


def make_flow_graph(size: int, capacities: Mapping[tuple[int, int], int], limit: int) -> csr_array:
    """Return the graph of `size` vertices for `compute_max_flow`, with the capacity of each link (source, destination).

    Capacities above `limit` are reduced to it, because no flow of interest exceeds it. Raises NetworkError if
    capacities or flows do not fit 32-bit integers.
    """
    if limit > _MOST:
        raise NetworkError(
            f"the bandwidths of the network need {limit.bit_length()} bits as multiples of their common unit, and at "
            "most 31 bits are supported; round the bandwidths to fewer digits"
        )
    listed = [(a, b, min(capacity, limit)) for (a, b), capacity in capacities.items() if capacity > 0]
    source, dest, capacity = np.array(listed, np.int64).reshape(-1, 3).T
    return csr_array((capacity.astype(np.int32), (source, dest)), shape=(size, size))


def compute_max_flow(graph: csr_array, source: int, sink: int) -> int:
    """Return the value of the largest flow from vertex `source` to vertex `sink`."""
    return int(maximum_flow(graph, source, sink).flow_value)


def find_min_cut(graph: csr_array, source: int, sink: int) -> tuple[int, frozenset[int]]:
    """Return the value of the largest flow from `source` to `sink`, and the vertices on the source's side of a cut.

    The cut is a minimum cut: its capacity equals the flow.
    """
    result = maximum_flow(graph, source, sink)
    residual = csr_array(graph - result.flow)
    residual.eliminate_zeros()
    reached = breadth_first_order(residual, source, return_predecessors=False)
    return int(result.flow_value), frozenset(reached.tolist())
