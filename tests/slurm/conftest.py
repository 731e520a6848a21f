"""One lab of four nodes for all tests of this folder: real SLURM daemons, each node with its own network.

Where SLURM is not installed the tests are skipped, with the command that installs it; with CI=1 they fail instead, for
there a skipped test would look like a passed one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from hpccoll.errors import UnavailableError
from hpccoll.lab import ClusterSpec, Lab, isolation, requirements

ROOT = Path(__file__).parents[2]


def give_up(reason: str) -> NoReturn:
    """Skip what cannot be tested here; with CI=1 let it fail."""
    if os.environ.get("CI") in (None, "", "0", "false"):
        pytest.skip(reason)
    pytest.fail(f"CI=1 and {reason}", pytrace=False)


@pytest.fixture(scope="session")
def needs_slurm() -> None:
    """SLURM is here, or there is nothing to test."""
    try:
        requirements.require_programs()
    except UnavailableError as error:
        give_up(str(error))


@pytest.fixture(scope="session")
def needs_nodes_apart(needs_slurm) -> None:
    """Nodes can have networks of their own here, or nothing that is about links can be tested."""
    way, why = isolation.choose_isolation(flat=False)
    if way is isolation.Isolation.FLAT:
        give_up(f"nodes cannot be kept apart here: {why}")


@pytest.fixture(scope="session")
def shares(tmp_path_factory) -> tuple[str, ...]:
    """What nodes must see, wherever it is: the project, this Python, and the folders that tests write to."""
    return (str(ROOT), sys.prefix, str(tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="session")
def whole_lab(needs_nodes_apart, shares) -> Iterator[Lab]:
    """The lab itself; tests take `lab`, which puts it right again."""
    with Lab(ClusterSpec(nodes=4, cpus=2, shares=shares)) as made:
        yield made


@pytest.fixture
def lab(whole_lab) -> Iterator[Lab]:
    """Four idle nodes with two CPUs each and links without limits; whatever a test did to them is undone."""
    yield whole_lab
    whole_lab.restore()
