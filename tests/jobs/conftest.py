"""No test leaves processes of its jobs behind; the launcher of jobs that go on after the death of a rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.launch import JOB_MARK
from tests.jobs.surviving_training import SurvivalLauncher
from tests.remaining_processes import end_processes
from tests.requirements import skip_or_fail


@pytest.fixture(autouse=True)
def _end_jobs() -> Iterator[None]:
    """End the processes that jobs of the test have left, as after a time-out."""
    yield
    end_processes(JOB_MARK)


@pytest.fixture
def launcher(tmp_path: Path) -> SurvivalLauncher:
    """The programs of an environment with Open MPI."""
    found = SurvivalLauncher.find(tmp_path)
    if found is None:
        skip_or_fail("HPCCOLL_OTHER_MPIRUN does not name the mpirun of an environment with Open MPI")
    return found
