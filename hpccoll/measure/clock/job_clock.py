"""The common clock of a job: the clock of the host if all ranks are on one node, else a synchronised clock.

All processes of a host read the same clock (CLOCK_MONOTONIC on Linux), so ranks of one node need no synchronisation.
The error of the common clock is measured by messages, also on one node.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.measure.clock.global_clock import GlobalClock
from hpccoll.measure.clock.residual import measure_residual
from hpccoll.measure.clock.schemes import CLOCK_NAMES
from hpccoll.measure.clock.synchronization import resynchronize, synchronize
from hpccoll.recordings import ClockModel

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.runtime.job import RankLayout

HOST, DEFAULT = "host", "hca3"
BRIEF_SPAN_S = 0.2  # time to synchronise if ranks share cores: waits for a core are longer than the error of any clock
MIN_RESOLUTION_S = 1e-6  # on a busy core, reading the clock in a loop and beginning a call takes up to a microsecond


class JobClock:
    """The common clock of the ranks of `comm`; the constructor, `refresh` and the methods that measure are collective.

    Args:
        comm: the communicator of the ranks that share the clock.
        layout: the placement of the ranks on nodes.
        scheme: a name of `CLOCK_NAMES`, or `host` (read the host's clock, without synchronisation); None for `host` on
            one node, and `hca3` on several.
        limit_s: seconds after which a pair of ranks ends its measurement, as in `synchronize`.

    Raises:
        UnknownNameError: there is no such scheme.
        UsageError: the scheme is `host`, and the ranks are on several nodes.
    """

    def __init__(
        self, comm: MPI.Intracomm, layout: RankLayout, scheme: str | None, *, limit_s: float = float("inf")
    ) -> None:
        self._comm, self._limit_s = comm, limit_s
        self.name = scheme or (HOST if layout.nodes == 1 else DEFAULT)
        if self.name not in (HOST, *CLOCK_NAMES):
            raise UnknownNameError("clock", self.name, [HOST, *CLOCK_NAMES])
        if self.name == HOST and len(set(layout.hosts)) > 1:
            raise UsageError(f"--clock host: {layout.nodes} nodes do not share a clock; use --clock {DEFAULT}")
        self._is_brief = layout.oversubscribed
        self.current = self._make_clock()
        residual = measure_residual(comm, self.current)
        self.error_s = residual.difference_bound_us * 1e-6  # the largest possible error of comparing two ranks' times
        self.resolution_s = max(residual.offset_us * 1e-6, MIN_RESOLUTION_S)  # the measured error

    @property
    def drifts(self) -> bool:
        """Whether the clock must be synchronised again during a run, because the clocks of the ranks drift apart."""
        return self.name != HOST and self._comm.size > 1

    @property
    def cost_s(self) -> float:
        """The seconds that synchronising has taken so far."""
        return self.current.cost_s

    def refresh(self) -> GlobalClock:
        """Synchronise the clock again and return the new one, or the same one if the clock is the host's. Collective.

        A refresh is useful only if `drifts` is set.
        """
        if self.name != HOST:
            self.current = resynchronize(self._comm, self.current)
        return self.current

    def measure_error_s(self) -> float:
        """Measure and return the largest possible error of a comparison of two ranks' times in seconds. Collective."""
        return measure_residual(self._comm, self.current).difference_bound_us * 1e-6

    def measure_residual_us(self) -> float:
        """Return the largest measured error of a rank's clock relative to rank 0, in microseconds. Collective.

        The true error may be larger than the measured one, but not larger than `measure_error_s` returns.
        """
        return measure_residual(self._comm, self.current).offset_us

    def _make_clock(self) -> GlobalClock:
        """Return the clock of the host if the scheme is `host`, else a newly synchronised clock. Collective."""
        if self.name == HOST:
            return GlobalClock(HOST, time.perf_counter, ClockModel(), None, 0.0)
        if self._is_brief:
            return synchronize(self._comm, self.name, span_s=BRIEF_SPAN_S, limit_s=2 * BRIEF_SPAN_S)
        return synchronize(self._comm, self.name, limit_s=self._limit_s)
