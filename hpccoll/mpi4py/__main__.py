"""Runs an mpi4py program over hpccoll: `mpirun -n 4 python -m hpccoll.mpi4py [-m MODULE | script.py] ARGUMENT...`.

As with `python -m mpi4py`, an exception that the program does not handle, and an exit status other than zero, ends the
job. HPCCOLL_MPI4PY=off runs the program with plain mpi4py.
"""

from __future__ import annotations

import sys

from mpi4py.run import run_command_line, set_abort_status

from hpccoll.errors import UsageError
from hpccoll.mpi4py.installation import install_at_import
from hpccoll.processes.launched_rank import print_common_error
from hpccoll.processes.python_program import require_module, require_script

USAGE = "usage: mpirun -n RANKS python -m hpccoll.mpi4py [-m MODULE | -c COMMAND | SCRIPT] [ARGUMENT]..."


def main() -> None:
    """Run, over hpccoll, the mpi4py program that sys.argv names; end the job if the program fails."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(f"{USAGE}\n\n{__doc__}")
        sys.exit(0 if arguments else 2)
    try:
        _require_program(arguments)
    except UsageError as error:
        print_common_error(f"Error: {error}")
        sys.exit(error.exit_status)
    install_at_import()
    try:
        run_command_line(arguments)
    except SystemExit as error:
        set_abort_status(error)
        raise
    except KeyboardInterrupt as error:
        set_abort_status(error)
        raise
    except BaseException:
        set_abort_status(1)
        raise


def _require_program(arguments: list[str]) -> None:
    """Raise UsageError if the first of `arguments` is no script that Python can run, or the module of -m is missing."""
    if arguments[0] == "-m" and len(arguments) > 1:
        require_module(arguments[1])
    elif not arguments[0].startswith("-"):
        require_script(arguments[0])


if __name__ == "__main__":
    main()
