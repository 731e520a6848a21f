"""The pytest fixture `parity`, for tests that run under mpirun; import it in conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hpccoll.communicator import Communicator
from hpccoll.parity.case import ParityCase
from hpccoll.parity.check import ParityReport, check_parity
from hpccoll.parity.comparison import ParityOptions
from hpccoll.peers.process_group import open_process_group


@pytest.fixture(scope="session")
def parity() -> Iterator[Callable[..., ParityReport]]:
    """Yield a function `parity(build, mesh="dp", **options)` that checks a model's parallel training step.

    The function compares the training of `build()`, a ParityCase, on the mesh with that in one process, and fails the
    test on all ranks if a tensor differs. `options` are fields of `ParityOptions`. If torch.distributed is not
    initialised, it is started over gloo.
    """
    with Communicator() as comm, open_process_group("gloo"):

        def check(build: Callable[[], ParityCase], mesh: str = "dp", **options: Any) -> ParityReport:
            """Compare a model's training on `mesh` with that in one process; raise WrongResultError if they differ."""
            report = check_parity(comm, build, mesh, ParityOptions(**options))
            report.require_equal()
            return report

        yield check
