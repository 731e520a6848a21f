"""Random programs on emulated nodes, and without cross-memory attach."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MPIRUN = Path(sys.executable).with_name("mpirun")


@pytest.mark.parametrize(
    "settings",
    [{"MPIR_CVAR_CH4_CMA_ENABLE": "0"}, {"HPCCOLL_RANKS_PER_NODE": "2", "MPIR_CVAR_CH4_CMA_ENABLE": "0"}],
    ids=["no single copy", "two nodes"],
)
def test_random_programs_end_with_the_right_results(settings):
    command = [str(MPIRUN), "-n", "4", sys.executable, "-m", "tests.mpi.random_programs"]
    options = ["--operations", "150", "--per-program", "150", "--seed", "11", "--dump-after", "180"]
    environment = os.environ | settings | {"HPCCOLL_TUNING": "off", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*command, *options], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert "none wrong" in run.stdout, run.stdout + run.stderr
