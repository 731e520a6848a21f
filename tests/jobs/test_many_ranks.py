"""Jobs of more ranks than most hosts have cores, on one node: every operation is right, and the job ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

MPIRUN = Path(sys.executable).with_name("mpirun")
OVERSUBSCRIBED = {  # for Open MPI, as in tests/run_mpi.sh
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


@pytest.mark.parametrize(
    ("ranks", "options"), [(32, []), pytest.param(64, ["--all"], marks=pytest.mark.full)], ids=["32", "64"]
)
def test_every_algorithm_is_right_on_many_ranks(ranks, options):
    """A communicator and each of the four symmetric buffers are one mapping each, whatever the number of ranks."""
    command = [str(MPIRUN), "-n", str(ranks), sys.executable, "-m", "tests.mpi.many_ranks", "--dump-after", "100"]
    environment = os.environ | OVERSUBSCRIBED | {"HPCCOLL_TUNING": "off", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*command, *options], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert re.search(rf"operations on {ranks} ranks: none wrong; 5 mappings", run.stdout), run.stdout + run.stderr
