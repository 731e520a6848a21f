"""Predicts the run time of a recorded job with another network, other algorithms, better balance or more ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hpccoll.errors import UsageError
from hpccoll.mpi4py.configuration import make_choice
from hpccoll.plan import Floats, Machine, Operation
from hpccoll.predict.machine_catalogue import load_machine
from hpccoll.profile.calls_in_a_row import find_followers, join_rows
from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.lateness import balance_gaps, expect_gaps, heal_ranks
from hpccoll.profile.network_model import (
    JobTransfers,
    NetworkModel,
    classify_transfers,
    find_fastest,
    fit_network,
    model_transfers,
    scale_algorithms,
    scale_transfers,
)
from hpccoll.profile.placement import Placement
from hpccoll.profile.replay import replay_job
from hpccoll.units import format_count

DEFAULT_CHANGES: Final = ("algorithm=auto", "bandwidth=2", "latency=0.5", "balance", "join", "ranks=2x")
FORMS: Final = (
    "algorithm=auto, algorithm=OPERATION/NAME, bandwidth=FACTOR, latency=FACTOR, machine=NAME|FILE.toml, balance, "
    "heal=RANK, join, ranks=Nx, ranks=Nx:strong"
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted run time of a changed job, and what was assumed.

    `error` is that of replaying the recorded run without a change, with the transfers of the fitted network if the
    prediction uses them.
    """

    change: str  # as the user gives it
    description: str  # in words
    seconds: float
    recorded_s: float
    error: float
    assumption: str = ""

    @property
    def saving(self) -> float:
        """The saved share of the recorded time; negative if the change makes the job slower."""
        return 1 - self.seconds / self.recorded_s


@dataclass(frozen=True, slots=True)
class ChangedJob:
    """The computing and transfer times of a changed job; `uses_model` if they come from the fitted network."""

    name: str
    gap_s: Floats
    transfer_s: Floats
    assumption: str = ""
    uses_model: bool = False


