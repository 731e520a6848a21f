"""`hpccoll profile`: record a program's communication, or explain a recording."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from hpccoll.cli.output import STDOUT, is_printing_rank, json_option, print_table, print_text
from hpccoll.errors import UsageError

if TYPE_CHECKING:
    from hpccoll.profile import RecordingOptions
    from hpccoll.profile.what_if import Prediction

DIRECTORY: Final = "job.hpccoll"
# Variables in which launchers count the restarts of a job: torchrun's --max-restarts, and SLURM's requeued jobs.
RESTART_VARIABLES: Final = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


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
@click.option("--from", "from_s", type=float, default=0.0, metavar="SECONDS", help="Start recording after SECONDS.")
@click.option("--to", "to_s", type=float, metavar="SECONDS", help="Stop recording after SECONDS.")
@click.option(
    "--every", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Record one of every N seconds."
)
@click.option(
    "--export", "exports", multiple=True, metavar="FILE",
    help="With RECORDING: write the calls as .json (Perfetto), .csv, .goal (LogGOPSim) or .et (Chakra).",
)  # fmt: skip
@click.option(
    "--what-if", "changes", multiple=True, metavar="CHANGE",
    help="With RECORDING: predict the run time with a change, such as bandwidth=2; without CHANGE, with six changes.",
)  # fmt: skip
@click.option(
    "--apply", "script", metavar="FILE.sh",
    help="With RECORDING: write the predicted fastest algorithms as a script to source before --drop-in.",
)  # fmt: skip
@click.option(
    "--json", "json_file", metavar="FILE",
    help="With RECORDING: write the explanation and predictions as JSON records, one per line; - for standard output.",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the recording, or the file of --json, if it exists.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENT]... | RECORDING")
def profile(
    output: str | None,
    is_module: bool,
    drop_in: bool,
    from_s: float,
    to_s: float | None,
    every: int,
    exports: tuple[str, ...],
    changes: tuple[str, ...],
    script: str | None,
    json_file: str | None,
    overwrite: bool,
    words: tuple[str, ...],
) -> int:
    """Record the communication of an unmodified program, or explain a recording.

    SCRIPT is a Python program that communicates by mpi4py, torch.distributed or hpccoll. The recording changes neither
    the program's results nor the algorithms of its collectives.

    RECORDING is a directory that `hpccoll profile -o` wrote, a GOAL schedule (NAME.goal), Chakra execution traces
    (NAME.et for NAME.0.et, ...), or a trace of liballprof. The command prints how efficient the job was, and what costs
    the most time. Put its options after RECORDING: `hpccoll profile job.hpccoll --what-if balance`.
    """
    from hpccoll.profile import RecordingOptions, is_readable

    given = _list_words({"--export": exports, "--what-if": changes, "--apply": [script], "--json": [json_file]})
    if is_readable(words[0]) and not is_module:
        more = [*words[1:], *_list_words({"-o": [output]}), *given, *["--overwrite"] * overwrite]
        return _explain(words[0], more) if is_printing_rank() else 0
    directory = output or DIRECTORY
    if given:
        remedy = f"hpccoll profile -o {directory} {words[0]}, then hpccoll profile {directory} {given[0]} ..."
        raise UsageError(f"{words[0]} is no recording, and {given[0]} explains one; record the program by {remedy}")
    if to_s is not None and to_s <= from_s:
        raise UsageError(f"--from {from_s:g} --to {to_s:g} records nothing; give --to a later time")
    if Path(directory).is_file():
        raise UsageError(f"-o {directory}: is a file; name a directory for the recording")
    _require_no_recording(directory, overwrite=overwrite)
    return _record(words, RecordingOptions(directory, from_s, to_s, every), is_module=is_module, drop_in=drop_in)


def _require_no_recording(directory: str, *, overwrite: bool) -> None:
    """Raise UsageError if `directory` has a recording, unless `overwrite` is set or a launcher restarts the job.

    All ranks look before they connect, and the recorder writes files after all ranks have connected, so that no rank
    takes a file of its own job for an earlier one.
    """
    from hpccoll.profile import is_readable

    replaces = overwrite or any(os.environ.get(name, "0") != "0" for name in RESTART_VARIABLES)
    if not replaces and Path(directory).is_dir() and is_readable(directory):
        raise UsageError(
            f"-o {directory}: has a recording; add --overwrite before the script to replace it, or name another "
            "directory by -o"
        )


def _list_words(options: Mapping[str, Sequence[str | None]]) -> list[str]:
    """Return command-line words, such as `["--export", "a.csv"]`, for options that may be given several times.

    `options` maps the name of each option to its values; None stands for no value.
    """
    return [word for name, values in options.items() for value in values if value is not None for word in (name, value)]


def _explain(recording: str, words: Sequence[str]) -> int:
    """Explain the recording at the path `recording`; return the exit status. `words` are options such as `--json -`."""
    status: int = explain.main(words, f"hpccoll profile {recording}", standalone_mode=False, obj=recording)
    return status


def _record(words: Sequence[str], options: RecordingOptions, *, is_module: bool, drop_in: bool) -> int:
    """Run a Python program in this process and record its communication; return the exit status.

    Args:
        words: the script, or the module if `is_module` is set, and its arguments.
        options: where and when to record.
        drop_in: whether the collectives of an mpi4py program run over hpccoll.
    """
    from hpccoll.profile import run_program

    rank = run_program(list(words), is_module=is_module, uses_drop_in=drop_in, options=options)
    if rank is None:
        raise UsageError(f"{words[0]}: has not used mpi4py, torch.distributed or hpccoll, so nothing was recorded")
    if rank == 0:
        click.echo(f"# recorded in {options.directory}; hpccoll profile {options.directory} explains it", err=True)
    return 0


@click.command()
@click.option("-o", "--output", metavar="FILE.html", help="Write the page there.")
@click.option(
    "--export", "exports", multiple=True, metavar="FILE", help="Write the calls as .json, .csv, .goal or .et."
)
@click.option(
    "--what-if", "changes", multiple=True, is_flag=False, flag_value="default", metavar="CHANGE",
    help="Predict the run time with a change, such as bandwidth=2; without CHANGE, with six changes.",
)  # fmt: skip
@click.option("--apply", "script", metavar="FILE.sh", help="Write the predicted fastest algorithms.")
@json_option()
def explain(
    output: str | None, exports: tuple[str, ...], changes: tuple[str, ...], script: str | None, json_file: str | None
) -> int:
    """Print how efficient a recorded job was, what cost the most time, and predictions; write the asked-for files.

    The recording's path is the `obj` of click's context.
    """
    from hpccoll.atomic_files import write_atomically
    from hpccoll.cli.run_record import write_serial_records
    from hpccoll.measure.results.output_file import explain_write_errors
    from hpccoll.profile import explain_profile, format_screen, read_recording
    from hpccoll.profile.explanation_records import make_records
    from hpccoll.profile.exports import export_profile
    from hpccoll.profile.what_if import DEFAULT_CHANGES, WhatIf, format_configuration

    explanation = explain_profile(read_recording(click.get_current_context().obj))
    what_if = WhatIf(explanation.graph) if changes or script else None
    wanted = [named for change in changes for named in (DEFAULT_CHANGES if change == "default" else (change,))]
    predictions = what_if.predict(wanted) if what_if else []
    if json_file != STDOUT:
        print_text(format_screen(explanation))
        _print_predictions(predictions)
    write_serial_records(json_file, make_records(explanation, predictions))
    if output is not None:
        from hpccoll.profile.page import render_profile_page

        with explain_write_errors(output, "-o"):
            write_atomically(output, render_profile_page(explanation, predictions))
    for file in exports:
        with explain_write_errors(file, "--export"):
            export_profile(explanation.graph, file)
    if what_if is not None and script is not None:
        with explain_write_errors(script, "--apply"):
            write_atomically(script, format_configuration(what_if.choose_algorithms()))
    return 0


def _print_predictions(predictions: list[Prediction]) -> None:
    """Print a table of predicted run times with one row per change of --what-if, and the assumptions of each.

    Prints nothing if `predictions` is empty.
    """
    if not predictions:
        return
    headings = ("what if", "time", "saving", "replay error")
    rows = [
        (prediction.description, *prediction.format_values(), f"{prediction.error:.1%}") for prediction in predictions
    ]
    print_text("")
    print_table("the recorded run with one change", headings, rows, headings[1:])
    for prediction in predictions:
        if prediction.assumption:
            print_text(f"# {prediction.description}: {prediction.assumption}")
