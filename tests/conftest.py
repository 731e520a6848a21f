"""Fixtures and hooks of all tests: the same hypothesis examples on every rank, and no rank that waits forever.

Under mpirun each rank runs pytest over the same tests in the same order (tests/run_mpi.sh). After every test, and after
every example that hypothesis draws, the ranks exchange their outcomes, so a test that fails on one rank fails on all.
Where a failure leaves other ranks inside a collective that never ends, the failed rank prints the failure and aborts
the job after GRACE_S seconds. A hang without a failure is ended by pytest-timeout, whose thread runs while the main
thread waits inside MPI.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import HypothesisException

from tests.depth import choose_quick
from tests.leftovers import remove_unused_files

if TYPE_CHECKING:
    from mpi4py import MPI

GRACE_S = 20.0  # seconds that a failed rank waits for the others
MAX_FAILURE = 4000  # characters of a failure that are repeated at the end of `make test`
MPI_TESTS = Path(__file__).parent / "mpi"

# Ranks that drew different examples would call different collectives. So examples depend on the test's name alone, and
# deadlines are off. Shrinking is off under MPI, where each of its steps could hang.
settings.register_profile("alone", derandomize=True, database=None, deadline=None)
settings.register_profile(
    "ranks",
    settings.get_profile("alone"),
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)


def pytest_configure(config: pytest.Config) -> None:
    """Choose the hypothesis profile; under MPI also register the exchange of outcomes."""
    with_mpi = config.getoption("--with-mpi")
    settings.load_profile("ranks" if with_mpi else "alone")
    cases = config.getoption("--cases")
    if cases != "all":
        config.pluginmanager.register(CaseSelection(is_quick=cases == "quick"), "case_selection")
    if with_mpi:
        from mpi4py import MPI

        config.pluginmanager.register(OutcomeExchange(MPI.COMM_WORLD, config), "outcome_exchange")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that selects the tests of `make test` or of `make test-rest`."""
    text = "quick: each value of each parameter once; rest: the other cases; all: every case (default)"
    parser.addoption("--cases", choices=("quick", "rest", "all"), default="all", help=text)


@pytest.hookimpl(tryfirst=True)  # before tests are selected by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test in tests/mpi with `mpi`, and with `full` where `full_except_on` says so; apply `needs_ranks`."""
    size = 1
    if config.getoption("--with-mpi"):
        from mpi4py import MPI

        size = MPI.COMM_WORLD.size
    for item in items:
        if MPI_TESTS in item.path.parents:
            item.add_marker("mpi")
        cheap = item.get_closest_marker("full_except_on")
        if cheap is not None and size not in cheap.args:
            item.add_marker("full")
    unsuitable = [item for item in items if not all(_allows(mark, size) for mark in item.iter_markers("needs_ranks"))]
    if unsuitable:
        config.hook.pytest_deselected(items=unsuitable)
        items[:] = [item for item in items if item not in unsuitable]


