"""Starts real MPI jobs of the command line, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent
LIMIT_S = 120


def environment(**more: str) -> dict[str, str]:
    """Return this environment with what both MPIs need to run as root and with more ranks than cores."""
    ours = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "HPCCOLL_TUNING": "off",  # a table on this machine must not decide what tests run
    }
    return os.environ | ours | more


def command(ranks: int, *arguments: str) -> list[str]:
    """Return the words that run `hpccoll ARGUMENTS` on `ranks` ranks."""
    return [str(BIN / "mpirun"), "-n", str(ranks), str(BIN / "hpccoll"), *arguments]


def hpccoll(ranks: int, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `hpccoll ARGUMENTS` on `ranks` ranks and return what came of it."""
    return subprocess.run(
        command(ranks, *arguments),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=environment(**more),
    )
