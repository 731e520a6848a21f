"""No test leaves processes of its jobs behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.jobs.launch import JOB_MARK
from tests.remaining_processes import end_processes


@pytest.fixture(autouse=True)
def _end_jobs() -> Iterator[None]:
    """End the processes that jobs of the test have left, as after a time-out."""
    yield
    end_processes(JOB_MARK)
