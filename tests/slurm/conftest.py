"""One lab of four nodes for all tests of this folder: real SLURM daemons, each node with its own network.

Where SLURM is not installed the tests are skipped, with the command that installs it. With CI=1 they fail instead,
because a skipped test would look like a passed one there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpccoll.errors import UnavailableError
from hpccoll.lab import ClusterSpec, Lab, isolation, requirements
from tests.requirements import skip_or_fail

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def needs_slurm() -> None:
    """Skip without SLURM."""
    try:
        requirements.require_programs()
    except UnavailableError as error:
        skip_or_fail(str(error))


@pytest.fixture(scope="session")
def needs_namespaces(needs_slurm) -> None:
    """Skip where nodes cannot have networks of their own."""
    way, why = isolation.choose_isolation(flat=False)
    if way is isolation.Isolation.FLAT:
        skip_or_fail(f"nodes cannot have networks of their own here: {why}")


@pytest.fixture(scope="session")
def shares(tmp_path_factory) -> tuple[str, ...]:
    """Paths that nodes must see even below /tmp: the project, this Python, and the directories of tests."""
    return (str(ROOT), sys.prefix, str(tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="session")
def session_lab(needs_namespaces, shares) -> Iterator[Lab]:
    """One lab for all tests; they use `lab`, which restores it after each."""
    with Lab(ClusterSpec(nodes=4, cpus=2, shares=shares)) as made:
        yield made


@pytest.fixture
def lab(session_lab) -> Iterator[Lab]:
    """Four idle nodes with two CPUs each and links without limits; restored after each test."""
    yield session_lab
    session_lab.restore()
