"""`hpccoll profile`: record a program's communication, or explain a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from hpccoll.cli.output import is_printing_rank, print_text
from hpccoll.errors import UsageError

DIRECTORY: Final = "job.hpccoll"


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Example: mpirun -n 4 hpccoll profile -o job.hpccoll script.py, then hpccoll profile job.hpccoll",
)
@click.option(
    "-o", "--output", metavar="PATH",
    help=f"The directory for the recording (default {DIRECTORY}); for a recording, the HTML page to write.",
)  # fmt: skip
@click.option("-m", "is_module", is_flag=True, help="Run a module in place of a script.")
@click.option("--drop-in", is_flag=True, help="Run the collectives of an mpi4py program over hpccoll.")
@click.option("--from", "from_s", type=float, default=0.0, metavar="SECONDS", help="Record from then on.")
@click.option("--to", "to_s", type=float, metavar="SECONDS", help="Record until then.")
@click.option(
    "--every", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Record one of N seconds."
)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENT]... | RECORDING")
def profile(
    output: str | None,
    is_module: bool,
    drop_in: bool,
    from_s: float,
    to_s: float | None,
    every: int,
    words: tuple[str, ...],
) -> int:
    """Record where an unmodified program communicates, or explain a recording.

    SCRIPT is a Python program that communicates by mpi4py, torch.distributed or hpccoll. Its results, and the
    algorithms of its collectives, are those of the program without the recording. RECORDING is the directory that -o
    named: the command prints how efficient the job was, which ranks are late, and which calls cost the most.
    """
    if is_recording(words[0]) and not is_module:
        return _explain(words, output) if is_printing_rank() else 0
    from hpccoll.profile import RecordingOptions, run_program

    directory = output or DIRECTORY
    if to_s is not None and to_s <= from_s:
        raise UsageError(f"--from {from_s:g} --to {to_s:g} records nothing; give --to a later time")
    if Path(directory).is_file():
        raise UsageError(f"-o {directory}: is a file; name a directory for the recording")
    options = RecordingOptions(directory, from_s, to_s, every)
    rank = run_program(list(words), is_module=is_module, uses_drop_in=drop_in, options=options)
    if rank is None:
        raise UsageError(f"{words[0]}: has not used mpi4py, torch.distributed or hpccoll, so nothing was recorded")
    if rank == 0:
        click.echo(f"# recorded in {directory}; hpccoll profile {directory} explains it", err=True)
    return 0


def is_recording(path: str) -> bool:
    """Whether a path is a directory with the files of a profile."""
    from hpccoll.profile import NAMES_SUFFIX

    return Path(path).is_dir() and any(Path(path).glob(f"rank-*{NAMES_SUFFIX}"))


def _explain(words: tuple[str, ...], output: str | None) -> int:
    """Print the explanation of a recording; return the exit status."""
    from hpccoll.profile import explain_profile, format_screen, read_profile

    if len(words) > 1:
        raise UsageError(f"{' '.join(words[1:])}: a recording takes no arguments; give options before {words[0]}")
    explanation = explain_profile(read_profile(words[0]))
    print_text(format_screen(explanation))
    return 0
