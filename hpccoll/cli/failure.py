"""Ends a command that failed: one paragraph on standard error, and the same exit status on all ranks.

MPI_Abort makes the launcher print a report of its own, and may leave shared-memory files in /dev/shm. A failed command
therefore calls MPI_Abort only if some ranks did not fail, because these ranks could wait for the failed ones forever.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from hpccoll.cli.output import get_launched_rank, is_printing_rank
from hpccoll.errors import CommunicationError, HpccollError, LauncherError

GRACE_S = 0.5  # time in which rank 0 prints an error that all ranks have
PRINTING_S = 10.0  # longest wait for the process of rank 0 to print such an error and to end
# The seconds in which ranks try to find out whether all of them failed; equal with and without shared cores.
# A longer time would delay the end of a job whose other ranks poll in a collective.
AGREEMENT_S = 2.0
# Environment variable with the name of a file for the exit status; srun's own status is 137 after it killed ranks.
STATUS_FILE = "HPCCOLL_STATUS_FILE"


def record_status(status: int) -> int:
    """Write the exit status `status` to the file that HPCCOLL_STATUS_FILE names, unless it exists; return `status`.

    The rank that prints writes any status, and other ranks write a status that is not 0.
    """
    if os.environ.get(STATUS_FILE) and (is_printing_rank() or status):
        # If the status file cannot be written, batch scripts use the launcher's exit status.
        with suppress(OSError), Path(os.environ[STATUS_FILE]).open("x", encoding="ascii") as file:
            file.write(f"{status}\n")
    return status


def is_in_job() -> bool:
    """Whether this process is a rank of an MPI job: a launcher started it, and it has imported MPI."""
    return get_launched_rank() is not None and "mpi4py.MPI" in sys.modules


def fail_alike(status: int, message: str) -> int:
    """Print `message` on rank 0 for an error that every rank has; return `status`, the exit status; make no MPI call.

    The other ranks wait until rank 0 has printed, because some launchers end a job, and drop its output, at the first
    exit.
    """
    if is_printing_rank():
        print(message, file=sys.stderr, flush=True)
    else:
        time.sleep(GRACE_S)
        _wait_for_local_rank_0()
    return record_status(status)


def _wait_for_local_rank_0() -> None:
    """Wait, for at most PRINTING_S seconds, until rank 0 has ended, if rank 0 runs on this host."""
    import psutil

    for each in psutil.Process(os.getppid()).children():
        with suppress(psutil.Error):  # processes may end meanwhile, and those of other users show no environment
            if get_launched_rank(each.environ()) == 0:
                each.wait(PRINTING_S)


def fail(status: int, message: str, error: BaseException) -> int:
    """End a failed command: print `message` on standard error, once per job, and return `status`, the exit status.

    `error` is the exception. If it did not occur on all ranks, the job is aborted by MPI_Abort.
    """
    if not is_in_job() or isinstance(error, LauncherError):  # ranks that a wrong launcher started are not connected
        return fail_alike(status, message)
    if _can_finalize_after(error) and _do_all_ranks_fail(message):
        return record_status(status)
    from hpccoll.runtime import job

    job.wait_for_lower_ranks(get_launched_rank() or 0)
    print(message, file=sys.stderr, flush=True)
    record_status(status)
    job.abort(status)
    return status


def _can_finalize_after(error: BaseException) -> bool:
    """Whether MPI_Finalize can return after `error`; after a CommunicationError it could wait for lost messages."""
    return isinstance(error, HpccollError) and not isinstance(error, CommunicationError)


def _do_all_ranks_fail(message: str) -> bool:
    """Wait up to AGREEMENT_S seconds for all ranks to call this; return whether they did.

    If so, rank 0 prints `message` to standard error.
    """
    from hpccoll.runtime import job, joint_failure

    module = job.load_mpi()
    if module.Is_finalized():
        return False
    return joint_failure.agree_to_end(module.COMM_WORLD, lambda: _print_and_wait(message), AGREEMENT_S)


def _print_and_wait(message: str) -> None:
    """Print a message on standard error, and sleep for the time in which launchers read the message."""
    print(message, file=sys.stderr, flush=True)
    time.sleep(GRACE_S / 4)  # until the launcher has read the message
