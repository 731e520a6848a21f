"""The clock of rank 0, read on any rank."""

from __future__ import annotations

from typing import TypeVar

from hpccoll.measure.clock.local_clock import LocalClock
from hpccoll.measure.clock.ping_pong import PingPongs, Times
from hpccoll.recordings import ClockModel

Seconds = TypeVar("Seconds", float, Times)


class GlobalClock:
    """Rank 0's clock, which each rank computes from its own clock by a linear model; made by `synchronize`.

    `scheme` is the name of the synchronization scheme, `local` this rank's own clock, `cost_s` the seconds that
    synchronizing took so far, `model` the model of this rank, and `measured` the ping-pongs to which the model was
    fitted (None on rank 0).
    """

    __slots__ = ("_scale", "_shift_s", "cost_s", "local", "measured", "model", "scheme")

    def __init__(
        self, scheme: str, local: LocalClock, model: ClockModel, measured: PingPongs | None, cost_s: float
    ) -> None:
        self.scheme, self.local, self.model, self.measured, self.cost_s = scheme, local, model, measured, cost_s
        self._scale = 1 + model.drift
        self._shift_s = model.offset_s - model.drift * model.reference_s

    def now(self) -> float:
        """Return the current time of rank 0's clock in seconds."""
        return self.local() * self._scale + self._shift_s

    def to_global(self, local: Seconds) -> Seconds:
        """Return the time of rank 0's clock, in seconds, when this rank's clock shows `local`, a number or an array."""
        return local * self._scale + self._shift_s

    def to_local(self, global_s: float) -> float:
        """Return the time of this rank's clock when rank 0's clock shows `global_s`, in seconds."""
        return (global_s - self._shift_s) / self._scale
