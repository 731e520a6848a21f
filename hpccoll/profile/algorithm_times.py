"""Estimates the time that recorded collectives would take with another algorithm, in multiples of their recorded time.

If a tuning table for the recorded MPI library, hosts and ranks has times of both algorithms, the estimate is the ratio
of these times, interpolated between message sizes. The bounds of a measured estimate come from the 95 % intervals of
the measured times, widened by the usual error, because calls of a program do not follow each other as closely as those
of a benchmark. The bounds also include the ratio for the case that the other algorithm's time differs from the
tuning table by as many seconds as the recorded algorithm's time in the job does, if the recording shows this time.

Without a tuning table, both algorithms are simulated on each network that explains the recorded transfers
(`list_networks`). The bounds are the smallest and the largest result, also widened by the usual error. The MPI
library's own algorithm, and algorithms that use shared memory, are not simulated. If several ranks share a core,
nothing is simulated, because the simulation does not model the scheduling of processes. If the recorded algorithm is
unknown, there is no estimate at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hpccoll.mpi4py.configuration import read_choices
from hpccoll.plan import Floats, Operation
from hpccoll.predict.forecast import ITEMSIZE
from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.network_model import NetworkModel, find_fastest, simulate_kind
from hpccoll.profile.transfer_kinds import JobTransfers, ModelledTransfer, measure_transfers
from hpccoll.selection import MPI_LIBRARY, BufferKind
from hpccoll.selection.tuning_files import load_tuning_table
from hpccoll.selection.tuning_table import CandidateTiming
from hpccoll.units import format_count

TORCH_ENGINES: Final = ("gloo", "hpccoll")  # libraries of torch's process groups that `hpccoll replay` runs
# Largest usual error of the ratio of two times, simulated or from a tuning table, as a share of the ratio. In a lab, a
# table predicted savings of 36 % to 41 % in place of 50 % to 56 % (docs/profile.md).
USUAL_ERROR: Final = 1 / 3
_USUAL_LENGTH: Final = 3.0  # multiple of the median transfer, beyond which the rest of a transfer is not scaled


@dataclass(frozen=True, slots=True)
class TimeRatio:
    """The estimated time of an algorithm for a kind of transfers, divided by that of the recorded algorithm.

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
    """The estimated transfer times of all calls of a recorded job, if its collectives used other algorithms.

    Args:
        transfer_s, low_s, high_s: the transfer time of each call in seconds: the best estimate and its bounds.
        estimates: the ratio of the other algorithm's time to the recorded one's, for each kind with an estimate.
        unknown: the number of kinds of collectives without an estimate, which keep their recorded transfer times.
    """

    transfer_s: Floats
    low_s: Floats
    high_s: Floats
    estimates: tuple[TimeRatio, ...]
    unknown: int

    @property
    def uses_model(self) -> bool:
        """Whether some estimates come from simulated times, not from measured ones."""
        return not all(estimate.is_measured for estimate in self.estimates)

    def describe_source(self) -> str:
        """Return a text with the source of the times, and the number of kinds that keep their recorded times."""
        measured = sum(estimate.is_measured for estimate in self.estimates)
        sources = ["the algorithms take the times of the tuning table"] * (measured > 0)
        if measured < len(self.estimates):
            sources.append("the algorithms take the times that they have on the fitted network")
        if self.unknown:
            sources.append(f"{format_count(self.unknown, 'kind')} of collectives as recorded, for lack of other times")
        return "; ".join(sources)


