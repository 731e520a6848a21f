"""`hpccoll estimate`: memory, FLOPs, traffic, overlap and time of training a model on a mesh and a machine.

With --json, the command writes one `EstimateRecord` per mesh; with --search, the meshes that fit into memory come
first, in order of time, and meshes that need too much memory follow.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from typing import Any

import click
import msgspec

from hpccoll.cli.completion import complete_machines, complete_presets
from hpccoll.cli.estimate_tables import print_estimate, print_search
from hpccoll.cli.machine_options import choose_machine
from hpccoll.cli.options import argument, option, option_group, take_options
from hpccoll.cli.output import STDOUT, is_printing_rank, json_field, list_given_options
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
from hpccoll.sizing.training_setup import DTYPES, OPTIMIZERS, RECOMPUTE, ZERO_STAGES, Recompute

MAX_RANKS = 2**20


def _count(name: str, text: str) -> Any:
    """Return a dataclass field that declares the option `name` for a positive integer, with the help `text`."""
    return option(name, type=click.IntRange(1, 2**31 - 1), help=text)


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The options that describe a model, as fields of `TransformerShape`; None, or False, for options not given."""

    layers: int | None = _count(
        "--layers", "Layers. This and the next options describe a model, or replace values of PRESET."
    )
    width: int | None = _count("--width", "Features of a token.")
    heads: int | None = _count("--heads", "Heads of attention.")
    kv_heads: int | None = _count("--kv-heads", "Heads of keys and values; default: as many as heads.")
    feed_forward: int | None = _count(
        "--feed-forward", "Features between the matrices of an MLP; default 4 times the width."
    )
    vocabulary: int | None = _count("--vocabulary", "Tokens of the vocabulary; default 50257.")
    context: int | None = _count("--context", "Position embeddings of a model like GPT-2; default 1024.")
    experts: int | None = _count("--experts", "Experts per layer; default 1, a dense model.")
    active_experts: int | None = _count("--active-experts", "Experts that a token uses; default 1.")
    like_llama: bool = option(
        "--like-llama", is_flag=True, help="RMSNorm, gated MLP, no biases, separate output layer."
    )


@dataclass(frozen=True, slots=True)
class EstimateOptions:
    """Argument and options of `hpccoll estimate`, which this class declares for click and whose values it holds."""

    preset: str | None = argument(required=False, shell_complete=complete_presets)
    mesh: str | None = option(
        "--mesh", metavar="dp=N,tp=N,...", help="Axes dp, tp, pp, cp, ep, as in train; default dp."
    )
    ranks: int | None = option(
        "--ranks", type=click.IntRange(1, MAX_RANKS), help="Total number of ranks; default: the product of --mesh."
    )
    search: bool = option("--search", is_flag=True, help="Rank all meshes of --ranks ranks by the time of a step.")
    top: int = option(
        "--top", type=click.IntRange(1), default=10, show_default=True, help="Meshes that --search prints."
    )
    zero: int | None = option(
        "--zero", type=click.IntRange(0, 3), help="ZeRO stage; default 0, with --search the fastest."
    )
    recompute: Recompute | None = option(
        "--recompute", type=click.Choice(RECOMPUTE), help="Default none, with --search the fastest."
    )
    sequence_parallel: bool = option(
        "--sequence-parallel", is_flag=True, help="Split norms and dropout over tp; --search always does."
    )
    survive: bool = option("--survive", is_flag=True, help="Copy the state after each step, as train --survive does.")
    batch: int | None = option(
        "--batch", type=click.IntRange(1), help="Samples per step over all ranks; default one per rank."
    )
    microbatches: int | None = option(
        "--microbatches", type=click.IntRange(1), help="Micro-batches per pipeline; default: one per sample."
    )
    sequence: int | None = option(
        "--sequence", type=click.IntRange(1), help="Tokens per sample; default the model's context."
    )
    schedule: str = option("--schedule", default="1f1b", show_default=True, help="Pipeline schedule.")
    dtype: str = option("-d", "--dtype", type=click.Choice(list(DTYPES)), default="bfloat16", show_default=True)
    optimizer: str = option("--optimizer", type=click.Choice(list(OPTIMIZERS)), default="adam", show_default=True)
    machine: str | None = option(
        "--machine", metavar="NAME|FILE.toml", help="Default dgx-h100.", shell_complete=complete_machines
    )
    efficiency: float = option(
        "--efficiency",
        type=click.FloatRange(0, 1, min_open=True),
        default=DEFAULT_EFFICIENCY,
        show_default=True,
        help="Fraction of the peak rate at which ranks compute.",
    )
    model: ModelOptions = option_group(ModelOptions)
    json_file: str | None = json_field()


