"""The command `hpccoll`: finds the subcommand, and turns whatever goes wrong into one paragraph and an exit status.

Subcommands are imported when they are called, so that `hpccoll --help` and `hpccoll verify` need neither MPI nor torch.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from gettext import gettext
from pathlib import Path
from typing import Any

import click

from hpccoll import __version__
from hpccoll.cli.output import get_launched_rank, is_printing_rank
from hpccoll.errors import HpccollError

INTERRUPTED, CLOSED_PIPE = 130, 141  # 128 + SIGINT, 128 + SIGPIPE, as shells count
GRACE_S = 0.25
STATUS_FILE = "HPCCOLL_STATUS_FILE"  # where a batch script finds it: srun's own is 137 if it had to end other ranks


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a subcommand is, `module:attribute`, and what it does in a line."""

    target: str
    summary: str

    def load(self) -> click.Command:
        """Import the command."""
        module, _, attribute = self.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


COMMANDS = {
    "bench": LazyCommand(
        "hpccoll.cli.bench:bench", "Time collectives over engines and algorithms, validated, side by side."
    ),
    "draw": LazyCommand("hpccoll.cli.draw:draw", "Draw an algorithm as text, a picture, an animation or a trace."),
    "demo": LazyCommand("hpccoll.cli.demo:demo", "Run the classic examples, printed rank by rank before and after."),
    "doctor": LazyCommand(
        "hpccoll.cli.doctor:doctor", "Look at MPI, launcher, cores, memory, clocks and GPUs: what to mend."
    ),
    "export": LazyCommand("hpccoll.cli.export:export", "Write a plan as JSON, GOAL (LogGOPSim) or MSCCL XML."),
    "lab": LazyCommand("hpccoll.cli.lab:lab", "Start a throw-away SLURM cluster on this machine."),
    "preflight": LazyCommand(
        "hpccoll.cli.preflight:preflight", "Name the nodes and links of a job that are slow or broken."
    ),
    "report": LazyCommand("hpccoll.cli.report:report", "Show result files as one HTML page, with findings in words."),
    "scaling": LazyCommand(
        "hpccoll.cli.scaling:scaling", "Put results of several runs side by side over numbers of nodes."
    ),
    "schema": LazyCommand("hpccoll.cli.schema:schema", "Print the JSON Schema of the records."),
    "simulate": LazyCommand(
        "hpccoll.cli.simulate:simulate", "Predict what algorithms take on a machine that is not here."
    ),
    "train": LazyCommand(
        "hpccoll.cli.train:train", "Train a small model over a mesh of data, tensor and pipeline parallelism."
    ),
    "tune": LazyCommand(
        "hpccoll.cli.tune:tune", "Measure every algorithm here and store the fastest, for auto to read."
    ),
    "verify": LazyCommand("hpccoll.cli.verify:verify", "Prove the plans for every rank count in a range."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when one is called, and not to list them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        return COMMANDS[cmd_name].load() if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"unknown command {args[0]!r}; choose one of: {', '.join(self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # before click sees it, who would end with 1: our word for a wrong result
            return _closed_pipe()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(gettext("Commands")):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hpccoll")
def hpccoll() -> None:
    """Collective communication as plans: proven, run over MPI, and measured beside its peers.

    \b
    Example:
      hpccoll verify --ranks 1:64
      mpirun -n 4 hpccoll bench all_reduce

    Exit status: 0 done and right; 1 a result was wrong or a comparison regressed; 2 usage; 3 something that was asked
    for is not available here; 4 the communication failed.
    """  # noqa: D301 - \b is click's, and keeps the lines apart


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; no error that was foreseen leaves a traceback.

    Args:
        arguments: without the program's name; default those of this process.
    """
    try:
        status: Any = hpccoll.main(arguments, prog_name="hpccoll", standalone_mode=False)
        sys.stdout.flush()  # a reader that went away shows here rather than at exit
        return _left(status if isinstance(status, int) else 0)
    except click.ClickException as error:
        if is_printing_rank():  # every rank was called with the same words
            error.show()
        return _left(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _end(INTERRUPTED, "interrupted; finished records are kept")
    except BrokenPipeError:
        return _closed_pipe()
    except HpccollError as error:
        return _end(error.exit_status, f"Error: {error}")
    except Exception:
        if not _in_job():
            raise
        return _end(1, traceback.format_exc())


def _left(status: int) -> int:
    """Leave the status of the command in the file that a batch script named, and return it."""
    if os.environ.get(STATUS_FILE) and (is_printing_rank() or status):
        # Only the first rank that speaks; and where no file can be written, the script has the launcher's status.
        with suppress(OSError), Path(os.environ[STATUS_FILE]).open("x", encoding="ascii") as file:
            file.write(f"{status}\n")
    return status


def _closed_pipe() -> int:
    """Let Python's last flush of standard output go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CLOSED_PIPE


def _in_job() -> bool:
    """Whether other ranks may be waiting for this one: MPI was loaded by a process that a launcher started."""
    return get_launched_rank() is not None and "mpi4py.MPI" in sys.modules


def _end(status: int, message: str) -> int:
    """Say once why the command ends, and take the other ranks of the job along."""
    if not _in_job():
        if is_printing_rank():
            print(message, file=sys.stderr)
        return _left(status)
    # Often all ranks fail alike. The lowest speaks and ends the job before the others' time has come.
    time.sleep(min(get_launched_rank() or 0, 8) * GRACE_S)
    print(message, file=sys.stderr, flush=True)
    _left(status)
    time.sleep(GRACE_S / 2)  # the launcher forwards what it has read, not what is in the pipe when the job dies
    from hpccoll.runtime import job

    job.abort(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
