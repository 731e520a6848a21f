"""Ends a command that failed: one paragraph on standard error, and the same exit status on all ranks.

MPI_Abort makes the launcher print a report of its own, and may leave shared-memory files in /dev/shm. A failed command
calls MPI_Abort only if some ranks did not fail: without MPI_Abort, these ranks could wait forever for the failed ones.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from hpccoll.errors import CommunicationError, HpccollError, LauncherError
from hpccoll.processes import joint_failure
from hpccoll.processes.launched_rank import GRACE_S, get_launched_rank, is_printing_rank, print_common_error

# The seconds for which a failed rank waits for all others to fail; the same whether or not ranks share cores.
# With a longer AGREEMENT_S, a job in which some ranks failed and others poll in a collective would end later.
AGREEMENT_S = 2.0
# Environment variable with the name of a file for the exit status; srun's own status is 137 after it killed ranks.
STATUS_FILE = "HPCCOLL_STATUS_FILE"


def record_status(status: int) -> int:
    """Write the exit status `status` to the file of HPCCOLL_STATUS_FILE, unless this file exists; return `status`.

    The rank that prints always writes its status; the other ranks write theirs only if it is not 0.
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
    """Print `message` on rank 0 for an error that every rank has; return `status`, the exit status; calls no MPI."""
    print_common_error(message)
    return record_status(status)


def fail(status: int, message: str, error: BaseException) -> int:
    """End a failed command: print `message` on standard error, once per job, and return `status`, the exit status.

    `error` is the exception. If the error did not occur on all ranks, the job is aborted by MPI_Abort.
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
    """Whether it is certain that MPI_Finalize returns after `error`.

    After a CommunicationError, or an error of unknown kind, MPI_Finalize could wait for lost messages.
    """
    return isinstance(error, HpccollError) and not isinstance(error, CommunicationError)


def _do_all_ranks_fail(message: str) -> bool:
    """Wait, for at most AGREEMENT_S seconds, until all ranks have called this function; return whether they have.

    If all ranks have called this function, rank 0 prints `message` to standard error.
    """
    from hpccoll.runtime import job

    module = job.load_mpi()
    if module.Is_finalized():
        return False
    return joint_failure.agree_to_end(module.COMM_WORLD, lambda: _print_and_wait(message), AGREEMENT_S)


def _print_and_wait(message: str) -> None:
    """Print a message on standard error, and sleep for the time that launchers need to read the message."""
    print(message, file=sys.stderr, flush=True)
    time.sleep(GRACE_S / 4)  # until the launcher has read the message
