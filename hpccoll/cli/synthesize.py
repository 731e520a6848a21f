"""`hpccoll synthesize`: the optimal plan of a collective on a network, proven and written as a plan file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpccoll.atomic_files import write_atomically
from hpccoll.cli.completion import complete_operations
from hpccoll.cli.network_options import NETWORK_KINDS, is_machine_model, load_network
from hpccoll.cli.output import is_printing_rank, print_text
from hpccoll.errors import UsageError
from hpccoll.measure.results.output_file import explain_write_errors, require_writable
from hpccoll.plan import Operation, check
from hpccoll.synthesis.forest_plan import DEFAULT_PIECES
from hpccoll.units import GB, format_count

if TYPE_CHECKING:
    from hpccoll.plan import Plan
    from hpccoll.synthesis import Network
    from hpccoll.synthesis.forest import Forest


@click.command(epilog="Example: hpccoll synthesize all_gather --machine dgx-h100 --ranks 16 -o plan.json")
@click.argument("op", metavar="OP", shell_complete=complete_operations)
@click.option("--machine", required=True, metavar=NETWORK_KINDS, help="The network.")
@click.option("-o", "--output", metavar="FILE.json", help="The plan file. Without it, only the bound is printed.")
@click.option("--ranks", type=click.IntRange(2), help="Number of ranks [default: as many as the network has].")
@click.option("--nodes", type=click.IntRange(1), help="Number of nodes of a machine model or of NCCL's topology.")
@click.option(
    "-r", "--root", type=click.IntRange(0), default=0, show_default=True, help="Root of a broadcast or reduce."
)
@click.option("--trees", type=click.IntRange(1), help="Trees per source [default: as many as the optimum needs].")
@click.option(
    "--chunks",
    type=click.IntRange(1),
    default=DEFAULT_PIECES,
    show_default=True,
    help="Pieces into which the data of a tree is cut.",
)
def synthesize(
    op: str,
    machine: str,
    output: str | None,
    ranks: int | None,
    nodes: int | None,
    root: int,
    trees: int | None,
    chunks: int,
) -> None:
    """Print a lower bound of a collective's time on a network, and write a proven plan along optimal trees.

    OP is all_gather, reduce_scatter, broadcast, reduce or all_reduce. The network of --machine is a machine model
    (built in, or FILE.toml), a network file with ranks and links (FILE.toml), a topology file of NCCL or RCCL
    (FILE.xml), or the output of hpccoll preflight --json (FILE.jsonl).

    The commands verify, draw, simulate and export take the name of the plan file; bench takes --algorithm FILE.json.
    """
    operation = Operation.from_name(op)
    network = load_network(machine, ranks, nodes)
    if nodes is not None and not (machine.endswith(".xml") or is_machine_model(machine)):
        raise UsageError(f"--machine {machine} states its nodes; leave --nodes out")
    if root >= network.ranks:
        raise UsageError(f"--root {root} is not a rank of 0..{network.ranks - 1}")
    if output is not None and not output.endswith(".json"):
        raise UsageError(f"-o {output}: plans are written as JSON; end the name in .json")
    if not is_printing_rank():
        return
    print_text(_describe_optimum(network, operation, root))
    if output is not None:
        require_writable(output, "-o")
        _write_plan(network, operation, root, trees, chunks, output)


def _describe_optimum(network: Network, operation: Operation, root: int) -> str:
    """Return a sentence: the least time per byte of an operation on a network, and the links that determine it."""
    from hpccoll.synthesis import compute_optimum

    optimum = compute_optimum(network, operation, root)
    rate = float(1 / optimum.seconds_per_byte) / GB
    known = "optimum" if optimum.is_reached else "largest known lower bound"
    return (
        f"{network.name}, {format_count(network.ranks, 'rank')}: {known} of {operation.value}: "
        f"{float(optimum.seconds_per_byte) * GB * 1e3:.4g} ms per GB (algbw {rate:.4g} GB/s), set by {optimum.binding}"
    )


def _write_plan(network: Network, operation: Operation, root: int, trees: int | None, pieces: int, output: str) -> None:
    """Compute, prove and write a plan along optimal trees; print its trees and how near it comes to the optimum.

    Args:
        trees: the number of trees per source rank; None for as many as the optimum needs.
        pieces: the number of chunks into which the data of each tree is cut.
        output: the plan's JSON file.
    """
    from hpccoll.plan.interchange.json_plans import to_json
    from hpccoll.synthesis.forest_plan import synthesize as make_plan

    plan, forests = make_plan(network, operation, root=root, trees=trees, pieces=pieces)
    proof = check(plan)
    with explain_write_errors(output, "-o"):
        write_atomically(output, to_json(plan))
    counts = f"{proof.cost.steps} steps, {format_count(proof.messages, 'message')}"
    print_text(f"{output}: {plan.name} on {format_count(plan.ranks, 'rank')}, proven ({counts})")
    print_text(_describe_forests(network, plan, forests, root))


def _describe_forests(network: Network, plan: Plan, forests: list[Forest], root: int) -> str:
    """Return a sentence: number and height of the trees, and the share of the optimum that the busiest link allows.

    `forests` has the trees of each phase of `plan`; an all_reduce has two phases, any other operation has one.
    """
    from hpccoll.synthesis import compute_optimum
    from hpccoll.synthesis.optimum import ROOTED

    sources = 1 if plan.operation in ROOTED else network.ranks
    seconds = sum(max(forest.measure_loads().values()) for forest in forests) / sources
    optimum = compute_optimum(network, plan.operation, root)
    trees = " and ".join(
        f"{format_count(forest.units, 'tree')} of height {forest.height} per source" for forest in forests
    )
    share = float(optimum.seconds_per_byte / seconds)
    kind = "the optimum" if optimum.is_reached else "the bound"
    return f"{trees}; the busiest link needs {float(seconds) * GB * 1e3:.4g} ms per GB: {share:.2%} of {kind}"
