"""Runs an mpi4py program over hpccoll: `mpirun -n 4 python -m hpccoll.mpi4py [-m MODULE | script.py] ARGUMENT...`.

As with `python -m mpi4py`, an exception that the program does not handle, and an exit status other than zero, ends the
job. HPCCOLL_MPI4PY=off runs the program with plain mpi4py.
"""

from __future__ import annotations

import sys

from mpi4py.run import run_command_line, set_abort_status

from hpccoll.mpi4py.installation import install_at_import

USAGE = "usage: mpirun -n RANKS python -m hpccoll.mpi4py [-m MODULE | -c COMMAND | SCRIPT] [ARGUMENT]..."


def main() -> None:
    """Run the mpi4py program that sys.argv names over hpccoll; end the job if the program fails."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(f"{USAGE}\n\n{__doc__}")
        sys.exit(0 if arguments else 2)
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


if __name__ == "__main__":
    main()
