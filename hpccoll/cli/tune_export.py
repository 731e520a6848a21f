"""`hpccoll tune --export`: measures a library's own algorithms, and writes the file by which it selects them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpccoll.atomic_files import write_atomically
from hpccoll.cli.output import is_printing_rank, open_json_lines, print_table, print_text
from hpccoll.cli.run_output import RunOutput
from hpccoll.cli.run_record import make_run_record
from hpccoll.errors import UsageError
from hpccoll.library_rules import LibraryRules, SizeSamples, choose_rules, mpich, nccl, open_mpi
from hpccoll.plan import Operation
from hpccoll.processes import joint_failure
from hpccoll.units import format_size

if TYPE_CHECKING:
    from hpccoll.arrays import ArrayModule
    from hpccoll.measure.library_tuning import LibraryTuning
    from hpccoll.records import CollectiveRecord

NCCL = "nccl"


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The library whose algorithms are measured, the measurement, and the file of rules to write."""

    library: str  # a key of _LIBRARIES
    output: str  # the file of rules
    operations: tuple[Operation, ...]
    sizes: tuple[int, ...]  # message sizes in bytes
    dtype: str
    budget_s: float  # of all cases together
    seed: int
    json_file: str | None
    multithreaded: bool


def list_operations(library: str, named: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return the operations to measure: `named` or, if it is empty, all for which `library`'s files can have rules.

    Raises UsageError for a named operation for which the library's files cannot have rules.
    """
    known = _LIBRARIES[library].operations
    for operation in named:
        if operation not in known:
            valid = " ".join(other.value for other in known)
            raise UsageError(f"--export {library} has no rules for {operation.value}; name some of {valid}")
    return tuple(named) or known


def export_rules(options: ExportOptions) -> int:
    """Measure the algorithms of MPI or NCCL and write the file by which the library selects them; return 0.

    Collective over all ranks.
    """
    from hpccoll.runtime import job

    job.load_mpi(multithreaded=options.multithreaded or options.library == NCCL)
    world = job.get_world().Dup()
    if world.size < 2:
        raise UsageError("tuning takes two ranks or more; start it as your jobs run: mpirun -n 4 hpccoll tune --export")
    layout = job.detect_layout(world)
    tuning, run = _make_tuning(options, world), make_run_record(world)
    cases = tuning.count_cases()
    with ExitStack() as stack:
        output = joint_failure.run_on_first_rank(world, lambda: _ExportOutput(options, stack, run, cases))
        measured = list(tuning.run(output.note if output else lambda _: None))
    rules = LibraryRules(_describe_origin(options, world, layout), layout.ranks, layout.nodes, choose_rules(measured))
    joint_failure.run_on_first_rank(world, lambda: _finish(options, rules, measured))
    return 0


def _make_tuning(options: ExportOptions, world: Any) -> LibraryTuning:
    """Return the measurement of the library's algorithms, ready to run. Collective over the communicator `world`."""
    from hpccoll.arrays import get_dtype
    from hpccoll.measure.interleaved import TimingOptions
    from hpccoll.measure.library_tuning import LibraryTuning
    from hpccoll.measure.stopping import StoppingRule
    from hpccoll.measure.tuning import FEWEST, MOST, TIGHT
    from hpccoll.peers.forced_algorithms import open_library

    library, dtype = open_library(options.library, world), get_dtype(options.dtype)
    method = TimingOptions(StoppingRule(FEWEST, MOST, TIGHT, 1.0), warmup=2, check=True, seed=options.seed)
    module = _make_module(library.buffer, world)
    values = (options.operations, options.sizes, dtype, module, method, options.budget_s)
    return LibraryTuning(world, library, *values)


def _make_module(buffer: str, world: Any) -> ArrayModule:
    """Return the array module (NumPy, CuPy, ...) for buffers of the kind `buffer`, `host` or `cuda`.

    The ranks of a node take its GPUs in turn.
    """
    from hpccoll.arrays import NUMPY, get_array_module
    from hpccoll.runtime import job

    if buffer == "host":
        return NUMPY
    layout = job.detect_layout(world)
    return get_array_module(buffer, layout.node[: world.rank].count(layout.node[world.rank]))


def _describe_origin(options: ExportOptions, world: Any, layout: Any) -> tuple[str, ...]:
    """Return sentences for the head of a file of rules: command, date, library, ranks; equal on every rank. Collective.

    `layout` is the distribution of ranks over nodes.
    """
    from hpccoll.runtime import job
    from hpccoll.selection.tuning_files import describe_site

    site = describe_site(job.get_mpi_library(), layout.ranks_per_node, oversubscribed=layout.oversubscribed)
    command = shlex.join(["hpccoll", *sys.argv[1:]])
    threads = "multiple" if options.multithreaded else "funneled"
    lines = (
        f"Written by `{command}` on {datetime.now(UTC).date().isoformat()}.",
        f"Measured: {site.description}, thread level {threads}.",
    )
    shared: tuple[str, ...] = world.bcast(lines)
    return shared


class _ExportOutput(RunOutput):
    """The output on rank 0 while a library's algorithms are measured: writes their records, and shows progress.

    Args:
        run: the record of kind `run`.
        cases: the number of measurements to come.
    """

    def __init__(self, options: ExportOptions, stack: ExitStack, run: dict[str, Any], cases: int) -> None:
        from hpccoll.measure.results.output_file import require_writable

        require_writable(options.output, "--output")
        super().__init__(stack, run, open_json_lines(options.json_file), options.json_file)
        self.show_progress(stack, "algorithms", cases)

    def note(self, record: CollectiveRecord) -> None:
        """Write the record of a measured algorithm, and advance the progress bar."""
        self.write(record, f"{record.op} {format_size(record.nbytes)}")


def _finish(options: ExportOptions, rules: LibraryRules, measured: Sequence[SizeSamples]) -> None:
    """Write the files of `rules`; print the chosen algorithms, and the environment variables for reading the files.

    Call this function on rank 0 only.
    """
    from hpccoll.measure.results.output_file import explain_write_errors

    if is_printing_rank():
        _print_choices(measured)
    if not rules.rules:
        click.echo("no algorithm is proven faster than the library's default; no file is written")
        return
    library = _LIBRARIES[options.library]
    path = Path(options.output)
    for written, text in library.make_files(rules, path).items():
        with explain_write_errors(written, "--output"):
            write_atomically(written, text)
        click.echo(f"wrote {written}")
    click.echo("to use the rules, set the variables:")
    for name, value in library.list_variables(path, rules).items():
        print_text(f"export {name}={shlex.quote(value)}")
    if library.note(path):
        print_text(library.note(path))


def _make_open_mpi_files(rules: LibraryRules, path: Path) -> dict[Path, str]:
    """Return a dict from paths to texts of Open MPI's files of rules: `path` and, if needed, a file of component `han`.

    The file `path` is JSON if its suffix is .json.
    """
    text = open_mpi.format_rules_json(rules) if path.suffix == ".json" else open_mpi.format_rules_file(rules)
    han = open_mpi.format_han_file(rules)
    return {path: text} | ({open_mpi.name_han_file(path): han} if han else {})


def _list_open_mpi_variables(path: Path, rules: LibraryRules) -> dict[str, str]:
    """Return the environment variables, by name, with which Open MPI reads the files of `rules`."""
    return open_mpi.list_variables(path, has_han_file=bool(open_mpi.format_han_file(rules)))


def _note_open_mpi(path: Path) -> str:
    """Return a note on the releases of Open MPI that read the file `path`; an empty string if all releases do."""
    return "# only Open MPI 6.0 and later read JSON; for 5.0, name a file without .json" * (path.suffix == ".json")


def _make_mpich_files(rules: LibraryRules, path: Path) -> dict[Path, str]:
    """Return the texts of MPICH's two tuning files, by path: the library's built-in decisions with `rules` added.

    The file `path` selects algorithms; FILE.ch4.json beside it selects compositions of algorithms.
    """
    from hpccoll.peers.forced_algorithms import find_mpi_library_file

    trees = mpich.add_rules(mpich.read_default_trees(find_mpi_library_file()), rules)
    beside = mpich.name_compositions_file(path)
    return {path: mpich.format_tree(trees.algorithms), beside: mpich.format_tree(trees.compositions)}


def _make_nccl_files(rules: LibraryRules, path: Path) -> dict[Path, str]:
    """Return a dict from `path` to the text of a CSV file for NCCL's example tuner plugin."""
    return {path: nccl.format_tuner_csv(rules)}


@dataclass(frozen=True, slots=True)
class _RulesLibrary:
    """How to write the files by which a library selects algorithms.

    Args:
        operations: the operations for which the files can have rules.
        make_files: returns the texts of all files, by path, for rules and the path of the main file.
        list_variables: returns the environment variables with which the library reads the files.
        note: returns a note on the file for the user, or an empty string.
    """

    operations: tuple[Operation, ...]
    make_files: Callable[[LibraryRules, Path], dict[Path, str]]
    list_variables: Callable[[Path, LibraryRules], dict[str, str]]
    note: Callable[[Path], str] = lambda _: ""


_LIBRARIES = {
    "openmpi": _RulesLibrary(
        tuple(open_mpi.COLLECTIVES), _make_open_mpi_files, _list_open_mpi_variables, _note_open_mpi
    ),
    "mpich": _RulesLibrary(tuple(mpich.ALGORITHMS), _make_mpich_files, lambda path, _: mpich.list_variables(path)),
    NCCL: _RulesLibrary(tuple(nccl.COLLECTIVES), _make_nccl_files, lambda path, _: nccl.list_variables(path)),
}


def _print_choices(measured: Sequence[SizeSamples]) -> None:
    """Print a table: the algorithm chosen for each operation and size, and its speed-up over the library's default."""
    from hpccoll.library_rules import DEFAULT
    from hpccoll.statistics import median_interval

    rows = []
    for sample in measured:
        default_us = median_interval(sample.samples[DEFAULT]).value
        speedup = f"{sample.speedup:.2f}x" if sample.chosen != DEFAULT else "-"
        size = format_size(sample.nbytes) if sample.nbytes else "-"
        rows.append([sample.operation.value, size, f"{default_us:.2f}", sample.chosen.label, speedup])
    columns = ("operation", "size", "default us", "choice", "speed-up")
    print_table("algorithms that are proven faster than the default", columns, rows, ("size", "default us", "speed-up"))
