"""Estimates the time that recorded collectives would take by another algorithm, in multiples of their recorded time.

The estimate rests on measured times if there are any: a tuning table of the recorded MPI library, hosts and ranks has
the times of both algorithms, which are interpolated between the measured message sizes. The bounds of this estimate
come from the 95 % intervals of the measured times. The bounds also come from the difference between the recorded time
and the time in the table of one and the same algorithm: the other algorithm may differ from its time in the table by
the same factor, or by the same number of seconds.

Without a tuning table, both algorithms are simulated on each network that explains the recorded transfers
(`list_networks`). The bounds are the smallest and the largest result, widened by the usual error of a simulation. There
is no estimate in three cases: the recorded algorithm is unknown; one of the two algorithms is the MPI library's own, or
uses shared memory; or ranks share cores, because the simulation does not model the scheduling of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hpccoll.plan import Floats, Operation
from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.network_model import (
    JobTransfers,
    ModelledTransfer,
    NetworkModel,
    find_fastest,
    measure_transfers,
    simulate_kind,
)
from hpccoll.selection import MPI_LIBRARY, BufferKind
from hpccoll.selection.tuning_files import load_tuning_table
from hpccoll.selection.tuning_table import CandidateTiming, TuningSeries
from hpccoll.units import format_count

MODEL_ERROR: Final = 1 / 3  # largest usual error of the ratio of two simulated times, as a share of it
_USUAL_LENGTH: Final = 3.0  # multiple of the median transfer, beyond which the rest of a transfer is not scaled


@dataclass(frozen=True, slots=True)
class TimeRatio:
    """The time of an algorithm divided by that of the recorded one.

    Args:
        algorithm: the name of the algorithm.
        estimate: the best estimate of the ratio.
        low, high: the bounds of the ratio.
        is_measured: whether both times were measured, not simulated.
    """

    algorithm: str
    estimate: float
    low: float
    high: float
    is_measured: bool


@dataclass(frozen=True, slots=True)
class ChangedTransfers:
    """The transfers of all calls with other algorithms.

    Args:
        transfer_s, low_s, high_s: the best estimate, and its bounds, of each call's transfer in seconds.
        estimates: for each kind of collectives of which the times are known, the ratio to the recorded time.
        unknown: the number of kinds of collectives whose times are unknown, and which keep their recorded transfers.
    """

    transfer_s: Floats
    low_s: Floats
    high_s: Floats
    estimates: tuple[TimeRatio, ...]
    unknown: int

    @property
    def uses_model(self) -> bool:
        """Whether some estimates are simulated."""
        return not all(estimate.is_measured for estimate in self.estimates)

    def describe_source(self) -> str:
        """Return in words where the times come from, and how many kinds of collectives keep their recorded times."""
        measured = sum(estimate.is_measured for estimate in self.estimates)
        sources = ["the algorithms take the times of the tuning table"] * (measured > 0)
        if measured < len(self.estimates):
            sources.append("the algorithms take the times that they have on the fitted network")
        if self.unknown:
            sources.append(f"{format_count(self.unknown, 'kind')} of collectives as recorded, for lack of other times")
        return "; ".join(sources)


class AlgorithmTimes:
    """The times of algorithms for the kinds of transfers of a recorded job.

    Args:
        graph: the recorded calls.
        transfers: the kinds of their transfers.
        networks: the networks that explain the recorded transfers, the fitted one first.
    """

    def __init__(self, graph: CallGraph, transfers: JobTransfers, networks: Sequence[NetworkModel]) -> None:
        self._graph, self._transfers, self._networks = graph, transfers, networks
        self._recorded = measure_transfers(graph, transfers)
        site = graph.profile.tuning_site
        table = None if site is None else load_tuning_table(site, whole_job=True)
        self._series: dict[Operation, TuningSeries] = {}
        for series in () if table is None else table.series:
            if series.buffer is BufferKind.HOST:
                self._series.setdefault(series.operation, series)

    def change_algorithms(self, operation: Operation | None = None, algorithm: str | None = None) -> ChangedTransfers:
        """Return the transfers of all calls with other algorithms.

        Args:
            operation: the operation that changes; None for all operations.
            algorithm: the name of the other algorithm; None for the fastest one.
        """
        kinds = self._transfers.kinds
        estimates = {
            number: self.estimate_ratio(number, algorithm) for number, kind in enumerate(kinds)
            if kind.has_algorithms and (operation is None or operation.value == kind.operation)
        }  # fmt: skip
        known = {number: estimate for number, estimate in estimates.items() if estimate is not None}
        ratios = np.ones((len(kinds), 3))
        for number, estimate in known.items():
            ratios[number] = estimate.estimate, estimate.low, estimate.high
        estimate_s, low_s, high_s = (self.scale(column.tolist()) for column in ratios.T)
        return ChangedTransfers(estimate_s, low_s, high_s, tuple(known.values()), len(estimates) - len(known))

    def estimate_ratio(self, number: int, algorithm: str | None = None) -> TimeRatio | None:
        """Return the ratio for the kind of transfers with this number; None if it cannot be estimated.

        Args:
            number: index of the kind in the job's transfers.
            algorithm: the name of the other algorithm; None for the fastest one.
        """
        kind, used = self._transfers.kinds[number], self.find_recorded_algorithm(number)
        if used is None or not kind.has_algorithms:
            return None
        timings = self._interpolate(kind)
        if used in timings and (algorithm is None or algorithm in timings):
            name = algorithm or min(timings, key=lambda each: timings[each].us)
            return _compare_timings(timings[name], timings[used], self._recorded[number].median_s * 1e6)
        can_simulate = all(kind.can_simulate(name) for name in (used, algorithm) if name is not None)
        if not can_simulate or self._graph.profile.is_oversubscribed:
            return None
        ratios = [_simulate_ratio(kind, network, used, algorithm) for network in self._networks]
        name, estimate = ratios[0]
        error = MODEL_ERROR if name != used else 0.0
        low, high = min(ratio for _, ratio in ratios), max(ratio for _, ratio in ratios)
        return TimeRatio(name, estimate, low * (1 - error), high * (1 + error), is_measured=False)

    def find_recorded_algorithm(self, number: int) -> str | None:
        """Return the algorithm of the recorded transfers of a kind; None if it is unknown.

        In a recording without hpccoll's drop-in for mpi4py, the algorithm of mpi4py's methods for buffers is `mpi`, the
        MPI library's own. The algorithms of mpi4py's methods for objects, and of torch and hpccoll, are unknown.
        """
        profile, kind = self._graph.profile, self._transfers.kinds[number]
        chosen = self._networks[0].find_choice(kind)
        if chosen is not None or profile.algorithms is not None:
            return chosen
        codes = np.unique(self._graph.op[self._transfers.index == number]).tolist()
        return MPI_LIBRARY if any(profile.names[code][:1].isupper() for code in codes) else None

    def scale(self, ratios: Sequence[float]) -> Floats:
        """Return the transfers of all calls in seconds, if each kind took `ratios` (one per kind) of its recorded time.

        The part of a transfer beyond three times the median of its kind keeps its length: making connections, or losing
        a core to another process, takes as long with each algorithm.
        """
        graph, index = self._graph, self._transfers.index
        usual_s = [each.median_s for each in self._recorded]
        scaled_s = np.minimum(graph.transfer_s, _USUAL_LENGTH * np.array([*usual_s, np.inf])[index])
        return np.asarray(graph.transfer_s - scaled_s * (1 - np.array([*ratios, 1.0])[index]), np.float64)

    def _interpolate(self, kind: ModelledTransfer) -> dict[str, CandidateTiming]:
        """Return the measured times of algorithms by name; empty for communicators of a part of the ranks."""
        series = self._series.get(Operation(kind.operation))
        if series is None or kind.ranks != self._graph.profile.size:
            return {}
        names = {timing.name for point in series.points for timing in point.timings}
        timings = (series.interpolate(name, kind.nbytes) for name in names)
        return {timing.name: timing for timing in timings if timing is not None}


def _compare_timings(other: CandidateTiming, used: CandidateTiming, recorded_us: float) -> TimeRatio:
    """Return the ratio of the times of another and the used algorithm, which took `recorded_us` in the recorded job."""
    if other.name == used.name:
        return TimeRatio(other.name, 1.0, 1.0, 1.0, is_measured=True)
    longer_us = recorded_us - used.us
    bounds = [other.low / used.high, other.high / used.low]
    bounds += [max(us + longer_us, 0.0) / recorded_us for us in (other.low, other.high)]
    return TimeRatio(other.name, other.us / used.us, min(bounds), max(bounds), is_measured=True)


def _simulate_ratio(
    kind: ModelledTransfer, network: NetworkModel, used: str, algorithm: str | None
) -> tuple[str, float]:
    """Return an algorithm (None: the fastest one) and its simulated time divided by that of the algorithm `used`."""
    machine = network.make_machine(kind)
    used_s = simulate_kind(kind, machine, used)
    if algorithm is None:
        name, seconds = find_fastest(kind, machine)
        return (name, seconds / used_s) if seconds < used_s else (used, 1.0)
    return algorithm, simulate_kind(kind, machine, algorithm) / used_s
