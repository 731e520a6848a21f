"""Predicts the run time of a recorded job with another network, other algorithms, better balance or more ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hpccoll.errors import UsageError
from hpccoll.mpi4py.configuration import make_choice
from hpccoll.plan import Floats, Machine, Operation
from hpccoll.predict.machine_catalogue import load_machine
from hpccoll.profile.algorithm_times import AlgorithmTimes
from hpccoll.profile.calls_in_a_row import find_followers, join_rows
from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.grown_job import MOST_RANKS, GrownJob
from hpccoll.profile.lateness import balance_gaps, expect_gaps, heal_ranks
from hpccoll.profile.network_model import NetworkModel, find_fastest, list_networks, model_transfers, scale_transfers
from hpccoll.profile.placement import Placement
from hpccoll.profile.replay import replay_job
from hpccoll.profile.replay_times import compare_engines
from hpccoll.profile.transfer_kinds import JobTransfers, classify_transfers
from hpccoll.units import format_count

DEFAULT_CHANGES: Final = ("algorithm=auto", "bandwidth=2", "latency=0.5", "balance", "join", "ranks=2x")
FORMS: Final = (
    "algorithm=auto, algorithm=OPERATION/NAME, bandwidth=FACTOR, latency=FACTOR, machine=NAME|FILE.toml, balance, "
    "heal=RANK, join, ranks=Nx, ranks=Nx:strong"
)
# A run time is stated if half the distance of its bounds is at most this share of the saving, or of the run time.
CLOSE_SAVING: Final = 0.3
CLOSE_RUN: Final = 0.03
SIMILAR_SIZES: Final = "the sizes of the recorded messages are too similar to tell latency from bandwidth"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted run time of the recorded job with a change.

    Args:
        change: the change, as the user gives it.
        description: the change in words.
        seconds: the predicted run time; None if it is unknown, or if its bounds are too far apart.
        bounds_s: the least and the largest run time that agree with the recording; None if the recording determines the
            run time exactly, or if the run time is unknown.
        recorded_s: the run time of the recorded job.
        error: the relative error of a simulation of the unchanged job, with the transfers of the fitted network if the
            prediction uses this network.
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

    def leave_out_uncertain_time(self, reason: str) -> Prediction:
        """Return this prediction, with `seconds` replaced by None if the bounds of the run time are too far apart.

        If the result has no run time, `reason` is appended to its assumption.
        """
        seconds = self.seconds
        if seconds is not None and self.bounds_s is not None:
            width_s = (self.bounds_s[1] - self.bounds_s[0]) / 2
            if width_s > max(CLOSE_SAVING * abs(self.recorded_s - seconds), CLOSE_RUN * self.recorded_s):
                seconds = None
        remedy = f"not known closely: {reason}" if seconds is None and reason else ""
        return replace(self, seconds=seconds, assumption="; ".join(filter(None, (self.assumption, remedy))))

    def format_values(self) -> tuple[str, str]:
        """Return the run time and the saving as two strings: as numbers, as ranges if uncertain, or as `not known`."""
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
        bounds_s: the shortest and the longest transfers of the calls; None if `transfer_s` has no bounds.
        assumption: what the times assume, in words.
        uses_model: whether the transfers come from the fitted network.
        remedy: the reason why the run time may be uncertain, or commands that measure it; empty if there is neither.
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

    Cost: the fit of a network to the recorded transfers, and two simulations of the job.

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
            UsageError: a change has none of the forms in FORMS.
            UnknownNameError: there is no such operation, algorithm or machine.
        """
        return [self._predict(change) for change in changes]

    def _predict(self, change: str) -> Prediction:
        """Return the prediction of a job with `change`; its run time is None if its bounds are too far apart."""
        name, _, value = change.partition("=")
        if name == "ranks":
            return self._predict_ranks(change, value)
        if name == "algorithm" and (replayed := self._read_replay(change, value)):
            return replayed
        changed, recorded_s, seconds, bounds_s = self._make_change(change), self.graph.run_s, None, None
        if changed.transfer_s is not None:
            seconds = replay_job(self.graph, changed.gap_s, changed.transfer_s).run_s
        if seconds is not None and changed.bounds_s is not None:
            low_s, high_s = (replay_job(self.graph, changed.gap_s, transfer_s).run_s for transfer_s in changed.bounds_s)
            bounds_s = low_s, high_s
        error = self.network_error if changed.uses_model else self.error
        prediction = Prediction(change, changed.name, seconds, bounds_s, recorded_s, error, changed.assumption)
        return prediction.leave_out_uncertain_time(changed.remedy)

    def _make_change(self, change: str) -> ChangedJob:
        """Return the computing and transfer times after `change`, in one of the forms of FORMS except `ranks=`."""
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
        return self._change_network(change, name, value)

    def _predict_ranks(self, change: str, value: str) -> Prediction:
        """Return the prediction of a job on several times as many ranks; `value` is the part of `change` after the `=`.

        If all ranks make the same calls, and the job has at most `grown_job.MOST_RANKS` ranks after the change, each
        call is simulated before and after the change. The recorded run time is multiplied by the ratio of the two
        simulated run times.
        """
        times, _, scaling = value.partition(":")
        factor = _parse_number(change, times.removesuffix("x"), 1, 2**16)
        if scaling not in ("", "weak", "strong"):
            raise UsageError(
                f"--what-if {change}: scaling is weak or strong, not {scaling}; write ranks={factor}x:strong"
            )
        is_strong, ranks = scaling == "strong", factor * len(self.graph.start_s)
        grown = GrownJob.read(self.graph, self.transfers, self.placement) if ranks <= MOST_RANKS else None
        if grown is None:
            gap_s = self.graph.gap_s / factor if is_strong else self.graph.gap_s
            times_s = [replay_job(self.graph, gap_s, each).run_s for each in self._scale_ranks(factor, is_strong)]
            error, source = self.network_error, "the recorded ranks stand for all"
        else:
            bases_s = [grown.simulate_s(network) for network in self.networks]
            times_s = [
                self.graph.run_s / base_s * grown.simulate_s(network, factor, is_strong=is_strong)
                for base_s, network in zip(bases_s, self.networks, strict=True)
            ]
            error, source = abs(bases_s[0] / self.graph.run_s - 1), "new ranks make the same calls"
        sizes = "arrays with a block per rank keep their sizes" if is_strong else "messages keep their sizes"
        assumption = f"{scaling or 'weak'} scaling: {source}, {sizes}"
        bounds_s = min(times_s), max(times_s)
        name = format_count(ranks, "rank")
        prediction = Prediction(change, name, times_s[0], bounds_s, self.graph.run_s, error, assumption)
        return prediction.leave_out_uncertain_time(SIMILAR_SIZES)

    def _scale_ranks(self, factor: int, is_strong: bool) -> list[Floats]:
        """Return, for each network, the transfers of the recorded calls if the job had `factor` times as many ranks."""
        return [
            scale_transfers(self.graph, self.transfers, network, network, factor=factor, is_strong=is_strong)
            for network in self.networks
        ]

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
        """Return a changed job from its transfer times on each network that explains the recording.

        The first network gives the estimate, and all networks together give its bounds.

        Args:
            name: the change in words.
            gap_s: the seconds for which each rank computes before each call.
            transfers_s: for each network, the transfers of all calls in seconds.
            assumption: what the transfers assume, in words.
        """
        bounds_s = np.min(transfers_s, axis=0), np.max(transfers_s, axis=0)
        return ChangedJob(name, gap_s, transfers_s[0], bounds_s, assumption, uses_model=True, remedy=SIMILAR_SIZES)

    def _change_machine(self, machine: Machine) -> ChangedJob:
        """Return the job on another machine; if the job ran on several nodes, ranks share nodes as in the recording."""
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
        gap_s = self.graph.gap_s
        if not slash:
            title, changed = "the fastest algorithms", self._times.change_algorithms()
            remedy = self._suggest_measurements(None, "hpccoll")
        else:
            choice = make_choice(operation, algorithm, 0, None)
            title = f"{choice.operation.value} by {algorithm}"
            changed = self._times.change_algorithms(choice.operation, algorithm)
            remedy = self._suggest_measurements(choice.operation, f"{choice.operation.value}/{algorithm}")
        if not changed.estimates and changed.unknown:
            return ChangedJob(title, gap_s, None, remedy=remedy)
        bounds_s, assumption = (changed.low_s, changed.high_s), changed.describe_source()
        return ChangedJob(title, gap_s, changed.transfer_s, bounds_s, assumption, changed.uses_model, remedy)

    def _suggest_measurements(self, operation: Operation | None, engine: str) -> str:
        """Return a text with the commands that measure other algorithms of this job, or why no measurement helps.

        Args:
            operation: the operation that changes; None for all operations.
            engine: the engine of `hpccoll replay` that has the other algorithm.
        """
        command, used, commands = f"mpirun -n {len(self.graph.start_s)} hpccoll", self._times.find_recorded_engine(), []
        numbers = [
            number for number, kind in enumerate(self.transfers.kinds)
            if operation is None or operation.value == kind.operation
        ]  # fmt: skip
        if any(self._times.find_recorded_algorithm(number) for number in numbers):
            tune = "tune" if operation is None else f"tune {operation.value}"
            commands.append(f"{command} {tune} measures the algorithms")
        if used not in (None, engine):
            commands.append(f"{command} replay RECORDING --engine {used},{engine} --save -n 12 measures this job")
        return ", and ".join(commands) or "the recorded algorithms are unknown"

    def _read_replay(self, change: str, value: str) -> Prediction | None:
        """Return the prediction from a saved replay of the job with other algorithms; None if there is no such replay.

        `value` is `auto`, for hpccoll with the algorithms that it selects, or OPERATION/ALGORITHM.
        """
        profile, recorded_s = self.graph.profile, self.graph.run_s
        operation, _, algorithm = value.partition("/")
        engine = f"{Operation.from_name(operation).value}/{algorithm}" if algorithm else "hpccoll"
        ratio = compare_engines(profile.replays, self._times.find_recorded_engine(), engine)
        if ratio is None:
            return None
        bounds_s = recorded_s * ratio.low, recorded_s * ratio.high
        title = "the algorithms that hpccoll selects" if value == "auto" else engine.replace("/", " by ")
        error = abs(ratio.recorded_engine_s / recorded_s - 1)
        source = "measured by hpccoll replay, in which hpccoll carries out all collectives"
        prediction = Prediction(change, title, recorded_s * ratio.median, bounds_s, recorded_s, error, source)
        return prediction.leave_out_uncertain_time("the times of the replay vary; repeat it with a larger -n")

    def choose_algorithms(self) -> dict[str, list[tuple[int, str]]]:
        """Return, for each operation, pairs of a message size and the fastest algorithm: measured, or else simulated.

        The drop-in chooses by operation and size only, so only the sizes on the largest communicators are listed. Of
        transfers that differ only in the size of their elements, the first kind determines the algorithm.
        """
        most: dict[str, int] = {}
        for kind in self.transfers.kinds:
            most[kind.operation] = max(most.get(kind.operation, 0), kind.ranks)
        chosen: dict[str, list[tuple[int, str]]] = {}
        for number, kind in sorted(enumerate(self.transfers.kinds), key=lambda numbered: numbered[1].nbytes):
            sizes = [nbytes for nbytes, _ in chosen.get(kind.operation, [])]
            if kind.has_algorithms and kind.ranks == most[kind.operation] and kind.nbytes not in sizes:
                estimate = self._times.estimate_ratio(number)
                name = estimate.algorithm if estimate else find_fastest(kind, self.network.make_machine(kind))[0]
                chosen.setdefault(kind.operation, []).append((kind.nbytes, name))
        return chosen


def format_configuration(chosen: dict[str, list[tuple[int, str]]]) -> str:
    """Return a shell script that sets HPCCOLL_MPI4PY_ALGORITHMS, so that the drop-in for mpi4py uses given algorithms.

    `chosen` has, for each operation, pairs of a message size and the algorithm from this size up to the next one.
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
