"""Measures how far the global clocks of all ranks are from rank 0's clock, for instance after a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpccoll.measure.clock.clock_fit import fit_offset_bounds, summarize_batches
from hpccoll.measure.clock.ping_pong import BatchPlan, PingPongPartner, wait_quietly

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.measure.clock.global_clock import GlobalClock

PLAN = BatchPlan(batches=5, exchanges=10, pause_s=1e-3)


@dataclass(frozen=True, slots=True)
class Residual:
    """The errors of the ranks' global clocks relative to rank 0, in microseconds.

    `offsets_us` has the measured error of each rank's clock, and `halfwidths_us` the largest error of each measurement.
    """

    offsets_us: tuple[float, ...]
    halfwidths_us: tuple[float, ...]

    @property
    def offset_us(self) -> float:
        """The largest measured error of any rank's clock, in microseconds."""
        return max(map(abs, self.offsets_us))

    @property
    def bound_us(self) -> float:
        """The largest possible error of any rank's clock in us, even if messages take longer in one direction."""
        return max(self._bounds_us)

    @property
    def difference_bound_us(self) -> float:
        """The largest possible error of a difference between the times of two ranks, in microseconds."""
        return sum(sorted(self._bounds_us)[-2:])

    @property
    def _bounds_us(self) -> list[float]:
        """The largest possible error of each rank's clock, in microseconds."""
        return [abs(offset) + half for offset, half in zip(self.offsets_us, self.halfwidths_us, strict=True)]


def measure_residual(comm: MPI.Intracomm, clock: GlobalClock) -> Residual:
    """Measure the error of every rank's global clock, and return the errors of all ranks on each rank. Collective.

    Cost: ping-pongs of each rank with rank 0, one rank after the other, some milliseconds per rank.
    """
    comm = comm.Dup()
    offset_us, halfwidth_us = 0.0, 0.0
    for client in range(1, comm.size):
        if comm.rank == 0:
            with PingPongPartner(comm, client, clock.local) as partner:
                partner.measure_as_reference(PLAN)
        elif comm.rank == client:
            with PingPongPartner(comm, 0, clock.local) as partner:
                measured = partner.measure_as_client(PLAN)
            measured = measured.map_client(clock.to_global)
            _, offsets_s, deviations_s = summarize_batches(measured)
            offset_us = -1e6 * float(np.average(offsets_s, weights=deviations_s**-2))
            halfwidth_us = fit_offset_bounds(measured).error_s * 1e6
        wait_quietly(comm)
    rows = np.array(comm.allgather((offset_us, halfwidth_us)))
    comm.Free()
    return Residual(tuple(rows[:, 0].tolist()), tuple(rows[:, 1].tolist()))
