"""The command `hpccoll`: runs a subcommand and turns every error into one paragraph and an exit status.

A subcommand's module is imported only when the subcommand is called, so `hpccoll --help` and `hpccoll verify` load no
MPI and no torch.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from hpccoll import __version__
from hpccoll.cli.command_group import CommandGroup
from hpccoll.cli.failure import fail, fail_alike, is_in_job, record_status
from hpccoll.errors import HpccollError, UnavailableError

# Maps modules that only commands import to their packages, all of which `pip install hpccoll` installs.
PACKAGES = {"jinja2": "jinja2", "matplotlib": "matplotlib", "PIL": "pillow", "rich": "rich", "scipy": "scipy"}
RANKS_OPTIONS = ("--ranks", "--np", "-np")  # options of other programs that users try where the job has the ranks
INTERRUPTED, CLOSED_PIPE = 130, 141  # 128 + SIGINT, 128 + SIGPIPE, as in shells

# The command NAME is the function NAME in hpccoll/cli/NAME.py.
COMMANDS = {
    "barrier": "Time barriers on a common clock, and name the rank that is late.",
    "bench": "Time collectives over engines and algorithms, validated, side by side.",
    "compare": "Decide which differences between two sets of results are real.",
    "demo": "Run the classic examples; print each rank's values before and after.",
    "doctor": "Check MPI, launcher, cores, memory, clocks and GPUs, and say how to fix them.",
    "draw": "Draw an algorithm as text, a picture, an animation or a trace.",
    "estimate": "Estimate memory, FLOPs, traffic and time of training a model on a mesh and machine.",
    "export": "Write a plan as JSON, GOAL (LogGOPSim) or MSCCL XML.",
    "lab": "Start a throw-away SLURM cluster on this machine.",
    "parity": "Compare the gradients of your torch model on a mesh with those of one process.",
    "preflight": "Name the nodes and links of a job that are slow or broken.",
    "profile": "Record where an unmodified program communicates, and explain what it costs.",
    "replay": "Run the recorded communication of a program as a benchmark of several engines.",
    "report": "Show result files as one HTML page, with findings in words.",
    "scaling": "Compare the results of several runs over numbers of nodes.",
    "schema": "Print the JSON Schema of the records.",
    "simulate": "Predict the times of algorithms on a machine that you do not have.",
    "synthesize": "Compute the optimal plan of a collective on a network.",
    "train": "Train a small model by data, tensor, pipeline, context and expert parallelism.",
    "tune": "Measure every algorithm on this machine, so that algorithm='auto' uses the fastest.",
    "verify": "Prove plans correct for every rank count in a range.",
    "which": "Print the algorithm that algorithm='auto' runs for a message size, and why.",
}
# The groups of commands in `hpccoll --help`.
COMMAND_GROUPS = {
    "Measure": ("bench", "barrier", "compare", "profile", "replay", "report", "scaling", "tune"),
    "Understand": ("which", "demo", "verify", "draw", "simulate", "synthesize", "export"),
    "Train": ("train", "estimate", "parity"),
    "Clusters": ("doctor", "preflight", "lab"),
    "Formats": ("schema",),
}


class LazyGroup(CommandGroup):
    """A click group that imports a command's module only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Return the command `cmd_name` after importing its module; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"hpccoll.cli.{cmd_name}"), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; if the reader of standard output closed the pipe, discard output and return status 141."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would exit with 1, the status of a wrong result
            return _discard_stdout()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands for --help, in the sections of COMMAND_GROUPS."""
        width = max(map(len, self.list_commands(ctx)))
        for title, names in COMMAND_GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", COMMANDS[name]) for name in names])


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

    `arguments` do not include the program's name; None stands for sys.argv[1:]. If only some ranks have an error, the
    job is aborted.
    """
    try:
        status: Any = hpccoll.main(arguments, prog_name="hpccoll", standalone_mode=False)
        sys.stdout.flush()  # raises here, rather than at exit, if the reader has closed the pipe
        return record_status(status if isinstance(status, int) else 0)
    except click.ClickException as error:
        message = _format_usage_error(error, sys.argv[1:] if arguments is None else arguments)
        return fail_alike(error.exit_code, message)  # all ranks have the same arguments
    except (KeyboardInterrupt, click.Abort) as error:
        return fail(INTERRUPTED, "interrupted; finished records are kept", error)
    except BrokenPipeError:
        return _discard_stdout()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        try:
            sys.stdout.flush()
        except OSError:
            _discard_stdout()
        where = f" to {error.filename}" if error.filename else ""
        message = f"Error: output cannot be written{where}: {error.strerror}; free some space"
        return fail(UnavailableError.exit_status, message, error)
    except HpccollError as error:
        return fail(error.exit_status, f"Error: {error}", error)
    except ModuleNotFoundError as error:
        package = PACKAGES.get((error.name or "").partition(".")[0])
        if package is None:
            raise
        needed = f"Error: this command needs {package}, which is not installed: pip install {package}"
        return fail(UnavailableError.exit_status, needed, error)
    except Exception as error:
        if not is_in_job():
            raise
        return fail(1, traceback.format_exc(), error)


def _format_usage_error(error: click.ClickException, arguments: Sequence[str]) -> str:
    """Return click's `error` as one paragraph, which names the --help of the command in `arguments`."""
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        return error.format_message()  # the help of a group of commands, such as `hpccoll lab`
    message, context = " ".join(error.format_message().split()), getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption) and error.option_name in RANKS_OPTIONS:
        message = f"{message.rstrip('.')}; mpirun sets the number of ranks of a job, such as mpirun -n 4 hpccoll"
    named = ["hpccoll", *(word for word in arguments[:1] if word in COMMANDS)]
    command = " ".join(named) if context is None else context.command_path
    return f"Error: {message}{'' if message.endswith(('.', '?')) else '.'} See {command} --help"


def _discard_stdout() -> int:
    """Redirect standard output to /dev/null, so that flushing the stream at exit does not fail; return status 141."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CLOSED_PIPE


if __name__ == "__main__":
    sys.exit(main())
