"""What every test gets: the same examples on every rank, and a run in which no rank is left waiting.

Under mpirun each rank runs pytest over the same tests in the same order (tests/run_mpi.sh). After every test, and after
every example that hypothesis draws, the ranks tell each other whether it went well, so what fails on one rank fails on
all. Where a failure leaves the others inside a collective that will never end, the failed rank shows what went wrong
and aborts the job after GRACE seconds; a hang without a failure is ended by pytest-timeout, whose thread works while
the main one waits inside MPI.
"""

from __future__ import annotations

import functools
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

from tests.leftovers import remove

if TYPE_CHECKING:
    from mpi4py import MPI

GRACE = 20.0  # seconds that a failed rank waits for the others
MPI_TESTS = Path(__file__).parent / "mpi"

# Ranks that drew different examples would call different collectives. So examples are derived from the test's name
# alone, and what depends on the clock is off. Shrinking is off under MPI, where each step of it could hang.
settings.register_profile("alone", derandomize=True, database=None, deadline=None)
settings.register_profile(
    "ranks",
    settings.get_profile("alone"),
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)


def pytest_configure(config: pytest.Config) -> None:
    """Choose how examples are drawn; under MPI also keep the ranks in step."""
    with_mpi = config.getoption("--with-mpi")
    settings.load_profile("ranks" if with_mpi else "alone")
    if with_mpi:
        from mpi4py import MPI

        config.pluginmanager.register(Together(MPI.COMM_WORLD, config), "together")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in tests/mpi is a test for mpirun, whether it says so or not."""
    for item in items:
        if MPI_TESTS in item.path.parents:
            item.add_marker("mpi")


@pytest.fixture(scope="session", autouse=True)
def tidy(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """Tests that kill ranks leave MPI's segments behind; under mpirun run_mpi.sh removes them when all have ended."""
    began = time.time()
    yield
    if not request.config.getoption("--with-mpi"):
        remove(time.time() - began)


@pytest.fixture(scope="session")
def comm() -> MPI.Intracomm:
    """All ranks of the run."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


class Together:
    """Keeps the ranks of a run in step; registered only where tests run under MPI."""

    def __init__(self, world: MPI.Intracomm, config: pytest.Config) -> None:
        self.news = world.Dup()
        self.config = config
        self.failed = False

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Let the ranks agree after each example of a test that hypothesis draws for."""
        self.failed = False
        drawn = getattr(getattr(item, "obj", None), "hypothesis", None)
        if drawn is not None and not hasattr(drawn.inner_test, "__wrapped__"):
            drawn.inner_test = self.example(drawn.inner_test, item.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Show a failure as soon as it happens; after the last phase of a test, agree with the other ranks."""
        report = yield
        if report.failed:
            self.failed = True
            self.show(f"{item.nodeid} ({call.when})\n{report.longreprtext}")
        if call.when == "teardown":
            others = self.agree(item.nodeid, failed=self.failed)
            if others and not self.failed:
                report.outcome, report.longrepr = "failed", blame(others)
        return report

    def example(self, inner: Callable[..., None], nodeid: str) -> Callable[..., None]:
        """Return `inner` made to fail on every rank when it fails on one."""

        @functools.wraps(inner)
        def together(*args: Any, **kwargs: Any) -> None:
            try:
                inner(*args, **kwargs)
            except HypothesisException:  # an example that does not count: alike on all ranks
                raise
            except Exception:
                self.agree(nodeid, failed=True)
                raise
            others = self.agree(nodeid, failed=False)
            if others:
                pytest.fail(blame(others), pytrace=False)

        return together

    def agree(self, nodeid: str, *, failed: bool) -> list[int]:
        """Return the ranks that failed; abort the job where this one failed and the others do not come to ask."""
        mine, all_ranks = np.array([failed], np.int8), np.zeros(self.news.size, np.int8)
        request = self.news.Iallgather(mine, all_ranks)
        end = time.monotonic() + GRACE
        while not request.Test():
            if failed and time.monotonic() > end:
                why = traceback.format_exc() if sys.exc_info()[0] else ""  # within an example: not yet shown
                self.show(f"{why}{nodeid} failed here, and other ranks have been waiting in it since: aborting")
                self.news.Abort(1)
            time.sleep(0.0005)
        return [int(rank) for rank in np.nonzero(all_ranks)[0]]

    def show(self, text: str) -> None:
        """Print at once, past pytest's capture, what an abort would take along."""
        with self.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\nrank {self.news.rank} of {self.news.size}: {text}", file=sys.stderr, flush=True)

    def pytest_unconfigure(self) -> None:
        """Give the communicator back."""
        self.news.Free()


def blame(ranks: list[int]) -> str:
    """Say where to look."""
    return f"failed on rank {', '.join(map(str, ranks))}: see what it printed"
