"""The command `hpccoll`: runs a subcommand and turns every error into one paragraph and an exit status.

A subcommand's module is imported only when called, so `hpccoll --help` and `hpccoll verify` load no MPI and no torch.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from gettext import gettext
from pathlib import Path
from typing import Any

import click

from hpccoll import __version__
from hpccoll.cli.output import get_launched_rank, is_printing_rank
from hpccoll.errors import HpccollError

INTERRUPTED, CLOSED_PIPE = 130, 141  # 128 + SIGINT, 128 + SIGPIPE, as in shells
# Environment variable with the name of a file for the exit status; srun's own status is 137 after it killed ranks.
STATUS_FILE = "HPCCOLL_STATUS_FILE"

# The command NAME is the function NAME in hpccoll/cli/NAME.py.
COMMANDS = {
    "bench": "Time collectives over engines and algorithms, validated, side by side.",
    "demo": "Run the classic examples; print each rank's values before and after.",
    "doctor": "Check MPI, launcher, cores, memory, clocks and GPUs, and say how to fix them.",
    "draw": "Draw an algorithm as text, a picture, an animation or a trace.",
    "export": "Write a plan as JSON, GOAL (LogGOPSim) or MSCCL XML.",
    "lab": "Start a throw-away SLURM cluster on this machine.",
    "preflight": "Name the nodes and links of a job that are slow or broken.",
    "report": "Show result files as one HTML page, with findings in words.",
    "scaling": "Compare the results of several runs over numbers of nodes.",
    "schema": "Print the JSON Schema of the records.",
    "simulate": "Predict the times of algorithms on a machine that you do not have.",
    "train": "Train a small model over a mesh of data, tensor and pipeline parallelism.",
    "tune": "Measure every algorithm on this machine, so that algorithm='auto' uses the fastest.",
    "verify": "Prove plans correct for every rank count in a range.",
}


class LazyGroup(click.Group):
    """A click group that imports a command's module only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import the command's module and return the command, None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"hpccoll.cli.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"unknown command {args[0]!r}; choose one of: {', '.join(self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; if the reader of standard output closed the pipe, discard output and return status 141."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would exit with 1, the status of a wrong result
            return _discard_stdout()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(gettext("Commands")):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hpccoll")
def hpccoll() -> None:
    """Collective communication as plans: proven, run over MPI, and measured beside other libraries.

    \b
    Example:
      hpccoll verify --ranks 1:64
      mpirun -n 4 hpccoll bench all_reduce

    Exit status: 0 success; 1 a result was wrong or a comparison regressed; 2 usage; 3 something that was asked for is
    not available here; 4 the communication failed; 130 interrupted; 141 the reader of standard output closed the pipe.
    """  # noqa: D301 - \b is click's, and keeps the lines apart


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; print expected errors as one paragraph, without a traceback.

    `arguments` do not include the program's name; the default is sys.argv[1:]. An error on one rank aborts the MPI job.
    """
    try:
        status: Any = hpccoll.main(arguments, prog_name="hpccoll", standalone_mode=False)
        sys.stdout.flush()  # raises here, rather than at exit, if the reader has closed the pipe
        return _record_status(status if isinstance(status, int) else 0)
    except click.ClickException as error:
        if is_printing_rank():  # every rank has the same arguments, and so the same error
            error.show()
        return _record_status(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _fail(INTERRUPTED, "interrupted; finished records are kept")
    except BrokenPipeError:
        return _discard_stdout()
    except HpccollError as error:
        return _fail(error.exit_status, f"Error: {error}")
    except Exception:
        if not _is_in_job():
            raise
        return _fail(1, traceback.format_exc())


def _record_status(status: int) -> int:
    """Write `status` to the file that HPCCOLL_STATUS_FILE names, unless it exists already, and return `status`."""
    if os.environ.get(STATUS_FILE) and (is_printing_rank() or status):
        # If the status file cannot be written, batch scripts use the launcher's exit status.
        with suppress(OSError), Path(os.environ[STATUS_FILE]).open("x", encoding="ascii") as file:
            file.write(f"{status}\n")
    return status


def _discard_stdout() -> int:
    """Redirect standard output to /dev/null, so that flushing it at exit does not fail; return status 141."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CLOSED_PIPE


def _is_in_job() -> bool:
    """Whether this process is a rank of an MPI job: a launcher started it, and it has imported MPI."""
    return get_launched_rank() is not None and "mpi4py.MPI" in sys.modules


def _fail(status: int, message: str) -> int:
    """Print `message` on standard error, once per job, and return `status`; in an MPI job, abort all ranks instead."""
    if not _is_in_job():
        if is_printing_rank():
            print(message, file=sys.stderr)
        return _record_status(status)
    from hpccoll.runtime import job

    job.wait_for_lower_ranks(get_launched_rank() or 0)
    print(message, file=sys.stderr, flush=True)
    _record_status(status)
    job.abort(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
