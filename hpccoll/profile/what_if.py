"""Predicts the run time of a recorded job with another network, other algorithms, better balance or more ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hpccoll.errors import UsageError
from hpccoll.mpi4py.configuration import make_choice
from hpccoll.plan import Floats, Machine
from hpccoll.predict.machine_catalogue import load_machine
from hpccoll.profile.algorithm_times import AlgorithmTimes
from hpccoll.profile.calls_in_a_row import find_followers, join_rows
from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.lateness import balance_gaps, expect_gaps, heal_ranks
from hpccoll.profile.network_model import (
    JobTransfers,
    NetworkModel,
    classify_transfers,
    find_fastest,
    list_networks,
    model_transfers,
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
# A prediction is stated if half the distance of its bounds is at most this share of the saving or of the run time.
CLOSE_SAVING: Final = 0.3
CLOSE_RUN: Final = 0.03


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted run time of the recorded job with a change.

    Args:
        change: the change, as the user gives it.
        description: the change in words.
        seconds: the predicted run time; None if it is not known closely enough.
        bounds_s: the least and the largest run time that the recording admits; None for a change whose effect the
            recorded times determine, and for one about which nothing is known.
        recorded_s: the run time of the recorded job.
        error: the relative error of replaying the recorded job without a change, with the transfers of the fitted
            network if the prediction uses them.
        assumption: what the prediction assumes, in words.
    """

    change: str
    description: str
    seconds: float | None
    bounds_s: tuple[float, float] | None
    recorded_s: float
    error: float
    assumption: str = ""

    @property
    def saving(self) -> float | None:
        """The saved share of the recorded time, negative if the change makes the job slower; None if not known."""
        return None if self.seconds is None else 1 - self.seconds / self.recorded_s

    @property
    def saving_bounds(self) -> tuple[float, float] | None:
        """The least and the largest share of the recorded time that the change may save; None without `bounds_s`."""
        if self.bounds_s is None:
            return None
        return 1 - self.bounds_s[1] / self.recorded_s, 1 - self.bounds_s[0] / self.recorded_s

    def format_values(self) -> tuple[str, str]:
        """Return the run time and the saving in words: as ranges if they are known roughly, or `not known`."""
        if self.seconds is not None:
            return f"{self.seconds:.4g} s", f"{self.saving:.1%}"
        if self.bounds_s is None or self.saving_bounds is None:
            return "not known", "not known"
        low_s, high_s = self.bounds_s
        least, most = self.saving_bounds
        return f"{low_s:.3g} to {high_s:.3g} s", f"{least:.0%} to {most:.0%}"


@dataclass(frozen=True, slots=True)
class ChangedJob:
    """The computing and transfer times of a changed job.

    Args:
        name: the change in words.
        gap_s: the seconds for which each rank computes before each call.
        transfer_s: the best estimate of the transfer of each call in seconds; None if nothing is known about it.
        bounds_s: the shortest and the longest transfers of the calls; None if `transfer_s` has no such uncertainty.
        assumption: what the times assume, in words.
        uses_model: whether the transfers come from the fitted network.
        remedy: the commands that measure the effect of the change; empty if there are none.
    """

    name: str
    gap_s: Floats
    transfer_s: Floats | None
    bounds_s: tuple[Floats, Floats] | None = None
    assumption: str = ""
    uses_model: bool = False
    remedy: str = ""


