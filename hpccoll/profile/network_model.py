"""Models the network of a recorded job, and computes by how much a change makes the job's transfers longer or shorter.

A transfer of a collective is modelled as the simulated time of a plan on a machine: rounds * alpha + bytes of the
busiest rank * beta. If several nodes run several ranks each, alpha and beta within nodes differ from those
between nodes; otherwise, all pairs of ranks have the same alpha and beta. If the algorithm is unknown, as that of the
MPI library, the plan is the fastest one in the model. A recorded transfer is multiplied by the ratio of two modelled
times, so that its noise is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hpccoll.algorithms import get_algorithm, list_algorithm_names
from hpccoll.errors import HpccollError
from hpccoll.mpi4py.configuration import AUTO, AlgorithmChoice, read_choices
from hpccoll.plan import Floats, Link, Machine, Operation, simulate
from hpccoll.predict.forecast import ITEMSIZE, choose_forecast_chunks, fill_nodes, forecast
from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.placement import Placement
from hpccoll.profile.transfer_kinds import (
    JobTransfers,
    ModelledTransfer,
    grow_transfer,
    measure_transfers,
)

_FIRST_ALPHA_S, _FIRST_BETA = 2e-6, 2e-10  # network on which the fit first chooses algorithms
_LEAST = (1e-9, 1e-13)  # alpha and beta of the fastest network that a fit returns
_ALPHA_BYTES = tuple(2**power for power in range(10, 25))  # alpha / beta of real networks: 1 KiB to 16 MiB
_RARE_SHARE = 0.05  # kinds with fewer transfers than this share of those of the most frequent kind are not fitted
_LATE_S = 1e4  # longer than any collective
_CLOSE_ERROR = 0.05  # networks with errors larger by at most this explain transfers nearly as well
_GLOO = "all_reduce=ring,all_gather=ring,reduce_scatter=ring,broadcast=tree,barrier=dissemination"  # its algorithms


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """A network on which transfers take simulated times.

    Args:
        alpha_s: the seconds of latency per message between nodes.
        beta_s_per_byte: the seconds per byte of a message between nodes.
        within: the link between two ranks of a node; None if it equals that between nodes.
        machine: a machine model that replaces alpha, beta and `within`; None if there is none.
        choices: algorithms by operation and size, which the user or Gloo has chosen; of several choices for a
            transfer, the last one holds. Collectives without a choice, or whose choice has no model, use the fastest
            algorithm on the network.
    """

    alpha_s: float
    beta_s_per_byte: float
    within: Link | None = None
    machine: Machine | None = None
    choices: tuple[AlgorithmChoice, ...] = ()

    def find_choice(self, kind: ModelledTransfer) -> str | None:
        """Return the algorithm that `choices` has for a kind of transfers, such as `ring` or `mpi`.

        The result is None if `choices` has `auto` or nothing for these transfers.
        """
        chosen = (
            choice.algorithm
            for choice in reversed(self.choices)
            if choice.operation.value == kind.operation and choice.includes(kind.nbytes)
        )
        name = next(chosen, AUTO)
        return None if name == AUTO else name

    def find_algorithm(self, kind: ModelledTransfer) -> str:
        """Return the algorithm of a kind of collectives: that in `choices` if it has a model, else the fastest one."""
        chosen = self.find_choice(kind)
        if chosen is not None and kind.can_simulate(chosen):
            return chosen
        return find_fastest(kind, self.make_machine(kind))[0]

    def make_machine(self, kind: ModelledTransfer) -> Machine:
        """Return the network as a machine model for simulations of a kind of transfers."""
        if self.machine is not None:
            return self.machine.with_ranks_per_node(kind.per_node)
        if self.within is None:
            return Machine.flat(self.alpha_s, self.beta_s_per_byte, 0.0)
        between = Link.one_port(self.alpha_s, self.beta_s_per_byte)
        return Machine("recorded", kind.per_node, self.within, between, 1, 0.0)

    def predict_s(self, kind: ModelledTransfer) -> float:
        """Return the seconds that a transfer of a kind takes on the network, the sum of its stages."""
        return sum(self._predict_stage_s(stage) for stage in kind.list_stages())

    def _predict_stage_s(self, kind: ModelledTransfer) -> float:
        """Return the seconds that a transfer of a kind with a single stage takes on the network."""
        machine = self.make_machine(kind)
        if kind.operation == "send" or kind.ranks < 2:
            link = machine.within if kind.per_node > 1 else machine.between
            return link.alpha_s + float(link.transfer_s(np.array([float(kind.nbytes)]))[0])
        return simulate_kind(kind, machine, self.find_algorithm(kind))

    def find_delays(self, kind: ModelledTransfer, root: int, *, has_nodes: bool) -> Floats:
        """Return a matrix of seconds from the entry of one rank (row) until another (column) can leave a collective.

        Element [i, j] is the time from the entry of rank i, if rank i enters long after the others, until rank j
        leaves. The element is minus infinity if rank j does not wait for rank i. Each rank enters a stage of the
        collective when it leaves the one before. Cost: a simulation per rank and stage.

        Args:
            kind: the kind of collectives.
            root: the root, as a rank of the communicator.
            has_nodes: whether the ranks are on several nodes. A processor is busy during the latency of messages, but
                with `has_nodes` it is not busy during the latency of messages between nodes.
        """
        first, *others = (self._find_stage_delays(stage, root, has_nodes=has_nodes) for stage in kind.list_stages())
        for delays in others:
            first = (first[:, :, np.newaxis] + delays).max(axis=1)
        return first

    def _find_stage_delays(self, kind: ModelledTransfer, root: int, *, has_nodes: bool) -> Floats:
        """Return the matrix of `find_delays` for a kind of collectives with a single stage."""
        machine = self.make_machine(kind)
        algorithm = get_algorithm(Operation(kind.operation), self.find_algorithm(kind))
        if has_nodes:
            machine = replace(machine, between=replace(machine.between, overhead_s=0.0))
        nbytes = max(kind.nbytes, ITEMSIZE)
        chunks = choose_forecast_chunks(algorithm, kind.ranks, nbytes)
        plan = algorithm.plan(kind.ranks, root, chunks, fill_nodes(kind.ranks, machine))
        count = algorithm.operation.count_elements(nbytes, ITEMSIZE, kind.ranks)
        clocks_s = [
            simulate(plan, machine, count, ITEMSIZE, trace=False, entered_s=entered_s).clocks_s
            for entered_s in np.eye(kind.ranks) * _LATE_S
        ]
        delays = np.array(clocks_s) - _LATE_S
        return np.where(delays > -_LATE_S / 2, delays, -np.inf)


def find_fastest(kind: ModelledTransfer, machine: Machine) -> tuple[str, float]:
    """Return the name of the fastest algorithm for a kind of collectives on a machine, and its simulated seconds.

    Algorithms that use shared memory are left out.
    """
    operation = Operation(kind.operation)
    timed = []
    for algorithm in list_algorithm_names(operation):
        try:
            if kind.can_simulate(algorithm):
                timed.append((simulate_kind(kind, machine, algorithm), algorithm))
        except HpccollError:  # the algorithm does not take this number of ranks
            continue
    seconds, algorithm = min(timed)
    return algorithm, seconds


@lru_cache(maxsize=4096)
def simulate_kind(kind: ModelledTransfer, machine: Machine, algorithm: str) -> float:
    """Return the seconds of a simulation of the algorithm named `algorithm` for a kind of collectives on a machine."""
    operation = Operation(kind.operation)
    return forecast(get_algorithm(operation, algorithm), kind.ranks, machine, max(kind.nbytes, ITEMSIZE)).seconds


def list_networks(graph: CallGraph, transfers: JobTransfers, placement: Placement) -> list[NetworkModel]:
    """Return networks that explain the recorded transfers: the fitted one, then those that differ from it the most.

    The fitted network has the least sum of squared relative errors; the weight of a kind of transfers is its share of
    the time of all transfers. All modelled transfers together take as long as the recorded transfers. Rare kinds, such
    as the barriers at both ends of a program, are left out, because the mean of a few calls is uncertain. Collectives
    are simulated with the user's choices for the drop-in, or with the algorithms of Gloo, or else with the fastest.

    Transfers of similar sizes do not distinguish latency from bandwidth, so that networks with smaller and larger
    ratios of alpha to beta explain them nearly as well. If several nodes run several ranks each, only the fitted
    network is listed.

    Cost: simulations of each algorithm for each kind of transfer.
    """
    from scipy.optimize import nnls

    has_levels = placement.count > 1 and any(kind.per_node > 1 for kind in transfers.kinds)
    known = _GLOO if graph.profile.library == "gloo" else graph.profile.algorithms or ""
    choices, recorded = tuple(read_choices(known)), measure_transfers(graph, transfers)
    fewest = _RARE_SHARE * max((measured.count for measured in recorded), default=0)
    used = [
        (kind, measured) for kind, measured in zip(transfers.kinds, recorded, strict=True)
        if measured.seconds > 0 and kind.ranks > 1 and measured.count >= fewest
    ]  # fmt: skip
    if not used:
        return [NetworkModel(_FIRST_ALPHA_S, _FIRST_BETA, choices=choices)]
    weights = np.array([measured.seconds * measured.count for _, measured in used])
    weights /= weights.sum()
    costs = [_count_costs(kind, choices, has_levels=has_levels) for kind, _ in used]
    rows = np.array(costs) / np.array([[measured.seconds] for _, measured in used])
    fitted = nnls(rows * np.sqrt(weights)[:, np.newaxis], np.sqrt(weights))[0]
    costs_of_networks = [_scale_costs(rows, weights, fitted)]
    if not has_levels:
        costs_of_networks = _list_alternatives(rows, weights, costs_of_networks[0])
    networks = []
    for values in costs_of_networks:
        alpha_s, beta, *within = (max(value, least) for value, least in zip(values.tolist(), _LEAST * 2, strict=False))
        networks.append(NetworkModel(alpha_s, beta, Link.one_port(*within) if within else None, choices=choices))
    return networks


def _list_alternatives(rows: Floats, weights: Floats, fitted: Floats) -> list[Floats]:
    """Return arrays (alpha, beta) of networks that explain the recorded transfers: the fitted one, then extreme ones.

    The extreme networks have the least and the largest ratio of alpha to beta with an error nearly as small as that of
    the fitted network. If the fitted alpha / beta is outside of the range of real networks (1 KiB to 16 MiB), a
    network with a ratio between the extreme ones replaces the fitted network.

    Args:
        rows: for each kind of transfers, the coefficients of alpha and beta, divided by its recorded time.
        weights: the share of each kind in the time of all transfers.
        fitted: the alpha and beta of the least error.
    """
    scaled = [_scale_costs(rows, weights, np.array([1.0, 1 / nbytes])) for nbytes in _ALPHA_BYTES]
    largest = _compute_error(rows, weights, fitted) + _CLOSE_ERROR
    close = [costs for costs in scaled if _compute_error(rows, weights, costs) <= largest]
    if not close:
        return [fitted]
    is_real = _ALPHA_BYTES[0] * fitted[1] <= fitted[0] <= _ALPHA_BYTES[-1] * fitted[1]
    return [fitted if is_real else close[len(close) // 2], close[0], close[-1]]


def _scale_costs(rows: Floats, weights: Floats, costs: Floats) -> Floats:
    """Return `costs`, scaled so that all modelled transfers together take as long as all recorded transfers."""
    return costs / max(float(weights @ (rows @ costs)), _LEAST[0])


def _compute_error(rows: Floats, weights: Floats, costs: Floats) -> float:
    """Return the square root of the weighted mean of the squared relative errors of all modelled transfers."""
    return float(np.sqrt(weights @ np.square(rows @ costs - 1)))


def _count_costs(kind: ModelledTransfer, choices: tuple[AlgorithmChoice, ...], *, has_levels: bool) -> list[float]:
    """Return the coefficients of alpha and beta in the modelled time of a kind of transfers: [messages, bytes].

    The coefficients of a kind with several stages are the sums of those of its stages.

    Args:
        kind: the kind of transfers.
        choices: the known algorithms; other collectives are simulated with the fastest algorithm.
        has_levels: whether links within nodes differ from those between nodes. With `has_levels`, the result has four
            elements: messages and bytes between nodes, and messages and bytes within nodes.
    """
    units = np.eye(4 if has_levels else 2).tolist()
    links = [Link.one_port(*unit[2:]) if has_levels else None for unit in units]
    networks = [NetworkModel(unit[0], unit[1], link) for unit, link in zip(units, links, strict=True)]
    if kind.operation == "send":
        return [network.predict_s(kind) for network in networks]
    within = Link.one_port(_FIRST_ALPHA_S / 4, _FIRST_BETA / 4) if has_levels else None
    first = NetworkModel(_FIRST_ALPHA_S, _FIRST_BETA, within, choices=choices)
    stages = [(stage, first.find_algorithm(stage)) for stage in kind.list_stages()]
    return [
        sum(simulate_kind(stage, network.make_machine(stage), algorithm) for stage, algorithm in stages)
        for network in networks
    ]


def model_transfers(graph: CallGraph, transfers: JobTransfers, network: NetworkModel) -> Floats:
    """Return the transfer times of all calls on a network, in seconds, shape (calls,).

    The times are the recorded times, scaled so that the mean over each kind of transfers is its simulated time.
    """
    recorded = measure_transfers(graph, transfers)
    ratios = [
        network.predict_s(kind) / transfer.seconds if transfer.seconds else 1.0
        for kind, transfer in zip(transfers.kinds, recorded, strict=True)
    ]
    return graph.transfer_s * np.array([*ratios, 1.0], np.float64)[transfers.index]


def scale_transfers(
    graph: CallGraph,
    transfers: JobTransfers,
    recorded: NetworkModel,
    changed: NetworkModel,
    *,
    factor: int = 1,
    is_strong: bool = False,
    placed: JobTransfers | None = None,
) -> Floats:
    """Return the transfer times of all calls after a change of the job, in seconds, shape (calls,).

    The times are the recorded times, scaled by the ratio of the simulated times after and before the change.

    Args:
        graph: the recorded calls.
        transfers: the kinds of transfers of the recorded calls.
        recorded: the network before the change.
        changed: the network after the change.
        factor: the number of ranks after the change, divided by that before it.
        is_strong: whether the whole array of a gather or all-gather keeps its size; otherwise, each rank's block does.
        placed: the kinds of transfers after ranks have moved to other nodes; None if no rank moves.
    """
    placed = placed or transfers
    grown = [grow_transfer(kind, factor, is_strong=is_strong) for kind in placed.kinds]
    changed_s, recorded_s = (
        np.array([*map(network.predict_s, kinds), 1.0], np.float64)
        for network, kinds in ((changed, grown), (recorded, transfers.kinds))
    )
    return graph.transfer_s * changed_s[placed.index] / recorded_s[transfers.index]
