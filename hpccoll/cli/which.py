"""`hpccoll which`: the algorithm that `algorithm="auto"` runs for a message size, and why; no benchmark, no MPI job."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from hpccoll.cli.completion import complete_operations
from hpccoll.cli.network_options import NETWORK_KINDS, is_machine_model, load_network
from hpccoll.cli.output import STDOUT, is_printing_rank, json_option, print_text
from hpccoll.cli.run_record import write_serial_records
from hpccoll.errors import UnavailableError, UsageError
from hpccoll.plan import Operation
from hpccoll.records import SelectionRecord
from hpccoll.selection import BufferKind, Selector
from hpccoll.selection.selector import Selection, SelectionKey, round_message_size
from hpccoll.selection.tuning_files import describe_site, find_table_path, load_tuning_table
from hpccoll.units import format_count, format_size, parse_size

if TYPE_CHECKING:
    from hpccoll.selection.tuning_table import TuningTable

MAX_RANKS = 2**17
LIBRARY_NAME = "the MPI library's own collective"
# Maps each source of a selection to the phrase that `hpccoll which` prints about it.
SOURCES = {
    "table": "times that hpccoll tune measured here",
    "links": "rates of links that hpccoll preflight --save or hpccoll tune measured",
    "rules": "the fixed rules of hpccoll, which rest on measurements of its developers on other machines",
    "model": "the cost model: the smallest sum of latency and transfer times",
}


@dataclass(frozen=True, slots=True)
class _Call:
    """The collective call for which an algorithm is selected; `nbytes` is its message size in bytes."""

    operation: Operation
    nbytes: int
    ranks: int
    nodes: int
    dtype: str
    redop: str
    buffer: BufferKind
    machine: str | None  # the network of --machine


@click.command(epilog="Example: hpccoll which all_gather 1M --ranks 4")
@click.argument("op", metavar="OP", shell_complete=complete_operations)
@click.argument("size", metavar="SIZE", required=False)
@click.option("--ranks", type=click.IntRange(1, MAX_RANKS), help="Number of ranks; default: the cores of this host.")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes that share the ranks.")
@click.option("-d", "--dtype", default="float32", show_default=True, help="Element type.")
@click.option("-o", "--redop", default="sum", show_default=True, help="Reduction.")
@click.option(
    "--buffer", type=click.Choice([kind.value for kind in BufferKind]), default="host", show_default=True,
    help="Kind of memory.",
)  # fmt: skip
@click.option("--machine", metavar=NETWORK_KINDS, help="A network: print its optimum, too.")
@json_option()
def which(
    op: str,
    size: str | None,
    ranks: int | None,
    nodes: int,
    dtype: str,
    redop: str,
    buffer: str,
    machine: str | None,
    json_file: str | None,
) -> None:
    """Print the algorithm that `auto` runs for an operation and message size, and why; nothing is measured.

    SIZE is the message size as in `hpccoll bench`: 8, 64K, 1.5M. Where there is a block per rank, as in all_gather,
    SIZE counts all blocks together. With --machine, the optimum of the operation on a network is printed, and for a
    machine model the share of the optimum that the algorithm reaches in simulation.
    """
    count = ranks or os.cpu_count() or 1
    if count % nodes:
        raise UsageError(f"--ranks {count} cannot be divided by --nodes {nodes}; give a multiple of it")
    operation = Operation.from_name(op)
    if size is None and operation is not Operation.BARRIER:
        raise UsageError(f"which {op}: the algorithm depends on the message size; add one, such as 64K")
    call = _Call(operation, parse_size(size or "0"), count, nodes, dtype, redop, BufferKind(buffer), machine)
    if not is_printing_rank():
        return
    selection, refusal, place = _select(call)
    optimum = "" if machine is None else _describe_optimum(call, selection, machine)
    write_serial_records(json_file, [_make_record(call, selection)])
    if json_file != STDOUT:
        print_text(_format_selection(call, selection, refusal, place, optimum))


def _select(call: _Call) -> tuple[Selection, str, str]:
    """Return the algorithm that `auto` selects for a call, and two strings.

    Returns:
        The selection; why the MPI library's collective cannot run the call, "" if it can; and the path of the tuning
        table, or why there is none.
    """
    table, place = _find_table(call.ranks, call.nodes)
    itemsize, refusal = _inspect_reduction(call)
    shared = call.buffer is not BufferKind.CUDA
    size = round_message_size(call.nbytes)
    key = SelectionKey(call.operation, size, itemsize, call.buffer, not refusal, shared)
    return Selector(call.ranks, call.nodes, table).select(key), refusal, place


def _find_table(ranks: int, nodes: int) -> tuple[TuningTable | None, str]:
    """Return the tuning table, and its path, for a job of `ranks` ranks on `nodes` nodes that are like this host.

    If there is no tuning table, the result is None and the reason why there is none.
    """
    from hpccoll.runtime import job

    try:
        library = job.get_mpi_library()
    except UnavailableError:
        return None, "no table can be found without mpi4py"
    per_node = [ranks // nodes] * nodes
    site = describe_site(library, per_node, oversubscribed=per_node[0] > (os.cpu_count() or 1))
    path = find_table_path(site)
    if path is None:
        return None, "HPCCOLL_TUNING is off"
    table = load_tuning_table(site, whole_job=True)
    return table, f"{path}" if table else f"there is none; mpirun -n {ranks} hpccoll tune makes it"


def _inspect_reduction(call: _Call) -> tuple[int, str]:
    """Return the size of an element in bytes, and why the MPI library's collective cannot run the call, "" if it can.

    Raises:
        ReductionError, UnknownNameError: the dtype or the reduction does not exist, or they do not go together.
    """
    from hpccoll.arrays import Reduction, get_dtype

    dtype, reduction = get_dtype(call.dtype), Reduction.parse(call.redop)
    if call.operation.reduces:
        reduction.require(dtype)
    try:
        from hpccoll.runtime import job

        job.get_mpi_library()
    except UnavailableError:
        return dtype.itemsize, "mpi4py is not installed"
    from hpccoll.runtime.messages.mpi_calls import explain_refusal

    return dtype.itemsize, explain_refusal(call.operation, dtype, reduction)


def _make_record(call: _Call, selection: Selection) -> SelectionRecord:
    """Return the record of a call and the algorithm that is selected for it."""
    return SelectionRecord(
        op=call.operation.value,
        nbytes=call.nbytes,
        ranks=call.ranks,
        nodes=call.nodes,
        dtype=call.dtype,
        redop=call.redop if call.operation.reduces else None,
        buffer=call.buffer.value,
        algorithm=selection.name,
        chunks=selection.chunks,
        source=selection.source,
        why=selection.why,
    )


def _describe_optimum(call: _Call, selection: Selection, name: str) -> str:
    """Return a sentence: the least time of the call on the network or machine model `name`.

    For a machine model, the sentence also states the simulated time of the selected algorithm.
    """
    from hpccoll.predict.forecast import can_run_on, forecast
    from hpccoll.predict.machine_catalogue import load_machine
    from hpccoll.synthesis import compute_optimum

    operation, nbytes, ranks = call.operation, call.nbytes, call.ranks
    network = load_network(name, ranks, call.nodes)
    optimum, algorithm = compute_optimum(network, operation), selection.algorithm
    least = f"at least {optimum.compute_seconds(nbytes) * 1e6:.4g} us"
    if is_machine_model(name) and algorithm is not None and nbytes:
        machine = load_machine(name).with_ranks_per_node(ranks // call.nodes)
        if can_run_on(algorithm, ranks, machine):
            seconds = forecast(algorithm, ranks, machine, nbytes, chunks=selection.chunks).seconds
            return f"{least}; {algorithm.name} takes {seconds * 1e6:.4g} us there in simulation: " + (
                optimum.describe_share(seconds, nbytes)
            )
    return f"{least} on {network.name}, set by {optimum.binding}"


def _format_selection(call: _Call, selection: Selection, refusal: str, place: str, optimum: str) -> str:
    """Return the output as lines of text: the call and its algorithm, the reason, and a command that measures it.

    Args:
        refusal: why the MPI library cannot run the call, or "".
        place: the path of the tuning table, or why there is none.
        optimum: the sentence of `_describe_optimum`, or "".
    """
    operation, ranks = call.operation, call.ranks
    what = [operation.value, "" if operation is Operation.BARRIER else f"of {format_size(call.nbytes)}"]
    what += [f"{call.dtype} {call.redop}" if operation.reduces else ""]
    name = f" ({LIBRARY_NAME})" if selection.algorithm is None else ""
    chunks = f", in {selection.chunks} chunks" if selection.chunks > 1 else ""
    lines = [
        f"{' '.join(filter(None, what))} on {format_count(ranks, 'rank')}, {format_count(call.nodes, 'node')}, "
        f"{call.buffer.value} memory: {selection.name}{name}{chunks}",
        f"why     {SOURCES[selection.source]}{f': {selection.why}' if selection.source == 'table' else ''}",
        f"table   {place}",
    ]
    if optimum:
        lines.append(f"optimum {optimum}")
    if refusal:
        lines.append(f"not mpi {refusal}")
    return "\n".join([*lines, f"next    {_format_bench(call)}"])


def _format_bench(call: _Call) -> str:
    """Return a command that measures a call; on several nodes, with a note on the layout of the job."""
    words = ["mpirun", "-n", str(call.ranks), "hpccoll", "bench", call.operation.value]
    if call.operation is not Operation.BARRIER:
        words += ["-b", str(call.nbytes), "-e", str(call.nbytes)]
        words += ["-d", call.dtype] if call.dtype != "float32" else []
        words += ["-o", call.redop] if call.operation.reduces and call.redop != "sum" else []
        words += ["--buffer", call.buffer.value] if call.buffer is not BufferKind.HOST else []
    words += ["--machine", call.machine] if call.machine is not None else []
    note = f", in a job of {format_count(call.nodes, 'node')}" if call.nodes > 1 else ""
    return shlex.join(words) + note