class CaseSelection:
    """Selects the tests of `make test` if `is_quick`, else those of `make test-rest`, after markers have selected."""

    def __init__(self, *, is_quick: bool) -> None:
        self._is_quick = is_quick

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the tests that `choose_quick` returns, or the others."""
        quick = choose_quick(items)
        config.hook.pytest_deselected(items=[item for item in items if (item in quick) != self._is_quick])
        items[:] = [item for item in items if (item in quick) == self._is_quick]


def _allows(needs_ranks: pytest.Mark, size: int) -> bool:
    """Whether a test with this mark runs on `size` ranks."""
    least, most = (*needs_ranks.args, size)[:2]
    return bool(least <= size <= most)


@pytest.fixture(scope="session", autouse=True)
def remove_mpi_segments(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """Remove the shared-memory files that killed ranks left; under mpirun, run_mpi.sh does it after the run.

    In `make test` several sessions run at once, and a test of one session needs the file of its killed rank for some
    seconds. There the Makefile sets HPCCOLL_TEST_BESIDE and removes the files after all sessions.
    """
    began = time.time()
    yield
    if not request.config.getoption("--with-mpi") and "HPCCOLL_TEST_BESIDE" not in os.environ:
        remove_unused_files(time.time() - began)


@pytest.fixture(scope="session")
def comm() -> MPI.Intracomm:
    """MPI.COMM_WORLD."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Append the failures to the file that HPCCOLL_TEST_FAILURES names, as the output of parallel sessions mixes."""
    file = os.environ.get("HPCCOLL_TEST_FAILURES")
    failed = terminalreporter.getreports("failed") + terminalreporter.getreports("error")
    if file and failed and "PYTEST_XDIST_WORKER" not in os.environ:  # the session of the workers appends theirs
        texts = [f"{report.nodeid}\n{report.longreprtext[-MAX_FAILURE:]}\n\n" for report in failed]
        with Path(file).open("a", encoding="utf-8") as shared:
            shared.write("".join(texts))


class OutcomeExchange:
    """Makes a test fail on all ranks when it fails on one; registered only where tests run under MPI."""

    def __init__(self, world: MPI.Intracomm, config: pytest.Config) -> None:
        self.comm = world.Dup()
        self.config = config
        self.failed = False

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Wrap a hypothesis test such that the ranks exchange outcomes after each example."""
        self.failed = False
        drawn = getattr(getattr(item, "obj", None), "hypothesis", None)
        if drawn is not None and not hasattr(drawn.inner_test, "__wrapped__"):
            drawn.inner_test = self.wrap_example(drawn.inner_test, item.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Print a failure at once; after the teardown of a test, exchange outcomes with the other ranks."""
        report = yield
        if report.failed:
            self.failed = True
            self.print_now(f"{item.nodeid} ({call.when})\n{report.longreprtext}")
        if call.when == "teardown":
            others = self.exchange(item.nodeid, failed=self.failed)
            if others and not self.failed:
                report.outcome, report.longrepr = "failed", describe_failure(others)
        return report

    def wrap_example(self, inner: Callable[..., None], nodeid: str) -> Callable[..., None]:
        """Return `inner` such that it fails on every rank when it fails on one."""

        @functools.wraps(inner)
        def wrapped(*args: Any, **kwargs: Any) -> None:
            try:
                inner(*args, **kwargs)
            except HypothesisException:  # a rejected example; all ranks reject it
                raise
            except Exception:
                self.exchange(nodeid, failed=True)
                raise
            others = self.exchange(nodeid, failed=False)
            if others:
                pytest.fail(describe_failure(others), pytrace=False)

        return wrapped

    def exchange(self, nodeid: str, *, failed: bool) -> list[int]:
        """Return the ranks that failed; abort the job if this one failed and the others do not respond in time."""
        mine, all_ranks = np.array([failed], np.int8), np.zeros(self.comm.size, np.int8)
        request = self.comm.Iallgather(mine, all_ranks)
        end = time.monotonic() + GRACE_S
        while not request.Test():
            if failed and time.monotonic() > end:
                why = traceback.format_exc() if sys.exc_info()[0] else ""  # not yet printed in an example
                self.print_now(f"{why}{nodeid} failed here, and other ranks still wait in it: aborting")
                self.comm.Abort(1)
            time.sleep(0.0005)
        return [int(rank) for rank in np.nonzero(all_ranks)[0]]

    def print_now(self, text: str) -> None:
        """Print to standard error without pytest's capture, whose text an abort would lose."""
        with self.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\nrank {self.comm.rank} of {self.comm.size}: {text}", file=sys.stderr, flush=True)

    def pytest_unconfigure(self) -> None:
        """Free the communicator."""
        self.comm.Free()


def describe_failure(ranks: list[int]) -> str:
    """Return a message that names the ranks that failed."""
    return f"failed on rank {', '.join(map(str, ranks))}: see its output"
