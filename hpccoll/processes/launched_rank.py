"""This process's rank, from the launcher's environment variables; prints an error of all ranks once per job.

No function of this file imports MPI.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

# Environment variables in which launchers pass a rank; in a SLURM job, a variable that mpirun sets has precedence.
_TORCHRUN_RANK, _TORCHRUN_JOB = "RANK", "TORCHELASTIC_RUN_ID"  # users set RANK, too; torchrun always sets both
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", _TORCHRUN_RANK, "SLURM_PROCID")
GRACE_S = 0.5  # time in which rank 0 prints an error that all ranks have
PRINTING_S = 10.0  # longest wait for the process of rank 0 to print such an error and to end


def get_launched_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return this process's rank, which mpirun, srun or torchrun put into the environment variables `environ`.

    Returns None if no launcher started the process.
    """
    for name in RANK_VARIABLES:
        if name == _TORCHRUN_RANK and _TORCHRUN_JOB not in environ:
            continue
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return None


def is_printing_rank() -> bool:
    """Whether this process prints: it is rank 0, or no launcher started it."""
    return not get_launched_rank()


def print_common_error(message: str) -> None:
    """Print `message` to standard error on rank 0, for an error that every rank has.

    The other ranks wait until rank 0 has printed, because some launchers end a job, and drop its output, when its first
    process exits. A rank prints, too, if rank 0 of this host does not end, because it then lacks the error.
    """
    if not is_printing_rank():
        time.sleep(GRACE_S)
        if not _is_local_rank_0_alive():
            return
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


def _is_local_rank_0_alive() -> bool:
    """Wait for at most PRINTING_S seconds for the end of a rank 0 of this host; return whether it still runs."""
    import psutil

    for process in psutil.Process(os.getppid()).children():
        try:
            if get_launched_rank(process.environ()) == 0:
                process.wait(PRINTING_S)
        except psutil.TimeoutExpired:
            return True
        except psutil.Error:  # processes may end meanwhile, and those of other users show no environment
            continue
    return False
