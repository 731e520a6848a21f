"""Models the network of a recorded job, and computes by how much a change makes the job's transfers longer or shorter.

A transfer of a collective is modelled as the simulated time of a plan on a machine: rounds * alpha + bytes of the
busiest rank * beta. A job on several nodes of several ranks has an alpha and beta within nodes, and another pair
between them; in other jobs, all ranks are equally far apart. If the algorithm is unknown, as that of the MPI library,
the plan is the fastest one in the model. A recorded transfer is multiplied by the ratio of two modelled times, so that
its noise is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hpccoll.algorithms import get_algorithm, list_algorithm_names
from hpccoll.errors import HpccollError
from hpccoll.mpi4py.configuration import AUTO, AlgorithmChoice, read_choices
from hpccoll.plan import Floats, IntArray, Link, Machine, Operation
from hpccoll.predict.forecast import forecast
from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.placement import Placement
from hpccoll.selection import MPI_LIBRARY

_FIRST_ALPHA_S, _FIRST_BETA = 2e-6, 2e-10  # network on which the fit first chooses algorithms
_LEAST = (1e-9, 1e-13)  # alpha and beta of the fastest network that a fit returns
_ALPHA_BYTES = tuple(2**power for power in range(10, 25))  # alpha / beta of real networks: 1 KiB to 16 MiB
_RARE_SHARE = 0.05  # kinds with fewer transfers than this share of those of the most frequent kind are not fitted
_CLOSE_ERROR = 0.05  # networks with errors larger by at most this explain transfers nearly as well
BLOCK_OPERATIONS = frozenset({"all_gather", "gather"})  # recorded with the bytes of one block


@dataclass(frozen=True, slots=True)
class ModelledTransfer:
    """A kind of transfers of a job: those that should take equally long.

    Args:
        operation: the collective, or `send` for messages between two ranks.
        ranks: the number of ranks of the communicator.
        nbytes: the message size in bytes; for operations with a block per rank, that of all blocks.
        per_node: the number of consecutive ranks of the communicator that share a node; of a message between two ranks,
            2 if they share a node, else 1.
    """

    operation: str
    ranks: int
    nbytes: int
    per_node: int = 1

    @property
    def has_algorithms(self) -> bool:
        """Whether these are collectives of several ranks with data; barriers stand for splits of communicators, too."""
        return self.operation not in ("send", "barrier") and self.ranks > 1

    def can_simulate(self, algorithm: str) -> bool:
        """Whether the model has times of an algorithm, given by name.

        The model has none of the MPI library's own algorithm, nor of those that use shared memory, because it only
        knows messages.
        """
        return algorithm != MPI_LIBRARY and not get_algorithm(Operation(self.operation), algorithm).uses_shared_memory


@dataclass(frozen=True, slots=True)
class JobTransfers:
    """The kinds of a job's transfers.

    Args:
        kinds: the kinds.
        index: for each recorded call, the index of its kind in `kinds`, or -1 if it moves no data; shape (calls,).
    """

    kinds: tuple[ModelledTransfer, ...]
    index: IntArray


def classify_transfers(graph: CallGraph, placement: Placement | None = None) -> JobTransfers:
    """Return the kinds of a recorded job's transfers; a wait has the kind of the operation that it completes.

    `placement` states which ranks share a node; None stands for the recorded placement.
    """
    placement = placement or Placement.read(graph.profile)
    instance = graph.matches.instance
    count = int(instance.max(initial=-1)) + 1
    nbytes, op, comm = np.zeros(count, np.int64), np.full(count, -1), np.full(count, -1)
    inside = instance >= 0
    np.maximum.at(nbytes, instance[inside], graph.nbytes[inside])
    np.maximum.at(comm, instance[inside], graph.comm[inside])
    is_own = inside & np.isin(graph.op, [i for i, name in enumerate(graph.operations) if name not in ("wait", "start")])
    op[instance[is_own]] = graph.op[is_own]
    groups = [members or tuple(range(graph.profile.size)) for members in (*graph.profile.comms, ())]  # -1: all
    per_node = [placement.count_per_node(members) for members in groups]
    are_within, numbers = _find_messages_within_nodes(graph, placement, count), dict[ModelledTransfer, int]()
    index = np.full(len(instance), -1)
    for call in np.flatnonzero(inside & (graph.transfer_s > 0)).tolist():
        number = instance[call]
        operation = _choose_modelled_operation(graph.operations[op[number]])
        ranks, mates = len(groups[comm[number]]), per_node[comm[number]]
        size = int(nbytes[number]) * (ranks if operation in BLOCK_OPERATIONS else 1)
        kind = ModelledTransfer(operation, ranks, size, int(are_within[number]) + 1 if operation == "send" else mates)
        index[call] = numbers.setdefault(kind, len(numbers))
    return JobTransfers(tuple(numbers), index)


def _find_messages_within_nodes(graph: CallGraph, placement: Placement, count: int) -> NDArray[np.bool_]:
    """Return, by its number, whether each message is between two ranks of a node; false at collectives' numbers.

    `count` is the number of messages and collectives.
    """
    sender, are_within = graph.matches.find_senders(), np.zeros(count, bool)
    number = np.flatnonzero(sender >= 0)
    nodes, source, dest = np.array(placement.nodes), graph.rank[sender[number]], graph.dest[sender[number]]
    are_within[number] = (dest >= 0) & (nodes[source] == nodes[dest])
    return are_within


def _choose_modelled_operation(name: str) -> str:
    """Return the operation that stands for the recorded operation `name` in the model.

    All messages between two ranks are sends, and operations without algorithms, such as a split, are barriers.
    """
    if name in ("send", "recv", "sendrecv"):
        return "send"
    return name if name in {operation.value for operation in Operation} else Operation.BARRIER.value


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """A network on which transfers take simulated times.

    Args:
        alpha_s: the seconds of latency per message between nodes.
        beta_s_per_byte: the seconds per byte of a message between nodes.
        within: the link between two ranks of a node; None if it equals that between nodes.
        machine: a machine model that replaces alpha, beta and `within`; None if there is none.
        choices: algorithms by operation and size; of several choices for a transfer, the last one holds. Collectives
            without a choice, or whose choice has no model, use the fastest algorithm on the network.
    """

    alpha_s: float
    beta_s_per_byte: float
    within: Link | None = None
    machine: Machine | None = None
    choices: tuple[AlgorithmChoice, ...] = ()

    def find_choice(self, kind: ModelledTransfer) -> str | None:
        """Return the algorithm that the user chose for a kind of transfers, `mpi` included; None for `auto`."""
        chosen = (
            choice.algorithm
            for choice in reversed(self.choices)
            if choice.operation.value == kind.operation and choice.includes(kind.nbytes)
        )
        name = next(chosen, AUTO)
        return None if name == AUTO else name

    def find_algorithm(self, kind: ModelledTransfer) -> str | None:
        """Return the algorithm that the user chose for a kind of transfers; None for `auto` and if it has no model."""
        chosen = self.find_choice(kind)
        return chosen if chosen is not None and kind.can_simulate(chosen) else None

    def make_machine(self, kind: ModelledTransfer) -> Machine:
        """Return the network as a machine model for simulations of a kind of transfers."""
        if self.machine is not None:
            return self.machine.with_ranks_per_node(kind.per_node)
        if self.within is None:
            return Machine.flat(self.alpha_s, self.beta_s_per_byte, 0.0)
        between = Link.one_port(self.alpha_s, self.beta_s_per_byte)
        return Machine("recorded", kind.per_node, self.within, between, 1, 0.0)

    def predict_s(self, kind: ModelledTransfer) -> float:
        """Return the seconds that a transfer of a kind takes on the network."""
        machine = self.make_machine(kind)
        if kind.operation == "send" or kind.ranks < 2:
            link = machine.within if kind.per_node > 1 else machine.between
            return link.alpha_s + float(link.transfer_s(np.array([float(kind.nbytes)]))[0])
        named = self.find_algorithm(kind)
        return simulate_kind(kind, machine, named) if named else find_fastest(kind, machine)[1]


def find_fastest(kind: ModelledTransfer, machine: Machine) -> tuple[str, float]:
    """Return the name of the fastest algorithm for a kind of collectives on a machine, and its simulated seconds.

    Algorithms that use shared memory are left out.
    """
    operation = Operation(kind.operation)
    found = []
    for algorithm in list_algorithm_names(operation):
        try:
            if kind.can_simulate(algorithm):
                found.append((simulate_kind(kind, machine, algorithm), algorithm))
        except HpccollError:  # the algorithm does not take this number of ranks
            continue
    seconds, algorithm = min(found)
    return algorithm, seconds


@lru_cache(maxsize=4096)
def simulate_kind(kind: ModelledTransfer, machine: Machine, algorithm: str) -> float:
    """Return the seconds of a simulation of the algorithm named `algorithm` for a kind of collectives on a machine."""
    operation = Operation(kind.operation)
    return forecast(get_algorithm(operation, algorithm), kind.ranks, machine, max(kind.nbytes, 4)).seconds


def list_networks(graph: CallGraph, transfers: JobTransfers, placement: Placement) -> list[NetworkModel]:
    """Return networks that explain the recorded transfers: the fitted one, then the most different ones, if any.

    The fitted network has the least sum of squared relative errors; the weight of a kind of transfers is its share of
    the time of all transfers. The sum of all modelled transfers is the recorded one. Rare kinds, such as the barriers
    at both ends of a program, are left out, because their mean is that of a few calls. Collectives take the algorithms
    that the user has chosen for the drop-in, or else the fastest ones.

    Transfers of similar sizes do not tell latency from bandwidth, so that networks with smaller and larger ratios of
    alpha to beta explain them nearly as well. For a job on several nodes of several ranks, only the fitted network is
    listed.

    Cost: simulations of each algorithm for each kind of transfer.
    """
    from scipy.optimize import nnls

    has_levels = placement.count > 1 and any(kind.per_node > 1 for kind in transfers.kinds)
    choices, recorded = tuple(read_choices(graph.profile.algorithms or "")), measure_transfers(graph, transfers)
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
    found = [_scale_costs(rows, weights, fitted)]
    if not has_levels:
        found = _list_alternatives(rows, weights, found[0])
    networks = []
    for values in found:
        alpha_s, beta, *within = (max(value, least) for value, least in zip(values.tolist(), _LEAST * 2, strict=False))
        networks.append(NetworkModel(alpha_s, beta, Link.one_port(*within) if within else None, choices=choices))
    return networks


def _list_alternatives(rows: Floats, weights: Floats, fitted: Floats) -> list[Floats]:
    """Return costs (alpha, beta) that explain the recorded transfers: the best ones, then those of extreme ratios.

    The extreme ones have the least and the largest ratio of alpha to beta whose error is nearly as small as that of the
    fitted ones. If no real network has the fitted ratio, the costs at the middle of the extreme ratios replace the
    fitted ones.

    Args:
        rows: for each kind of transfers, its alphas and betas, divided by its recorded time.
        weights: the share of each kind in the time of all transfers.
        fitted: the alpha and beta of the least error.
    """
    found = [_scale_costs(rows, weights, np.array([1.0, 1 / nbytes])) for nbytes in _ALPHA_BYTES]
    largest = _compute_error(rows, weights, fitted) + _CLOSE_ERROR
    close = [costs for costs in found if _compute_error(rows, weights, costs) <= largest]
    if not close:
        return [fitted]
    is_real = _ALPHA_BYTES[0] * fitted[1] <= fitted[0] <= _ALPHA_BYTES[-1] * fitted[1]
    return [fitted if is_real else close[len(close) // 2], close[0], close[-1]]


def _scale_costs(rows: Floats, weights: Floats, costs: Floats) -> Floats:
    """Return `costs` multiplied so that the sum of all modelled transfers is the recorded one."""
    return costs / max(float(weights @ (rows @ costs)), _LEAST[0])


def _compute_error(rows: Floats, weights: Floats, costs: Floats) -> float:
    """Return the root of the weighted mean of the squared relative errors of the modelled transfers."""
    return float(np.sqrt(weights @ np.square(rows @ costs - 1)))


@dataclass(frozen=True, slots=True)
class RecordedTransfer:
    """The recorded times of one kind of transfers: mean and median in seconds, and the number of transfers."""

    seconds: float
    median_s: float
    count: int


def measure_transfers(graph: CallGraph, transfers: JobTransfers) -> list[RecordedTransfer]:
    """Return the recorded times of each kind of transfers.

    A collective takes the longest transfer of its ranks, because a plan is simulated until its last rank ends. A
    message takes the transfer of its receive, because a send may end when the message is in a buffer.
    """
    recorded, instance, receives = [], graph.matches.instance, graph.matches.received >= 0
    longest = np.zeros(int(instance.max(initial=-1)) + 1)
    for number, kind in enumerate(transfers.kinds):
        calls = np.flatnonzero(transfers.index == number)
        if kind.operation == "send" and receives[calls].any():
            calls = calls[receives[calls]]
        np.maximum.at(longest, instance[calls], graph.transfer_s[calls])
        own = np.unique(instance[calls])
        recorded.append(RecordedTransfer(float(longest[own].mean()), float(np.median(longest[own])), len(own)))
    return recorded


def _count_costs(kind: ModelledTransfer, choices: tuple[AlgorithmChoice, ...], *, has_levels: bool) -> list[float]:
    """Return how many messages in sequence, and bytes, are in the time of a kind of transfers: (alphas, betas).

    Args:
        kind: the kind of transfers.
        choices: the algorithms that the user has chosen; other collectives take the fastest algorithm.
        has_levels: whether links within nodes differ from those between nodes. The result then has four elements:
            alphas and betas between nodes, and alphas and betas within nodes.
    """
    units = np.eye(4 if has_levels else 2).tolist()
    links = [Link.one_port(*unit[2:]) if has_levels else None for unit in units]
    networks = [NetworkModel(unit[0], unit[1], link) for unit, link in zip(units, links, strict=True)]
    if kind.operation == "send":
        return [network.predict_s(kind) for network in networks]
    within = Link.one_port(_FIRST_ALPHA_S / 4, _FIRST_BETA / 4) if has_levels else None
    first = NetworkModel(_FIRST_ALPHA_S, _FIRST_BETA, within, choices=choices)
    algorithm = first.find_algorithm(kind) or find_fastest(kind, first.make_machine(kind))[0]
    return [simulate_kind(kind, network.make_machine(kind), algorithm) for network in networks]


def model_transfers(graph: CallGraph, transfers: JobTransfers, network: NetworkModel) -> Floats:
    """Return the transfer times of all calls on a network, in seconds, shape (calls,).

    The times are the recorded ones, multiplied so that the mean of each kind is its simulated time.
    """
    recorded = measure_transfers(graph, transfers)
    ratios = [
        network.predict_s(kind) / each.seconds if each.seconds else 1.0
        for kind, each in zip(transfers.kinds, recorded, strict=True)
    ]
    return graph.transfer_s * np.array([*ratios, 1.0], np.float64)[transfers.index]


def scale_transfers(
    graph: CallGraph,
    transfers: JobTransfers,
    recorded: NetworkModel,
    changed: NetworkModel,
    *,
    factor: int = 1,
    placed: JobTransfers | None = None,
) -> Floats:
    """Return the transfer times of all calls after a change of the job, in seconds, shape (calls,).

    The times are the recorded ones, multiplied by the simulated time after the change divided by that before it.

    Args:
        graph: the recorded calls.
        transfers: the kinds of their transfers.
        recorded: the network before the change.
        changed: the network after the change.
        factor: the number of ranks after the change, divided by that before it.
        placed: the kinds of transfers with the ranks on other nodes; None if the ranks stay on their nodes.
    """
    placed = placed or transfers
    grown = [
        replace(
            kind,
            ranks=kind.ranks * (1 if kind.operation == "send" else factor),
            nbytes=kind.nbytes * (factor if kind.operation in BLOCK_OPERATIONS else 1),
        )
        for kind in placed.kinds
    ]
    changed_s, recorded_s = (
        np.array([*map(network.predict_s, kinds), 1.0], np.float64)
        for network, kinds in ((changed, grown), (recorded, transfers.kinds))
    )
    return graph.transfer_s * changed_s[placed.index] / recorded_s[transfers.index]