class AlgorithmTimes:
    """Estimates how long the transfers of a recorded job would take if its collectives used other algorithms.

    Args:
        graph: the recorded calls.
        transfers: the kinds of transfers of the recorded calls.
        networks: the networks that explain the recorded transfers, the fitted one first.
    """

    def __init__(self, graph: CallGraph, transfers: JobTransfers, networks: Sequence[NetworkModel]) -> None:
        self._graph, self._transfers, self._networks = graph, transfers, networks
        self._recorded = measure_transfers(graph, transfers)
        site = graph.profile.tuning_site
        self._table = None if site is None else load_tuning_table(site, whole_job=True)

    def change_algorithms(self, operation: Operation | None = None, algorithm: str | None = None) -> ChangedTransfers:
        """Return the estimated transfer times of all calls, with bounds, if the collectives used another algorithm.

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
        """Return the ratio of another algorithm's time to the recorded algorithm's, with bounds; None if unknown.

        The ratio is that of two measured times if the tuning table has both, else that of two simulated times.

        Args:
            number: index of the kind of transfers in the job's `JobTransfers.kinds`.
            algorithm: the name of the other algorithm; None for the fastest one.
        """
        kind, used = self._transfers.kinds[number], self.find_recorded_algorithm(number)
        if used is None or not kind.has_algorithms:
            return None
        timings = self._interpolate(kind)
        if used in timings and (algorithm is None or algorithm in timings):
            name = algorithm or min(timings, key=lambda named: timings[named].us)
            return _compare_timings(timings[name], timings[used], self._recorded[number].median_s * 1e6)
        can_simulate = all(kind.can_simulate(name) for name in (used, algorithm) if name is not None)
        if not can_simulate or self._graph.profile.is_oversubscribed:
            return None
        ratios = [_simulate_ratio(kind, network, used, algorithm) for network in self._networks]
        name, estimate = ratios[0]
        error = USUAL_ERROR if name != used else 0.0
        low, high = min(ratio for _, ratio in ratios), max(ratio for _, ratio in ratios)
        return TimeRatio(name, estimate, low * (1 - error), high * (1 + error), is_measured=False)

    def find_recorded_algorithm(self, number: int) -> str | None:
        """Return the algorithm of the recorded transfers of kind `number` in `JobTransfers.kinds`; None if unknown.

        In a recording without hpccoll's drop-in for mpi4py, the algorithm of mpi4py's methods for buffers is `mpi`, the
        MPI library's own. The algorithms of mpi4py's methods for objects, and of torch and hpccoll, are unknown.
        """
        profile, kind = self._graph.profile, self._transfers.kinds[number]
        if profile.library:  # its algorithm, if known, may take another time per message than hpccoll's
            return None
        chosen = self._networks[0].find_choice(kind)
        if chosen is not None or profile.algorithms is not None:
            return chosen
        codes = np.unique(self._graph.op[self._transfers.index == number]).tolist()
        return MPI_LIBRARY if any(profile.names[code][:1].isupper() for code in codes) else None

    def find_recorded_engine(self) -> str | None:
        """Return the engine of `hpccoll replay` that carries out collectives as in the recording; None if unknown.

        For a recording with hpccoll's drop-in for mpi4py, the engine is `hpccoll` if the user has chosen no algorithms.
        The engine is OPERATION/ALGORITHM if the user's only choice is one algorithm of one operation for all sizes.
        """
        profile = self._graph.profile
        if profile.library:
            return profile.library if profile.library in TORCH_ENGINES else None
        if profile.algorithms is None:
            numbers = range(len(self._transfers.kinds))
            return MPI_LIBRARY if any(self.find_recorded_algorithm(number) for number in numbers) else None
        choices = read_choices(profile.algorithms)
        if not choices:
            return "hpccoll"
        only = choices[0]
        has_all_sizes = len(choices) == 1 and only.least == 0 and only.end is None
        return f"{only.operation.value}/{only.algorithm}" if has_all_sizes else None

    def scale(self, ratios: Sequence[float]) -> Floats:
        """Return the transfer seconds of each call, if each kind of transfers took `ratios` times as long as recorded.

        `ratios` has one element per kind of transfers.

        The part of a transfer beyond three times the median of its kind keeps its length: making connections, or losing
        a core to another process, takes as long with each algorithm. If the recording does not show how long a kind
        takes, its transfers are scaled as a whole.
        """
        graph, index = self._graph, self._transfers.index
        usual_s = [recorded.median_s if recorded.is_known else np.inf for recorded in self._recorded]
        scaled_s = np.minimum(graph.transfer_s, _USUAL_LENGTH * np.array([*usual_s, np.inf])[index])
        return np.asarray(graph.transfer_s - scaled_s * (1 - np.array([*ratios, 1.0])[index]), np.float64)

    def _interpolate(self, kind: ModelledTransfer) -> dict[str, CandidateTiming]:
        """Return a dict from each algorithm in the tuning table to its measured time for a kind of transfers.

        The dict is empty if the table has no times of the operation, or if some ranks of the job do not take part in
        the transfers. Of the measured element sizes, the one nearest to the recorded size is used (4 bytes if unknown).
        """
        if self._table is None or kind.ranks != self._graph.profile.size:
            return {}
        series = self._table.find_series(Operation(kind.operation), kind.itemsize or ITEMSIZE, BufferKind.HOST)
        if series is None:
            return {}
        names = {timing.name for point in series.points for timing in point.timings}
        timings = (series.interpolate(name, kind.nbytes) for name in names)
        return {timing.name: timing for timing in timings if timing is not None}


def _compare_timings(other: CandidateTiming, used: CandidateTiming, recorded_us: float) -> TimeRatio:
    """Return the ratio, with bounds, of the measured times of the algorithms `other` and `used`.

    `recorded_us` is the time of `used` in the recorded job, in microseconds; 0 if the recording does not show it.
    """
    if other.name == used.name:
        return TimeRatio(other.name, 1.0, 1.0, 1.0, is_measured=True)
    bounds = [other.low / used.high * (1 - USUAL_ERROR), other.high / used.low * (1 + USUAL_ERROR)]
    if recorded_us > 0:
        longer_us = recorded_us - used.us
        bounds += [max(us + longer_us, 0.0) / recorded_us for us in (other.low, other.high)]
    return TimeRatio(other.name, other.us / used.us, min(bounds), max(bounds), is_measured=True)


def _simulate_ratio(
    kind: ModelledTransfer, network: NetworkModel, used: str, algorithm: str | None
) -> tuple[str, float]:
    """Return the name of `algorithm`, and its simulated time divided by that of the algorithm `used`.

    If `algorithm` is None, the name and the time are those of the fastest algorithm on the network.
    """
    machine = network.make_machine(kind)
    used_s = simulate_kind(kind, machine, used)
    if algorithm is None:
        name, seconds = find_fastest(kind, machine)
        return (name, seconds / used_s) if seconds < used_s else (used, 1.0)
    return algorithm, simulate_kind(kind, machine, algorithm) / used_s
