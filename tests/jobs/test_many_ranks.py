"""Jobs of more ranks than most hosts have cores, on one node: every operation is right, and the job ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MANY_RANKS = 20
MPIRUN = Path(sys.executable).with_name("mpirun")
OVERSUBSCRIBED = {  # for Open MPI, as in tests/run_mpi.sh
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


@pytest.mark.parametrize(
    ("ranks", "options"), [(MANY_RANKS, []), pytest.param(64, ["--all"], marks=pytest.mark.full)], ids=["many", "64"]
)
def test_every_algorithm_is_right_on_many_ranks(ranks, options):
    """A communicator and each of the four symmetric buffers are one mapping each, whatever the number of ranks."""
    run = run_ranks(ranks, "tests.mpi.many_ranks", *options)
    assert re.search(rf"operations on {ranks} ranks: none wrong; 5 mappings", run.stdout), run.stdout + run.stderr


@pytest.mark.parametrize(
    ("ranks", "turns"),
    [(6, 2), (7, 2), (8, 2), *(pytest.param(ranks, 25, marks=pytest.mark.full) for ranks in (6, 7, 8))],
)
def test_drawn_counts_and_scans_are_right_on_more_ranks_than_the_other_tests_have(ranks, turns):
    run = run_ranks(ranks, "tests.mpi.uneven_programs", "--turns", str(turns), "--seed", str(ranks + turns))
    assert f"{7 * turns} drawn calls on {ranks} ranks: none wrong" in run.stdout, run.stdout + run.stderr


def run_ranks(ranks: int, module: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a module as a program of that many ranks; every rank prints its stack after 100 s."""
    command = [str(MPIRUN), "-n", str(ranks), sys.executable, "-m", module, "--dump-after", "100", *options]
    environment = os.environ | OVERSUBSCRIBED | {"HPCCOLL_TUNING": "off", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