class WhatIf:
    """Predicts the run time that a recorded job would have after a change, such as `bandwidth=2`.

    Args:
        graph: the recorded calls.
    """

    def __init__(self, graph: CallGraph) -> None:
        self.graph = graph
        self.placement = Placement.read(graph.profile)
        self.transfers: JobTransfers = classify_transfers(graph, self.placement)
        self.network: NetworkModel = fit_network(graph, self.transfers, self.placement)
        self.error = abs(replay_job(graph).run_s / graph.run_s - 1)
        transfer_s = model_transfers(graph, self.transfers, self.network)
        self.network_error = abs(replay_job(graph, transfer_s=transfer_s).run_s / graph.run_s - 1)

    def predict(self, changes: Iterable[str]) -> list[Prediction]:
        """Return a prediction for each change; FORMS lists the forms of changes.

        Raises:
            UsageError: a change has another form.
            UnknownNameError: there is no such operation, algorithm or machine.
        """
        return [self._predict(change, self._make_change(change)) for change in changes]

    def _predict(self, change: str, changed: ChangedJob) -> Prediction:
        """Return the prediction of a job with `change`."""
        seconds = replay_job(self.graph, changed.gap_s, changed.transfer_s).run_s
        error = self.network_error if changed.uses_model else self.error
        return Prediction(change, changed.name, seconds, self.graph.run_s, error, changed.assumption)

    def _make_change(self, change: str) -> ChangedJob:
        """Return the job with one change, given in a form of FORMS."""
        graph = self.graph
        name, _, value = change.partition("=")
        if change == "balance":
            return ChangedJob("perfect balance", balance_gaps(graph), graph.transfer_s)
        if change == "join":
            joined = join_rows(graph, find_followers(graph))
            return ChangedJob("calls in a row joined", *joined, "a joined call takes as long as one")
        if name == "heal":
            rank = _parse_number(change, value, 0, len(graph.start_s) - 1)
            return ChangedJob(
                f"rank {rank} as fast as the others", heal_ranks(graph, (rank,), expect_gaps(graph)), graph.transfer_s
            )
        if name == "ranks":
            return self._change_ranks(change, value)
        return self._change_network(change, name, value)

    def _change_ranks(self, change: str, value: str) -> ChangedJob:
        """Return the job on several times as many ranks."""
        times, _, scaling = value.partition(":")
        factor = _parse_number(change, times.removesuffix("x"), 1, 2**16)
        if scaling not in ("", "weak", "strong"):
            raise UsageError(
                f"--what-if {change}: scaling is weak or strong, not {scaling}; write ranks={factor}x:strong"
            )
        gap_s = self.graph.gap_s / factor if scaling == "strong" else self.graph.gap_s
        transfer_s = scale_transfers(self.graph, self.transfers, self.network, self.network, factor=factor)
        ranks = format_count(factor * len(self.graph.start_s), "rank")
        assumption = f"{scaling or 'weak'} scaling: the recorded ranks stand for all, messages keep their sizes"
        return ChangedJob(ranks, gap_s, transfer_s, assumption, uses_model=True)

    def _change_network(self, change: str, name: str, value: str) -> ChangedJob:
        """Return the job on another network, or with other algorithms."""
        network = self.network
        if name in ("bandwidth", "latency"):
            factor = _parse_factor(change, value)
            if name == "bandwidth":
                changed = replace(network, beta_s_per_byte=network.beta_s_per_byte / factor)
            else:
                changed = replace(network, alpha_s=network.alpha_s * factor)
            title = f"{factor:g} times the {name}"
        elif name == "machine" and value:
            return self._change_machine(load_machine(value))
        elif name == "algorithm":
            return self._change_algorithms(change, value)
        else:
            raise UsageError(f"--what-if {change}: is no change; the forms are {FORMS}")
        transfer_s = scale_transfers(self.graph, self.transfers, network, changed)
        return ChangedJob(title, self.graph.gap_s, transfer_s, uses_model=True)

    def _change_machine(self, machine: Machine) -> ChangedJob:
        """Return the job on another machine, whose nodes have the recorded ranks if the job ran on several nodes."""
        graph, placed, assumption = self.graph, self.transfers, "ranks are on nodes as recorded"
        if self.placement.count == 1:
            placed = classify_transfers(graph, Placement.fill(len(graph.start_s), machine.ranks_per_node))
            assumption = f"{format_count(machine.ranks_per_node, 'rank')} per node"
        changed = replace(self.network, machine=machine)
        transfer_s = scale_transfers(graph, self.transfers, self.network, changed, placed=placed)
        return ChangedJob(f"network of {machine.name}", graph.gap_s, transfer_s, assumption, uses_model=True)

    def _change_algorithms(self, change: str, value: str) -> ChangedJob:
        """Return the job with other algorithms: `auto`, or that of an operation."""
        operation, slash, algorithm = value.partition("/")
        if value != "auto" and not slash:
            raise UsageError(f"--what-if {change}: write algorithm=auto or algorithm=OPERATION/NAME")
        changed, title = replace(self.network, choices=()), "the fastest algorithms"
        if slash:
            known = Operation.from_name(operation)
            changed = replace(changed, choices=(make_choice(operation, algorithm, 0, None),))
            title = f"{known.value} by {algorithm}"
        transfer_s = scale_algorithms(self.graph, self.transfers, changed, only_faster=not slash)
        assumption = "the algorithms take the times that they have on the fitted network"
        return ChangedJob(title, self.graph.gap_s, transfer_s, assumption, uses_model=True)

    def choose_algorithms(self) -> dict[str, list[tuple[int, str]]]:
        """Return, for each operation, pairs of a message size and the fastest algorithm of the fitted network.

        The sizes are those of the largest communicators, because the drop-in chooses by operation and size only.
        """
        most: dict[str, int] = {}
        for kind in self.transfers.kinds:
            most[kind.operation] = max(most.get(kind.operation, 0), kind.ranks)
        chosen: dict[str, list[tuple[int, str]]] = {}
        for kind in sorted(self.transfers.kinds, key=lambda kind: kind.nbytes):
            if kind.operation not in ("send", "barrier") and kind.ranks == most[kind.operation]:
                chosen.setdefault(kind.operation, []).append(
                    (kind.nbytes, find_fastest(kind, self.network.make_machine(kind))[0])
                )
        return chosen


def format_configuration(chosen: dict[str, list[tuple[int, str]]]) -> str:
    """Return the lines of a shell script that lets the drop-in for mpi4py choose these algorithms.

    A choice holds from its size to the size of the next one. Source it before the job, or pass the variable to mpirun.
    """
    items = []
    for operation, sizes in sorted(chosen.items()):
        for (least, algorithm), end in zip(sizes, [*(str(size) for size, _ in sizes[1:]), ""], strict=True):
            items.append(f"{operation}:{least}-{end}={algorithm}")
    return f"export HPCCOLL_MPI4PY_ALGORITHMS={','.join(items)}\n"


def _parse_number(change: str, value: str, least: int, most: int) -> int:
    """Return `value` as a whole number from `least` to `most`; raise UsageError, which names `change`, otherwise."""
    if not value.isdecimal() or not least <= int(value) <= most:
        raise UsageError(
            f"--what-if {change}: {value!r} is no whole number from {least} to {most}; the forms are {FORMS}"
        )
    return int(value)


def _parse_factor(change: str, value: str) -> float:
    """Return `value` as a positive factor; raise UsageError, which names `change`, otherwise."""
    try:
        factor = float(value)
    except ValueError:
        factor = np.nan
    if not 0 < factor < np.inf:
        raise UsageError(f"--what-if {change}: {value!r} is no factor above 0; write for example bandwidth=2")
    return factor
