"""The options `--start`, `--clock` and `--window`, and the choice between start windows and barriers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from hpccoll.cli.options import option
from hpccoll.errors import UsageError
from hpccoll.records import StartMethod

if TYPE_CHECKING:
    from hpccoll.measure.iteration_start import BarrierStarter
    from hpccoll.runtime.job import RankLayout

AUTO, DEFAULT_CLOCK = "auto", "hca3"


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The options for the start of timed iterations: at a time of a global clock (start window), or after a barrier.

    If `clock` is None, the clock is DEFAULT_CLOCK; if `window_us` is None, the length of windows adapts to the ranks.
    """

    start: str = option(
        "--start",
        type=click.Choice([AUTO, *(method.value for method in StartMethod)]),
        default=AUTO,
        show_default=True,
        help="How iterations start: in windows of a global clock, or by a barrier (auto: if ranks share cores).",
    )
    clock: str | None = option("--clock", metavar="NAME", help="Synchronization: hca3 (default), skampi, jones_koenig.")
    window_us: float | None = option(
        "--window", type=click.FloatRange(0, min_open=True), help="Length of start windows in us."
    )

    def check(self) -> None:
        """Raise UsageError if --clock names no clock, or if --clock or --window is given with `--start barrier`."""
        from hpccoll.measure.clock import get_clock_scheme

        if self.clock is not None:
            get_clock_scheme(self.clock)
        if self.start == StartMethod.BARRIER and (self.clock or self.window_us):
            given = "--clock" if self.clock else "--window"
            raise UsageError(f"--start barrier uses no clock; leave out {given}, or use --start window")


def make_starter(options: StartOptions, comm: Any, layout: RankLayout, core_share: float | None) -> BarrierStarter:
    """Return the object that starts timed iterations on all ranks of `comm` at once. Collective.

    The object starts iterations at a time of a global clock (in windows), or after a barrier if the user asks for
    barriers or windows cannot work. Start windows need a core for every rank, and clocks that synchronize within a
    share of the run's time (`SyncBudget`). With more ranks than cores, iterations always start by barriers. With a core
    per rank, a user who gives `--start window`, --clock or --window always gets start windows. Without --start, --clock
    and --window, iterations start by windows only if `core_share` and the time to synchronize clocks allow windows.

    `core_share` is the least share of a core that a rank gets, or None if it was not measured.
    """
    from hpccoll.measure.clock import SyncBudget
    from hpccoll.measure.core_share import is_shared
    from hpccoll.measure.iteration_start import BarrierStarter, WindowStarter, choose_span_s, describe_sync_cost

    clock, window_s = options.clock or DEFAULT_CLOCK, None if options.window_us is None else options.window_us / 1e6
    if options.start == StartMethod.BARRIER or comm.size == 1:
        return BarrierStarter(comm)
    if layout.oversubscribed:
        return BarrierStarter(comm, "as there are more ranks than cores")
    if options.start == StartMethod.WINDOW or options.clock or options.window_us:
        return WindowStarter(comm, clock, window_s)
    if core_share is not None and is_shared(core_share):
        return BarrierStarter(comm, f"as a rank got only {core_share:.0%} of a core")
    budget = SyncBudget()
    span_s = choose_span_s(comm, clock, budget)
    if span_s is None:
        return BarrierStarter(comm, describe_sync_cost(budget))
    return WindowStarter(comm, clock, window_s, span_s, budget)
