"""`hpccoll estimate`: memory, FLOPs, traffic, overlap and time of training a model on a mesh and a machine.

With --json, the command writes one `EstimateRecord` per mesh; with --search, the meshes that fit come first, fastest
first, and meshes that need too much memory follow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import click
import msgspec

from hpccoll.cli.completion import complete_machines, complete_presets
from hpccoll.cli.estimate_tables import print_estimate, print_search
from hpccoll.cli.machine_options import resolve_machine
from hpccoll.cli.output import STDOUT, is_printing_rank, json_option, list_given_options
from hpccoll.cli.run_record import write_serial_records
from hpccoll.errors import UsageError
from hpccoll.parallel.mesh import ZERO_LEVELS, Mesh, split_strategy_words
from hpccoll.plan import Machine
from hpccoll.records import EstimateRecord
from hpccoll.records.estimates import EstimatedBytes, EstimatedFlops, TrafficEntry
from hpccoll.schedules import get_schedule
from hpccoll.sizing import (
    Estimate,
    MeshSearch,
    Precision,
    TrainingSetup,
    TransformerShape,
    list_presets,
    load_preset,
    make_estimate,
    search_meshes,
)
from hpccoll.sizing.estimate import DEFAULT_EFFICIENCY
from hpccoll.sizing.parameters import count_active_parameters, count_parameters
from hpccoll.sizing.training_setup import DTYPES, OPTIMIZERS, RECOMPUTE, ZERO_STAGES

Command = TypeVar("Command", bound=Callable[..., Any])
MAX_RANKS = 2**20
MACHINE_COSTS = ("nodes", "alpha", "beta", "gamma")  # options of `hpccoll simulate` that this command lacks
# The options that describe a model: the fields of `TransformerShape`, each with its help.
SHAPE_OPTIONS = {
    "layers": "Layers. This and the next options describe a model, or replace values of PRESET.",
    "width": "Features of a token.",
    "heads": "Heads of attention.",
    "kv_heads": "Heads of keys and values; default: as many as heads.",
    "feed_forward": "Features between the matrices of an MLP; default 4 times the width.",
    "vocabulary": "Tokens of the vocabulary; default 50257.",
    "context": "Position embeddings of a model like GPT-2; default 1024.",
    "experts": "Experts per layer; default 1, a dense model.",
    "active_experts": "Experts that a token uses; default 1.",
}


def _add_shape_options(command: Command) -> Command:
    """Return the click command with one more option, such as --layers, for each field in SHAPE_OPTIONS."""
    for name, text in reversed(SHAPE_OPTIONS.items()):
        command = click.option(f"--{name.replace('_', '-')}", type=click.IntRange(1, 2**31 - 1), help=text)(command)
    return command


@click.command(epilog="Example: hpccoll estimate llama-3-8b --mesh dp=8,tp=8 --zero 1 --batch 512 --machine dgx-h100")
@click.argument("preset", required=False, shell_complete=complete_presets)
@click.option("--mesh", metavar="dp=N,tp=N,...", help="Axes dp, tp, pp, cp, ep, as in train; default dp.")
@click.option(
    "--ranks", type=click.IntRange(1, MAX_RANKS), help="Total number of ranks; default: the product of --mesh."
)
@click.option("--search", is_flag=True, help="Rank all meshes of --ranks ranks by the time of a step.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="Meshes that --search prints.")
@click.option("--zero", type=click.IntRange(0, 3), help="ZeRO stage; default 0, with --search the fastest.")
@click.option("--recompute", type=click.Choice(RECOMPUTE), help="Default none, with --search the fastest.")
@click.option("--sequence-parallel", is_flag=True, help="Split norms and dropout over tp; --search always does.")
@click.option("--survive", is_flag=True, help="Copy the state after each step, as train --survive does.")
@click.option("--batch", type=click.IntRange(1), help="Samples per step over all ranks; default one per rank.")
@click.option("--microbatches", type=click.IntRange(1), help="Micro-batches per pipeline; default: one per sample.")
@click.option("--sequence", type=click.IntRange(1), help="Tokens per sample; default the model's context.")
@click.option("--schedule", default="1f1b", show_default=True, help="Pipeline schedule.")
@click.option("-d", "--dtype", type=click.Choice(list(DTYPES)), default="bfloat16", show_default=True)
@click.option("--optimizer", type=click.Choice(list(OPTIMIZERS)), default="adam", show_default=True)
@click.option("--machine", metavar="NAME|FILE.toml", help="Default dgx-h100.", shell_complete=complete_machines)
@click.option(
    "--efficiency",
    type=click.FloatRange(0, 1, min_open=True),
    default=DEFAULT_EFFICIENCY,
    show_default=True,
    help="Fraction of the peak rate at which ranks compute.",
)
@_add_shape_options
@click.option("--like-llama", is_flag=True, help="RMSNorm, gated MLP, no biases, separate output layer.")
@json_option()
def estimate(
    preset: str | None,
    mesh: str | None,
    ranks: int | None,
    search: bool,
    top: int,
    machine: str | None,
    efficiency: float,
    json_file: str | None,
    **options: Any,
) -> None:
    """Estimate the memory, FLOPs, traffic and time of training a transformer on a mesh of ranks and a machine.

    PRESET is a published model: gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt3-175b, llama-2-7b, llama-2-70b,
    llama-3-8b, llama-3-405b or mixtral-8x7b. Without it, --layers, --width and --heads describe a model.
    """
    shape = {name: options.pop(name) for name in SHAPE_OPTIONS}
    model = _make_model(preset, {name: value for name, value in shape.items() if value}, options.pop("like_llama"))
    name = preset if preset is not None and model == load_preset(preset) else "custom"
    sizes = Mesh(dp=ranks or 1) if mesh is None else _parse_mesh(mesh, ranks, options)
    setup = _make_setup(model, sizes, options)
    chosen = resolve_estimated_machine(machine, setup.mesh.ranks)
    if not is_printing_rank():
        return
    if search:
        _run_search(name, setup, chosen, efficiency, top, options, json_file)
        return
    step_estimate = make_estimate(setup, chosen, efficiency)
    write_serial_records(json_file, [make_estimate_record(name, step_estimate)])
    if json_file != STDOUT:
        print_estimate(name, step_estimate)


def resolve_estimated_machine(name: str | None, ranks: int) -> Machine:
    """Return the machine model `name`, the value of --machine; None stands for the default. `ranks` is the job's size.

    Raises UsageError if no machine model or file has the name.
    """
    return resolve_machine([ranks], {"machine": name} | dict.fromkeys(MACHINE_COSTS), []).machine


def _run_search(
    name: str,
    setup: TrainingSetup,
    machine: Machine,
    efficiency: float,
    top: int,
    options: dict[str, Any],
    json_file: str | None,
) -> None:
    """Estimate all meshes of the ranks in `setup`, write one record per mesh, and print the fastest.

    Raises UsageError if the user gave an option whose value the search chooses.

    Args:
        name: the name of the model, for the output.
        setup: the model, batch and ranks; the search replaces its mesh.
        efficiency: the fraction of the peak rate at which ranks compute.
        top: the number of meshes to print.
        options: the options of the command, by parameter; zero and recompute restrict the search unless None.
    """
    unused = list_given_options("mesh", "microbatches", "sequence_parallel")
    if unused:
        raise UsageError(f"--search chooses {' and '.join(unused)} itself; leave out these options, and give --ranks")
    if not list_given_options("ranks"):
        raise UsageError("--search needs the number of ranks; add --ranks, such as --ranks 64")
    zeros = ZERO_STAGES if options["zero"] is None else (options["zero"],)
    recomputes = RECOMPUTE if options["recompute"] is None else (options["recompute"],)
    search: MeshSearch = search_meshes(setup, machine, efficiency, setup.mesh.ranks, zeros, recomputes)
    write_serial_records(json_file, [make_estimate_record(name, each) for each in (*search.fitting, *search.too_large)])
    if json_file != STDOUT:
        print_search(name, setup, machine, search, top)


def _make_model(preset: str | None, shape: dict[str, int], like_llama: bool) -> TransformerShape:
    """Return the shape of the model to estimate; raise UsageError if it is incomplete or contradictory.

    Args:
        preset: the name of a published model, of which `shape` replaces fields; None for a model of `shape` alone.
        shape: the given options of SHAPE_OPTIONS, by field of TransformerShape.
        like_llama: the value of --like-llama.
    """
    if preset is not None:
        model = msgspec.structs.replace(load_preset(preset), **shape)
        model = msgspec.structs.replace(model, like_llama=True) if like_llama else model
    else:
        missing = [f"--{name}" for name in ("layers", "width", "heads") if name not in shape]
        if missing:
            raise UsageError(
                f"no model: name a preset ({', '.join(list_presets())}), or describe a model; "
                f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
            )
        model = msgspec.convert({**shape, "like_llama": like_llama}, TransformerShape)
    model.require_consistent()
    return model


def _parse_mesh(strategy: str, ranks: int | None, options: dict[str, Any]) -> Mesh:
    """Return the mesh that --mesh describes; its words zero1, zero2, zero3 and sp change `options`.

    Args:
        strategy: the value of --mesh, such as `dp=2,tp=4,zero1`.
        ranks: the value of --ranks; None for the product of the axes.
        options: the options of the command, by parameter, of which `zero` and `sequence_parallel` may be set.

    Raises:
        UsageError: the axes do not fit --ranks, or a word contradicts --zero.
    """
    axes, levels, is_sequence_parallel = split_strategy_words(strategy)
    for word in levels:
        if options["zero"] not in (None, ZERO_LEVELS[word]):
            raise UsageError(f"{word} sets --zero {ZERO_LEVELS[word]}, not --zero {options['zero']}; leave one out")
        options["zero"] = ZERO_LEVELS[word]
    options["sequence_parallel"] = options["sequence_parallel"] or is_sequence_parallel
    mesh = Mesh.parse(axes, None if axes.count("=") > axes.count(",") else ranks)
    if ranks is not None and mesh.ranks != ranks:
        raise UsageError(
            f"--mesh {strategy} has {mesh.ranks} ranks, not --ranks {ranks}; give axes whose product is {ranks}, "
            "or leave --ranks out"
        )
    return mesh


def _make_setup(model: TransformerShape, mesh: Mesh, options: dict[str, Any]) -> TrainingSetup:
    """Return the training step to estimate: model, mesh, batch, micro-batches, precision.

    `options` are the values of the command's options, by parameter. Raises UsageError if --sequence exceeds the
    position embeddings of the model.
    """
    batch, sequence = options["batch"] or mesh.ranks, options["sequence"] or model.context
    if sequence > model.context and not model.like_llama:
        raise UsageError(
            f"--sequence {sequence} exceeds the {model.context} position embeddings of the model; "
            f"give --context {sequence}"
        )
    get_schedule(options["schedule"])
    microbatches = options["microbatches"] or max(batch // mesh.samplers, 1)
    settings = {name: options[name] for name in ("sequence_parallel", "schedule", "survive")}
    return TrainingSetup(
        model,
        mesh,
        batch,
        sequence,
        microbatches,
        zero=options["zero"] or 0,
        recompute=options["recompute"] or "none",
        precision=Precision(options["dtype"], options["optimizer"]),
        **settings,
    )


def make_estimate_record(name: str, estimated: Estimate) -> EstimateRecord:
    """Return an estimate as the record that --json writes; `name` is the name of the model."""
    setup, time = estimated.setup, estimated.time
    by_collective: dict[str, float] = defaultdict(float)
    for entry in estimated.traffic:
        by_collective[entry.collective] += entry.sent_bytes
    return EstimateRecord(
        model=name,
        parameters=count_parameters(setup.model).total,
        active_parameters=count_active_parameters(setup.model),
        strategy=str(setup.mesh),
        ranks=setup.mesh.ranks,
        nodes=estimated.machine.count_nodes(setup.mesh.ranks),
        machine=estimated.machine.name,
        **{key: getattr(setup, key) for key in ("batch", "sequence", "microbatches", "zero", "recompute")},
        sequence_parallel=setup.sequence_parallel,
        schedule=setup.schedule,
        dtype=setup.precision.dtype,
        optimizer=setup.precision.optimizer,
        fits=estimated.fits,
        usable_bytes=estimated.usable_bytes,
        bytes=EstimatedBytes(**asdict(estimated.memory), total=estimated.memory.total),
        flops=EstimatedFlops(estimated.flops.forward, estimated.flops.backward, estimated.flops.recomputed),
        communication_bytes=dict(by_collective),
        communication=tuple(
            TrafficEntry(a.strategy, a.collective, a.calls, a.within_bytes, a.between_bytes, a.seconds)
            for a in estimated.traffic
        ),
        overlap={overlap.strategy: overlap.ratio for overlap in estimated.overlaps},
        bubble=time.bubble,
        efficiency=estimated.efficiency,
        compute_s=time.compute_s,
        idle_s=time.idle_s,
        exposed_s=dict(time.exposed_s),
        step_s=time.total_s,
        tokens_per_s=estimated.tokens_per_s,
        mfu=estimated.utilisation,
        limit=time.limit,
    )