@click.command(epilog="Example: hpccoll estimate llama-3-8b --mesh dp=8,tp=8 --zero 1 --batch 512 --machine dgx-h100")
@take_options(EstimateOptions)
def estimate(options: EstimateOptions) -> None:
    """Estimate the memory, FLOPs, traffic and time of training a transformer on a mesh of ranks and a machine.

    PRESET is a published model: gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt3-175b, llama-2-7b, llama-2-70b,
    llama-3-8b, llama-3-405b or mixtral-8x7b. Without PRESET, --layers, --width and --heads describe a model.
    """
    model = _make_model(options.preset, options.model)
    name = options.preset if options.preset is not None and model == load_preset(options.preset) else "custom"
    if options.mesh is None:
        mesh = Mesh(dp=options.ranks or 1)
    else:
        mesh, options = _parse_mesh(options.mesh, options)
    setup = _make_setup(model, mesh, options)
    machine = choose_machine(options.machine).machine
    if not is_printing_rank():
        return
    if options.search:
        _run_search(name, setup, machine, options)
        return
    step_estimate = make_estimate(setup, machine, options.efficiency)
    write_serial_records(options.json_file, [make_estimate_record(name, step_estimate)])
    if options.json_file != STDOUT:
        print_estimate(name, step_estimate)


def _run_search(name: str, setup: TrainingSetup, machine: Machine, options: EstimateOptions) -> None:
    """Estimate all meshes of the ranks in `setup`, write one record per mesh, and print the fastest.

    Raises UsageError if the user gave an option whose value the search chooses.

    Args:
        name: the name of the model, for the output.
        setup: the model, batch and ranks; the search replaces the mesh in `setup`.
        options: the options of the command, of which `zero` and `recompute` restrict the search unless they are None.
    """
    unused = list_given_options("mesh", "microbatches", "sequence_parallel")
    if unused:
        raise UsageError(f"--search chooses {' and '.join(unused)} itself; leave out these options, and give --ranks")
    if not list_given_options("ranks"):
        raise UsageError("--search needs the number of ranks; add --ranks, such as --ranks 64")
    zeros = ZERO_STAGES if options.zero is None else (options.zero,)
    recomputes = RECOMPUTE if options.recompute is None else (options.recompute,)
    search: MeshSearch = search_meshes(setup, machine, options.efficiency, setup.mesh.ranks, zeros, recomputes)
    records = [make_estimate_record(name, estimated) for estimated in (*search.fitting, *search.too_large)]
    write_serial_records(options.json_file, records)
    if options.json_file != STDOUT:
        print_search(name, setup, machine, search, options.top)


def _make_model(preset: str | None, options: ModelOptions) -> TransformerShape:
    """Return the shape of the model to estimate; raise UsageError if it is incomplete or contradictory.

    `preset` names a published model, whose properties `options` replace; None if `options` alone describe the model.
    """
    shape = {name: value for name, value in asdict(options).items() if value}
    if preset is None and (missing := [f"--{name}" for name in ("layers", "width", "heads") if name not in shape]):
        raise UsageError(
            f"no model: name a preset ({', '.join(list_presets())}), or describe a model; "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        )
    given = {} if preset is None else msgspec.structs.asdict(load_preset(preset))
    model = msgspec.convert(given | shape, TransformerShape)
    model.require_consistent()
    return model


def _parse_mesh(strategy: str, options: EstimateOptions) -> tuple[Mesh, EstimateOptions]:
    """Return the mesh of --mesh, and `options` with the values that the words zero1, zero2, zero3 and sp of --mesh set.

    `strategy` is the value of --mesh, such as `dp=2,tp=4,zero1`. Raises UsageError if the axes of the mesh do not fit
    --ranks, or if a word such as zero1 contradicts --zero.
    """
    axes, levels, is_sequence_parallel = split_strategy_words(strategy)
    zero, ranks = options.zero, options.ranks
    for word in levels:
        if zero not in (None, ZERO_LEVELS[word]):
            raise UsageError(f"{word} sets --zero {ZERO_LEVELS[word]}, not --zero {zero}; leave one out")
        zero = ZERO_LEVELS[word]
    mesh = Mesh.parse(axes, None if axes.count("=") > axes.count(",") else ranks)
    if ranks is not None and mesh.ranks != ranks:
        raise UsageError(
            f"--mesh {strategy} has {mesh.ranks} ranks, not --ranks {ranks}; give axes whose product is {ranks}, "
            "or leave --ranks out"
        )
    return mesh, replace(options, zero=zero, sequence_parallel=options.sequence_parallel or is_sequence_parallel)


def _make_setup(model: TransformerShape, mesh: Mesh, options: EstimateOptions) -> TrainingSetup:
    """Return the training step to estimate: model, mesh, batch, micro-batches, precision.

    Raises UsageError if --sequence exceeds the position embeddings of the model.
    """
    batch, sequence = options.batch or mesh.ranks, options.sequence or model.context
    if sequence > model.context and not model.like_llama:
        raise UsageError(
            f"--sequence {sequence} exceeds the {model.context} position embeddings of the model; "
            f"give --context {sequence}"
        )
    get_schedule(options.schedule)
    return TrainingSetup(
        model,
        mesh,
        batch,
        sequence,
        options.microbatches or max(batch // mesh.samplers, 1),
        zero=options.zero or 0,
        recompute=options.recompute or "none",
        precision=Precision(options.dtype, options.optimizer),
        sequence_parallel=options.sequence_parallel,
        schedule=options.schedule,
        survive=options.survive,
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
