"""Runs a script of torch.distributed as ranks of an MPI job: `mpirun -n 4 python -m hpccoll.torch train.py`.

Before the script begins, RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE are set as torchrun sets them, and the
backend "hpccoll" is registered. `-m MODULE` in place of a script runs a module.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

import hpccoll.torch  # noqa: F401 - registers the backend
from hpccoll.errors import CommunicationError, HpccollError, UsageError
from hpccoll.processes.launched_rank import print_common_error
from hpccoll.processes.python_program import require_module, require_script
from hpccoll.torch.rendezvous import set_variables_by_mpi

USAGE = "mpirun -n RANKS python -m hpccoll.torch [--timeout SECONDS] [-m] SCRIPT [ARGUMENT]..."


def parse_arguments() -> argparse.Namespace:
    """Return the parsed sys.argv: `timeout` in seconds, `is_module`, and `words`, the program and its arguments."""
    parser = argparse.ArgumentParser(
        usage=USAGE, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = default_pg_timeout.total_seconds()
    parser.add_argument(
        "--timeout", type=float, default=default, help=f"seconds in which all ranks must start (default {default:g})"
    )
    parser.add_argument("-m", action="store_true", dest="is_module", help="run a module in place of a script")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="SCRIPT", help="the script and its arguments")
    arguments = parser.parse_args()
    if not arguments.words:
        parser.error("no script; pass the path of a script, or -m and the name of a module")
    return arguments


def connect_ranks(timeout: timedelta) -> None:
    """Initialize MPI, and set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE as torchrun does. Collective.

    If not all ranks call it within `timeout`, or MPI cannot start, the process or the job ends with an error message.
    """
    try:
        set_variables_by_mpi(os.environ, timeout)
    except HpccollError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(error.exit_status)
    except dist.DistBackendError as error:
        from hpccoll.runtime import job

        job.wait_for_lower_ranks(job.get_world().rank)
        sys.stderr.write(f"Error: {error}\n")
        job.abort(CommunicationError.exit_status)


def main() -> None:
    """Connect the ranks, then run the script or module that sys.argv names as `__main__`."""
    arguments = parse_arguments()
    try:
        (require_module if arguments.is_module else require_script)(arguments.words[0])
    except UsageError as error:
        print_common_error(f"Error: {error}")
        sys.exit(error.exit_status)
    connect_ranks(timedelta(seconds=arguments.timeout))
    sys.argv = words = arguments.words
    if arguments.is_module:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(words[0]).resolve().parent)  # as `python SCRIPT` sets it
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
