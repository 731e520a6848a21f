"""A network model, fitted to a recorded job, that says by how much a change makes its transfers longer or shorter.

A transfer of a collective is modelled as the simulated time of a plan on a machine whose ranks are all equally far
apart: rounds * alpha + bytes of the busiest rank * beta. The plan is the fastest one in the model, because the
algorithm of the MPI library is unknown. A recorded transfer is multiplied by the ratio of two modelled times, so that
it keeps its own noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from hpccoll.algorithms import get_algorithm, list_algorithm_names
from hpccoll.errors import HpccollError
from hpccoll.plan import Floats, IntArray, Machine, Operation
from hpccoll.predict.forecast import forecast
from hpccoll.profile.dependencies import CallGraph

_FIRST_ALPHA_S, _FIRST_BETA = 2e-6, 2e-10  # with which the fit first chooses algorithms
_BLOCKS = frozenset({"all_gather", "gather"})  # whose message size is that of all ranks' blocks


@dataclass(frozen=True, slots=True)
class MessageClass:
    """Transfers that take equally long: the operation, the ranks of its communicator, and the message size in bytes."""

    operation: str
    ranks: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class TransferKinds:
    """The kind of each call as an index of `kinds`; -1: the call has no transfer on the network."""

    kinds: tuple[MessageClass, ...]
    index: IntArray


def classify_transfers(graph: CallGraph) -> TransferKinds:
    """Return the kind of the transfer of each call; a wait has the kind of the operation that it completes."""
    instance = graph.matches.instance
    count = int(instance.max(initial=-1)) + 1
    nbytes, op, comm = np.zeros(count, np.int64), np.full(count, -1), np.full(count, -1)
    inside = instance >= 0
    np.maximum.at(nbytes, instance[inside], graph.nbytes[inside])
    np.maximum.at(comm, instance[inside], graph.comm[inside])
    is_own = inside & np.isin(graph.op, [i for i, name in enumerate(graph.operations) if name not in ("wait", "start")])
    op[instance[is_own]] = graph.op[is_own]
    numbers: dict[MessageClass, int] = {}
    index = np.full(len(instance), -1)
    for call in np.flatnonzero(inside & (graph.transfer_s > 0)).tolist():
        number = instance[call]
        operation = _choose_modelled_operation(graph.operations[op[number]])
        ranks = len(graph.profile.comms[comm[number]]) if comm[number] >= 0 else graph.profile.size
        size = int(nbytes[number]) * (ranks if operation in _BLOCKS else 1)
        index[call] = numbers.setdefault(MessageClass(operation, ranks, size), len(numbers))
    return TransferKinds(tuple(numbers), index)


def _choose_modelled_operation(name: str) -> str:
    """Return the operation by which a recorded one is modelled; one without plans, such as a split, is a barrier."""
    if name in ("send", "recv", "sendrecv"):
        return "send"
    return name if name in {operation.value for operation in Operation} else Operation.BARRIER.value


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """A network by alpha (seconds per message) and beta (seconds per byte), or a machine model.

    `algorithms` are names by operation; other operations use the fastest algorithm of the model.
    """

    alpha_s: float
    beta_s_per_byte: float
    machine: Machine | None = None
    algorithms: dict[str, str] = field(default_factory=dict)

    def predict_s(self, kind: MessageClass) -> float:
        """Return the modelled time of a transfer."""
        machine = self.machine or Machine.flat(self.alpha_s, self.beta_s_per_byte, 0.0)
        if kind.operation == "send" or kind.ranks < 2:
            link = machine.between
            return link.alpha_s + float(link.transfer_s(np.array([float(kind.nbytes)]))[0])
        named = self.algorithms.get(kind.operation)
        return simulate_kind(kind, machine, named) if named else find_fastest(kind, machine)[1]


def find_fastest(kind: MessageClass, machine: Machine) -> tuple[str, float]:
    """Return the name of the fastest algorithm of messages for a transfer, and its simulated seconds."""
    operation = Operation(kind.operation)
    found = []
    for algorithm in list_algorithm_names(operation):
        try:
            if not get_algorithm(operation, algorithm).uses_shared_memory:
                found.append((simulate_kind(kind, machine, algorithm), algorithm))
        except HpccollError:  # the algorithm needs another number of ranks
            continue
    seconds, algorithm = min(found)
    return algorithm, seconds


@lru_cache(maxsize=4096)
def simulate_kind(kind: MessageClass, machine: Machine, algorithm: str) -> float:
    """Return the simulated seconds of an algorithm for a transfer."""
    operation = Operation(kind.operation)
    return forecast(get_algorithm(operation, algorithm), kind.ranks, machine, max(kind.nbytes, 4)).seconds


def fit_network(graph: CallGraph, transfers: TransferKinds) -> NetworkModel:
    """Return the network whose modelled transfers come closest to the recorded medians, as relative errors.

    Cost: a simulation of each algorithm for each kind of transfer.
    """
    from scipy.optimize import nnls

    rows, seconds = [], []
    first = Machine.flat(_FIRST_ALPHA_S, _FIRST_BETA, 0.0)
    for number, kind in enumerate(transfers.kinds):
        measured = float(np.median(graph.transfer_s[transfers.index == number]))
        if measured > 0 and kind.ranks > 1:
            rows.append([features / measured for features in _count_costs(kind, first)])
            seconds.append(1.0)
    if not rows:
        return NetworkModel(_FIRST_ALPHA_S, _FIRST_BETA)
    alpha_s, beta = nnls(np.array(rows), np.array(seconds))[0].tolist()
    return NetworkModel(max(alpha_s, 1e-9), max(beta, 1e-13))


def _count_costs(kind: MessageClass, machine: Machine) -> tuple[float, float]:
    """Return how many alphas and betas the fastest algorithm of a transfer takes."""
    if kind.operation == "send":
        return 1.0, float(kind.nbytes)
    algorithm = find_fastest(kind, machine)[0]
    alphas, betas = (simulate_kind(kind, Machine.flat(*costs, 0.0), algorithm) for costs in ((1.0, 0.0), (0.0, 1.0)))
    return alphas, betas


def scale_algorithms(graph: CallGraph, transfers: TransferKinds, changed: NetworkModel, *, only_faster: bool) -> Floats:
    """Return the transfers of all calls by other algorithms: of `changed.algorithms`, or the fastest if that is empty.

    A transfer is multiplied by the modelled time of the algorithm, divided by the recorded median of its kind. With
    `only_faster`, transfers never get longer.
    """
    ratios = np.ones(len(transfers.kinds) + 1)
    for number, kind in enumerate(transfers.kinds):
        recorded_s = float(np.median(graph.transfer_s[transfers.index == number]))
        if kind.operation != "send" and (not changed.algorithms or kind.operation in changed.algorithms):
            ratios[number] = changed.predict_s(kind) / recorded_s
    return graph.transfer_s * (np.minimum(ratios, 1.0) if only_faster else ratios)[transfers.index]


def scale_transfers(
    graph: CallGraph, transfers: TransferKinds, recorded: NetworkModel, changed: NetworkModel, *, factor: int = 1
) -> Floats:
    """Return the transfers of all calls on a changed network, or with `factor` times as many ranks."""
    ratios = np.ones(len(transfers.kinds) + 1)
    for number, kind in enumerate(transfers.kinds):
        grown = replace(kind, ranks=kind.ranks * factor if kind.operation != "send" else kind.ranks)
        if kind.operation in _BLOCKS:
            grown = replace(grown, nbytes=kind.nbytes * factor)
        ratios[number] = changed.predict_s(grown) / recorded.predict_s(kind)
    return graph.transfer_s * ratios[transfers.index]
