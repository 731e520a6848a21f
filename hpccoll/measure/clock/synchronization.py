"""Synchronizes the clocks of all ranks: pairs of ranks exchange messages, and each client fits a model of its clock.

In HCA3, a rank is a client once, and then serves other ranks with its own global clock, so that p ranks need log2(p)
rounds. A rank sleeps while it does not measure: a rank that waits in MPI keeps its core busy, and the ping-pongs of
ranks that share this core would take milliseconds. If there are more ranks than cores, only one pair measures at a
time, because pairs would share cores. Ranks of a node read the same clock. A measured drift between two ranks of a node
is dropped if unequal message times could have caused it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from hpccoll.measure.clock.clock_fit import drop_doubtful_drift
from hpccoll.measure.clock.global_clock import GlobalClock
from hpccoll.measure.clock.local_clock import LocalClock
from hpccoll.measure.clock.ping_pong import BatchPlan, PingPongPartner, PingPongs, wait_quietly
from hpccoll.measure.clock.schemes import ClockPair, ClockScheme, get_clock_scheme
from hpccoll.recordings import ClockModel
from hpccoll.runtime import job
from hpccoll.runtime.recorder.flight_recorder import get_recorder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpi4py import MPI

SPAN_S, HORIZON_S = 2.0, 10.0
PAUSE_S = 4e-3  # pause between batches of ping-pongs
FEWEST_BATCHES, REFINING_BATCHES, REFINING_PAUSE_S = 20, 5, 1e-3
# Whether `time.perf_counter` reads the same clock as `time.monotonic`, the clock of the flight recorder, as on Linux.
_READS_MONOTONIC_CLOCK = (
    time.get_clock_info("perf_counter").implementation == time.get_clock_info("monotonic").implementation
)
HISTORY_S = 60.0  # older measurements are forgotten, because the drift of a real clock changes with its temperature


def synchronize(
    comm: MPI.Intracomm,
    scheme: str = "hca3",
    *,
    local: LocalClock = time.perf_counter,
    span_s: float = SPAN_S,
    horizon_s: float = HORIZON_S,
    limit_s: float = float("inf"),
) -> GlobalClock:
    """Return a clock that shows rank 0's time on every rank of `comm`. Collective.

    Args:
        comm: the communicator of the ranks; messages are sent on a duplicate of it.
        scheme: for p ranks, `hca3` (drift and offset, log2 p rounds), `skampi` (offset only, p - 1 rounds) or
            `jones_koenig` (drift and offset, p - 1 rounds).
        local: the clock of this rank.
        span_s: seconds over which the drift of a clock is measured; up to 3 times as long on busy cores.
        horizon_s: seconds after which the error of the drift may amount to an eighth of a round trip.
        limit_s: seconds after which a pair of ranks begins no further batch of messages, unless it has too few batches
            to fit a model.

    Raises:
        UnknownNameError: there is no such scheme.

    Cost: `span_s` seconds per round of HCA3, or in all for Jones-Koenig; SKaMPI takes some milliseconds per rank.
    """
    chosen = get_clock_scheme(scheme)
    begin_s = time.perf_counter()
    measurement = _Measurement(comm, chosen, local, None)
    batches = chosen.sweeps or max(round(span_s / PAUSE_S), FEWEST_BATCHES)
    measurement.run(batches, span_s / batches, horizon_s, limit_s)
    return measurement.make_clock(time.perf_counter() - begin_s)


def count_waves(comm: MPI.Intracomm, scheme: str = "hca3") -> int:
    """Return the number of steps of `synchronize`, in each of which some pairs of ranks measure at once. Collective.

    For `jones_koenig`, which repeats its steps, only the steps of one repetition are counted.
    """
    one_pair = job.detect_layout(comm).oversubscribed
    return sum(1 for _ in get_clock_scheme(scheme).list_waves(comm.size, one_pair=one_pair))


def resynchronize(comm: MPI.Intracomm, clock: GlobalClock) -> GlobalClock:
    """Synchronize again: return a clock that is fitted to the measurements of `clock` and a few new ones. Collective.

    The long time between old and new measurements makes the fitted drift precise. SKaMPI's scheme has a model without
    drift, and uses the new measurements only. Cost: some milliseconds per round of the scheme.
    """
    chosen = get_clock_scheme(clock.scheme)
    begin_s = time.perf_counter()
    measurement = _Measurement(comm, chosen, clock.local, clock.measured if chosen.has_drift else None)
    measurement.run(REFINING_BATCHES, REFINING_PAUSE_S, 0.0)
    return measurement.make_clock(clock.cost_s + time.perf_counter() - begin_s)


class _Measurement:
    """This rank's measurements for a clock synchronization, and the clock model that is fitted to the measurements.

    Args:
        comm: the communicator of the ranks.
        scheme: the synchronization scheme.
        local: the clock of this rank.
        earlier: ping-pongs of this rank from an earlier synchronization, or None.
    """

    def __init__(self, comm: MPI.Intracomm, scheme: ClockScheme, local: LocalClock, earlier: PingPongs | None) -> None:
        self.comm, self.scheme, self.local, self.measured = comm.Dup(), scheme, local, earlier
        self.model, self.comm_size = ClockModel(), comm.size
        layout = job.detect_layout(comm)
        self.one_pair, self._nodes = layout.oversubscribed, layout.node

    def run(self, batches: int, pause_s: float, horizon_s: float, limit_s: float = float("inf")) -> None:
        """Measure all pairs of all rounds with `batches` batches each, or with one batch if the scheme has no drift.

        `pause_s`, `horizon_s` and `limit_s` are passed to `BatchPlan`. Collective.
        """
        sweeps = batches if self.scheme.sweeps else 1
        batches = batches if self.scheme.has_drift and not self.scheme.sweeps else 1
        plan = BatchPlan(batches, self.scheme.exchanges, pause_s, horizon_s if batches > 1 else 0.0, limit_s)
        for sweep in range(sweeps):
            if sweep:
                time.sleep(pause_s)
            for wave in self.scheme.list_waves(self.comm.size, one_pair=self.one_pair):
                self._run_wave(wave, plan)
                wait_quietly(self.comm)
        self.comm.Free()

    def make_clock(self, cost_s: float) -> GlobalClock:
        """Return the global clock of this rank, and store its model in the flight recorder.

        The model is not stored if the recorder reads another clock than the synchronized one, or has another number of
        ranks. `cost_s` are the seconds that synchronizing has taken.
        """
        recorder = get_recorder()
        if self.local is time.perf_counter and self.comm_size == recorder.size and _READS_MONOTONIC_CLOCK:
            recorder.set_clock(self.model)
        return GlobalClock(self.scheme.name, self.local, self.model, self.measured, cost_s)

    def _run_wave(self, wave: Iterable[ClockPair], plan: BatchPlan) -> None:
        """Exchange ping-pongs if this rank is in `wave`, the pairs (reference, client) that measure at once.

        If this rank is a client, it then fits the model of its clock.
        """
        for reference, client in wave:
            if self.comm.rank == reference:
                with PingPongPartner(self.comm, client, self.local) as partner:
                    partner.measure_as_reference(plan)
                self.comm.Send(np.array(self.model), client)
            elif self.comm.rank == client:
                with PingPongPartner(self.comm, reference, self.local) as partner:
                    self._add(partner.measure_as_client(plan, self.measured))
                received = np.empty(len(ClockModel._fields))
                self.comm.Recv(received, reference)
                self._fit(reference, ClockModel(*received.tolist()))

    def _add(self, new: PingPongs) -> None:
        """Add `new` to the ping-pongs of this rank, and drop all ping-pongs that are older than HISTORY_S seconds."""
        if self.measured is not None:
            new = self.measured.forget_before(float(new.sent[0, 0]) - HISTORY_S).extend(new)
        self.measured = new

    def _fit(self, reference: int, clock: ClockModel) -> None:
        """Set the model of this rank's clock, fitted to its ping-pongs with rank `reference`.

        `clock` maps the clock of rank `reference` to the global clock.
        """
        measured = self.measured
        if measured is None:
            raise RuntimeError("a client fits its model before it has measured anything")
        fitted = self.scheme.fit(measured)
        if self._nodes[reference] == self._nodes[self.comm.rank]:
            fitted = drop_doubtful_drift(fitted, measured)
        self.model = fitted.then(clock)