class WhatIf:
    """Predicts the run time that a recorded job would have after a change, such as `bandwidth=2`.

    Cost: the fit of a network to the recorded transfers, and two replays.

    Args:
        graph: the recorded calls.
    """

    def __init__(self, graph: CallGraph) -> None:
        self.graph = graph
        self.placement = Placement.read(graph.profile)
        self.transfers: JobTransfers = classify_transfers(graph, self.placement)
        self.networks: list[NetworkModel] = list_networks(graph, self.transfers, self.placement)
        self.network = self.networks[0]  # the network that was fitted to the recorded transfers
        self.error = abs(replay_job(graph).run_s / graph.run_s - 1)
        transfer_s = model_transfers(graph, self.transfers, self.network)
        self.network_error = abs(replay_job(graph, transfer_s=transfer_s).run_s / graph.run_s - 1)
        self._times = AlgorithmTimes(graph, self.transfers, self.networks)

    def predict(self, changes: Iterable[str]) -> list[Prediction]:
        """Return a prediction for each change; FORMS lists the forms of changes.

        Raises:
            UsageError: a change has another form.
            UnknownNameError: there is no such operation, algorithm or machine.
        """
        return [self._predict(change, self._make_change(change)) for change in changes]

    def _predict(self, change: str, changed: ChangedJob) -> Prediction:
        """Return the prediction of a job with `change`; its run time is None if its bounds are too far apart."""
        recorded_s, seconds, bounds_s = self.graph.run_s, None, None
        if changed.transfer_s is not None:
            seconds = replay_job(self.graph, changed.gap_s, changed.transfer_s).run_s
        if seconds is not None and changed.bounds_s is not None:
            low_s, high_s = (replay_job(self.graph, changed.gap_s, each).run_s for each in changed.bounds_s)
            bounds_s = low_s, high_s
            if (high_s - low_s) / 2 > max(CLOSE_SAVING * abs(recorded_s - seconds), CLOSE_RUN * recorded_s):
                seconds = None
        error = self.network_error if changed.uses_model else self.error
        remedy = f"not known closely: {changed.remedy}" if seconds is None and changed.remedy else ""
        assumption = "; ".join(filter(None, (changed.assumption, remedy)))
        return Prediction(change, changed.name, seconds, bounds_s, recorded_s, error, assumption)

    def _make_change(self, change: str) -> ChangedJob:
        """Return the job with the change `change`, which is in one of the forms of FORMS."""
        graph = self.graph
        name, _, value = change.partition("=")
        if change == "balance":
            return ChangedJob("perfect balance", balance_gaps(graph), graph.transfer_s)
        if change == "join":
            joined = join_rows(graph, find_followers(graph))
            return ChangedJob("calls in a row joined", *joined, assumption="a joined call takes as long as one")
        if name == "heal":
            rank = _parse_number(change, value, 0, len(graph.start_s) - 1)
            return ChangedJob(
                f"rank {rank} as fast as the others", heal_ranks(graph, (rank,), expect_gaps(graph)), graph.transfer_s
            )
        if name == "ranks":
            return self._change_ranks(change, value)
        return self._change_network(change, name, value)

    def _change_ranks(self, change: str, value: str) -> ChangedJob:
        """Return the job on several times as many ranks; `value` is the part of `change` after `ranks=`."""
        times, _, scaling = value.partition(":")
        factor = _parse_number(change, times.removesuffix("x"), 1, 2**16)
        if scaling not in ("", "weak", "strong"):
            raise UsageError(
                f"--what-if {change}: scaling is weak or strong, not {scaling}; write ranks={factor}x:strong"
            )
        gap_s = self.graph.gap_s / factor if scaling == "strong" else self.graph.gap_s
        transfers_s = [
            scale_transfers(self.graph, self.transfers, network, network, factor=factor) for network in self.networks
        ]
        ranks = format_count(factor * len(self.graph.start_s), "rank")
        assumption = f"{scaling or 'weak'} scaling: the recorded ranks stand for all, messages keep their sizes"
        return self._make_modelled(ranks, gap_s, transfers_s, assumption)

    def _change_network(self, change: str, name: str, value: str) -> ChangedJob:
        """Return the job on another network, or with other algorithms; `change` is `name`=`value`."""
        if name == "machine" and value:
            return self._change_machine(load_machine(value))
        if name == "algorithm":
            return self._change_algorithms(change, value)
        if name not in ("bandwidth", "latency"):
            raise UsageError(f"--what-if {change}: is no change; the forms are {FORMS}")
        factor, transfers_s = _parse_factor(change, value), []
        for network in self.networks:
            if name == "bandwidth":
                changed = replace(network, beta_s_per_byte=network.beta_s_per_byte / factor)
            else:
                changed = replace(network, alpha_s=network.alpha_s * factor)
            transfers_s.append(scale_transfers(self.graph, self.transfers, network, changed))
        return self._make_modelled(f"{factor:g} times the {name}", self.graph.gap_s, transfers_s)

    def _make_modelled(
        self, name: str, gap_s: Floats, transfers_s: Sequence[Floats], assumption: str = ""
    ) -> ChangedJob:
        """Return a job whose transfers `transfers_s` are modelled on each of the networks that explain the recording.

        Args:
            name: the change in words.
            gap_s: the seconds for which each rank computes before each call.
            transfers_s: for each network, the transfers of all calls in seconds.
            assumption: what the transfers assume, in words.
        """
        bounds_s = np.min(transfers_s, axis=0), np.max(transfers_s, axis=0)
        remedy = "the sizes of the recorded messages are too similar to tell latency from bandwidth"
        return ChangedJob(name, gap_s, transfers_s[0], bounds_s, assumption, uses_model=True, remedy=remedy)

    def _change_machine(self, machine: Machine) -> ChangedJob:
        """Return the job on another machine, whose nodes have the recorded ranks if the job ran on several nodes."""
        graph, placed, assumption = self.graph, self.transfers, "ranks are on nodes as recorded"
        if self.placement.count == 1:
            placed = classify_transfers(graph, Placement.fill(len(graph.start_s), machine.ranks_per_node))
            assumption = f"{format_count(machine.ranks_per_node, 'rank')} per node"
        transfers_s = [
            scale_transfers(graph, self.transfers, network, replace(network, machine=machine), placed=placed)
            for network in self.networks
        ]
        return self._make_modelled(f"network of {machine.name}", graph.gap_s, transfers_s, assumption)

    def _change_algorithms(self, change: str, value: str) -> ChangedJob:
        """Return the job with other algorithms; `value` is `auto` for the fastest ones, or OPERATION/ALGORITHM."""
        operation, slash, algorithm = value.partition("/")
        if value != "auto" and not slash:
            raise UsageError(f"--what-if {change}: write algorithm=auto or algorithm=OPERATION/NAME")
        ranks, gap_s = len(self.graph.start_s), self.graph.gap_s
        if not slash:
            title, changed = "the fastest algorithms", self._times.change_algorithms()
            remedy = f"mpirun -n {ranks} hpccoll tune measures the algorithms"
        else:
            choice = make_choice(operation, algorithm, 0, None)
            name, title = choice.operation.value, f"{choice.operation.value} by {algorithm}"
            changed = self._times.change_algorithms(choice.operation, algorithm)
            remedy = f"mpirun -n {ranks} hpccoll tune {name} measures the algorithms, and "
            remedy += f"mpirun -n {ranks} hpccoll replay RECORDING --engine mpi,{name}/{algorithm} this job"
        if not changed.estimates and changed.unknown:
            return ChangedJob(title, gap_s, None, remedy=remedy)
        bounds_s, assumption = (changed.low_s, changed.high_s), changed.describe_source()
        return ChangedJob(title, gap_s, changed.transfer_s, bounds_s, assumption, changed.uses_model, remedy)

    def choose_algorithms(self) -> dict[str, list[tuple[int, str]]]:
        """Return, for each operation, pairs of a message size and the fastest algorithm: measured, or else simulated.

        The sizes are those of the largest communicators, because the drop-in chooses by operation and size only.
        """
        most: dict[str, int] = {}
        for kind in self.transfers.kinds:
            most[kind.operation] = max(most.get(kind.operation, 0), kind.ranks)
        chosen: dict[str, list[tuple[int, str]]] = {}
        for number, kind in sorted(enumerate(self.transfers.kinds), key=lambda each: each[1].nbytes):
            if kind.has_algorithms and kind.ranks == most[kind.operation]:
                estimate = self._times.estimate_ratio(number)
                name = estimate.algorithm if estimate else find_fastest(kind, self.network.make_machine(kind))[0]
                chosen.setdefault(kind.operation, []).append((kind.nbytes, name))
        return chosen


def format_configuration(chosen: dict[str, list[tuple[int, str]]]) -> str:
    """Return a shell script that sets HPCCOLL_MPI4PY_ALGORITHMS, so that the drop-in for mpi4py uses given algorithms.

    `chosen` has, for each operation, pairs of a message size and an algorithm, which holds up to the next size.
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
