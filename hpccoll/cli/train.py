"""`hpccoll train`: train a small model over a mesh of ranks, with checkpoints from which a requeued job resumes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import click

from hpccoll.cli.completion import complete_strategies
from hpccoll.cli.output import json_option, list_given_options, require_outputs_writable
from hpccoll.cli.run_record import make_run_record
from hpccoll.cli.train_account import ACCOUNT_STEPS, account_training
from hpccoll.cli.train_estimate import estimate_training
from hpccoll.cli.train_output import TrainOutput
from hpccoll.errors import UsageError
from hpccoll.parallel.mesh import Mesh
from hpccoll.processes import joint_failure
from hpccoll.train.options import (
    ACTIVATIONS,
    DECAYS,
    DTYPES,
    MODELS,
    OPTIMIZERS,
    SPLITS,
    CheckpointOptions,
    ExpertConfig,
    ModelConfig,
    TrainOptions,
    require_torch,
    split_strategy,
)
from hpccoll.units import parse_size

if TYPE_CHECKING:
    from hpccoll.records import TrainSummaryRecord
    from hpccoll.train.checkpoint import CheckpointDirectory
    from hpccoll.train.start import TrainingStart
    from hpccoll.train.trainer import Trainer

STOPPED = 130  # exit status of a run that the stop file ended, here and in `hpccoll bench`
SHAPE_OPTIONS = ("width", "layers", "activation", "split", "heads", "context", "data")
EXPERT_OPTIONS = ("experts", "top_k", "capacity_factor", "aux_loss_coeff")
RATE_OPTIONS = ("lr", "warmup", "decay")


@click.command(epilog="Example: mpirun -n 4 hpccoll train dp=2,tp=2 --check --checkpoint state --json train.jsonl")
@click.argument("strategies", metavar="STRATEGY", nargs=-1, required=True, shell_complete=complete_strategies)
@click.option("--model", type=click.Choice(list(MODELS)), default="mlp", show_default=True, help="The model to train.")
@click.option("--width", type=click.IntRange(1), help="Features between layers; default 64, gpt 128.")
@click.option("--layers", type=click.IntRange(1), help="Linear layers (default 4), or blocks of a gpt (default 3).")
@click.option("--activation", type=click.Choice(ACTIVATIONS), help="Default tanh, course and gpt gelu.")
@click.option("--split", type=click.Choice(SPLITS), help="Layers of mlp and course under tp; default pairs.")
@click.option("--heads", type=click.IntRange(1), help="Heads of attention of a gpt; default 4.")
@click.option("--context", type=click.IntRange(1), help="Bytes per sample of a gpt; default 128.")
@click.option("--data", metavar="PATH", help="Text for a gpt; default: sources of the standard library.")
@click.option("--experts", type=click.IntRange(2), help="Experts per block of a gpt, in place of its MLP.")
@click.option("--top-k", type=click.IntRange(1), help="Experts of a token; default 2.")
@click.option("--capacity-factor", type=float, help="Capacity of an expert, times its mean tokens; default no limit.")
@click.option("--aux-loss-coeff", type=click.FloatRange(0), help="Factor of the load-balancing loss; default 0.01.")
@click.option("--steps", type=click.IntRange(0), default=200, show_default=True, help="In total, also when resumed.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of parameters and data order.")
@click.option("--batch", type=click.IntRange(1), default=64, show_default=True, help="Samples per step over all ranks.")
@click.option("--microbatches", type=click.IntRange(1), help="Micro-batches per rank; default 4 with pp, else 1.")
@click.option(
    "--schedule", default="1f1b", show_default=True, metavar="NAME|FILE.csv", help="Pipeline schedule: gpipe, zbv, ..."
)
@click.option(
    "--bucket-bytes",
    default="25M",
    show_default=True,
    metavar="SIZE",
    callback=lambda _context, _option, size: parse_size(size),
    help="Limit of a bucket of gradients, which are summed over dp, cp and ep.",
)
@click.option("--optimizer", type=click.Choice(list(OPTIMIZERS)), help="Default sgd, gpt adamw.")
@click.option("--lr", type=click.FloatRange(0, min_open=True), help="Learning rate; default sgd 0.5, adamw 0.003.")
@click.option("--warmup", type=click.IntRange(0), help="Steps of linear warm-up of --lr; default sgd 0, adamw 100.")
@click.option("--decay", type=click.Choice(DECAYS), help="Fall of --lr to the last step; default adamw cosine.")
@click.option("--recompute", is_flag=True, help="Compute activations again in the backward pass to save memory.")
@click.option("--sequence-parallel", is_flag=True, help="Split tokens of a gpt over tp between attentions and MLPs.")
@click.option(
    "--zero",
    type=click.IntRange(0, 3),
    default=0,
    help="ZeRO: split over replicas optimizer state (1), also gradients (2), also weights (3).",
)
@click.option("-d", "--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="cuda: one GPU per rank."
)
@click.option("-c", "--check", is_flag=True, help="Compare the first gradients with one process's; status 1 if wrong.")
@click.option("--checkpoint", metavar="DIR", help="Resume from DIR's newest checkpoint; save checkpoints there.")
@click.option("--checkpoint-every", type=click.IntRange(1), default=100, show_default=True, help="Interval in steps.")
@click.option("--stop-file", metavar="FILE", help="When FILE exists, save and stop after this step (status 130).")
@click.option("--profile", metavar="FILE", help="Write a trace of three steps of all ranks for ui.perfetto.dev.")
@click.option("--survive", is_flag=True, help="Continue with the other ranks after a death; mpirun --with-ft ulfm.")
@click.option("--spares", type=click.IntRange(0), default=0, help="With --survive: idle ranks that replace dead ones.")
@click.option("--dry-run", is_flag=True, help="Estimate memory and time per rank; status 3: no fit.")
@click.option("--account", is_flag=True, help="Compare each STRATEGY's bytes, shares and memory with estimates.")
@click.option("--plot", metavar="FILE", help="Draw the account: .svg .png .pdf")
@click.option("--machine", metavar="NAME|FILE.toml", help="Machine of --dry-run; default dgx-h100.")
@click.option("--compare", is_flag=True, help="Time torch's own parallelism on the same model and batches in turns.")
@json_option("Write JSON Lines as steps finish; - for standard output.", all_ranks=True, appends_with="checkpoint")
def train(
    strategies: tuple[str, ...],
    checkpoint: str | None,
    checkpoint_every: int,
    stop_file: str | None,
    json_file: str | None,
    profile: str | None,
    compare: bool,
    dry_run: bool,
    account: bool,
    plot: str | None,
    machine: str | None,
    model: str,
    **options: Any,
) -> int:
    """Train a model over a mesh of MPI ranks: mlp on handwritten digits, course on random vectors, gpt on text.

    STRATEGY is dp (data), tp (tensor), pp (pipeline), cp (context) or ep (expert parallelism) over all ranks, or a mesh
    such as dp=2,tp=2,pp=2. The words zero1, zero2 and zero3 set --zero, and sp sets --sequence-parallel.
    """
    _require_compatible(strategies)
    checkpoints, spares = CheckpointOptions(checkpoint, checkpoint_every, stop_file), options.pop("spares")
    shape, experts, rate = (
        {name: value for name in names if (value := options.pop(name)) is not None}
        for names in (SHAPE_OPTIONS, EXPERT_OPTIONS, RATE_OPTIONS)
    )
    if experts:
        shape["experts"] = _make_experts(**experts)
    optimizer = replace(OPTIMIZERS[options.pop("optimizer") or ("adamw" if model == "gpt" else "sgd")], **rate)
    run_options = TrainOptions(_make_model(model, shape), optimizer=optimizer, **options)
    if account:
        if not list_given_options("steps"):
            run_options = replace(run_options, steps=ACCOUNT_STEPS)
        return account_training(strategies, run_options, json_file, plot)
    strategy, run_options = split_strategy(strategies[0], run_options)
    _require_compatible_with_zero(run_options.zero)
    if dry_run:
        return estimate_training(strategy, run_options, machine, json_file)
    return _run_train(_TrainArguments(strategy, run_options, checkpoints, json_file, profile, compare, spares))


def _require_compatible(strategies: Sequence[str]) -> None:
    """Raise UsageError if the user gave options that exclude each other, or that lack an option they need.

    `strategies` are the command's arguments STRATEGY.
    """
    given = set(list_given_options("checkpoint", "profile", "check", "compare", "account", "dry_run", "survive"))
    if "--checkpoint" not in given and (unused := list_given_options("checkpoint_every", "stop_file")):
        raise UsageError(f"{unused[0]} needs a directory for checkpoints; add --checkpoint DIR")
    if "--compare" in given and (unused := list_given_options("checkpoint", "profile", "check")):
        raise UsageError(f"--compare discards the trained parameters and takes no {unused[0]}; leave one of them out")
    if "--account" not in given and list_given_options("plot"):
        raise UsageError("--plot draws the account; add --account, or leave --plot out")
    if "--account" not in given and len(strategies) > 1:
        raise UsageError(f"one STRATEGY at a time, not {' '.join(strategies)}; join axes by commas, or add --account")
    if "--account" in given and (unused := list_given_options("checkpoint", "profile", "check", "compare", "dry_run")):
        raise UsageError(
            f"--account only trains a few steps per STRATEGY and takes no {unused[0]}; leave one of them out"
        )
    if "--survive" in given and (unused := list_given_options("profile", "compare")):
        raise UsageError(f"--survive trains on several meshes and takes no {unused[0]}; leave one of them out")
    if "--survive" not in given and list_given_options("spares"):
        raise UsageError("--spares are ranks that replace dead ones; add --survive, or leave --spares out")
    if "--dry-run" not in given and list_given_options("machine"):
        raise UsageError("--machine is the machine that --dry-run estimates; add --dry-run, or leave --machine out")


def _require_compatible_with_zero(zero: int) -> None:
    """Raise UsageError if the user gave an option that ZeRO excludes; `zero` is the level of ZeRO, 0 for none."""
    if zero and (unused := list_given_options("bucket_bytes", "compare")):
        raise UsageError(f"{unused[0]} is not available with --zero {zero}; leave one of them out")


def _make_experts(experts: int | None = None, **options: Any) -> ExpertConfig:
    """Return the mixture of experts that the options describe; raise UsageError for expert options without --experts.

    `experts` is the value of --experts, or None; `options` are the other options of experts that the user gave.
    """
    if experts is None:
        option, value = next(iter(options.items()))
        given = f"--{option.replace('_', '-')}"
        raise UsageError(f"{given} {value} needs a mixture of experts; add --experts 8, or leave {given} out")
    return ExpertConfig(experts, **options)


def _make_model(name: str, shape: dict[str, Any]) -> ModelConfig:
    """Return the configuration of the model `name`; `shape` has the model options that the user gave, by field name.

    Raises UsageError for an option or an activation that the model does not have.
    """
    model = MODELS[name]
    unknown = [option for option in shape if option not in {field.name for field in fields(model)}]
    if unknown:
        raise UsageError(f"--{unknown[0]} is no option of --model {name}; leave it out, or choose another --model")
    if shape.get("activation", model.activations[0]) not in model.activations:
        raise UsageError(
            f"--activation {shape['activation']} is not available for --model {name}; "
            f"choose {' or '.join(model.activations)}"
        )
    return model(**shape)


@dataclass(frozen=True, slots=True)
class _TrainArguments:
    """The arguments of `hpccoll train`, checked and grouped; `profile`, `compare`, `spares` are values of options."""

    strategy: str
    options: TrainOptions
    checkpoints: CheckpointOptions
    json_file: str | None
    profile: str | None
    compare: bool
    spares: int


def _run_train(given: _TrainArguments) -> int:
    """Train, write records and checkpoints, print results and return the exit status; collective over all ranks.

    `given` has the command's arguments.
    """
    from hpccoll.runtime import job

    # `get_world` reports an mpirun of another MPI library, which would otherwise look like a wrong mesh.
    world = job.get_world()
    options, mesh = given.options, Mesh.parse(given.strategy, _count_working_ranks(world.size, given.spares))
    options.require_mesh_fits(mesh)
    if options.survive:
        from hpccoll.failures.fault_tolerance import require_fault_tolerance

        require_fault_tolerance()  # before torch is imported, which takes seconds
    directory = joint_failure.run_on_first_rank(world, lambda: _open_outputs(given))
    require_torch()
    from hpccoll.train.trainer import keep_freed_memory, limit_threads, select_device

    limit_threads(os.environ)
    keep_freed_memory()
    layout = job.detect_layout(world)
    device = select_device(options, layout.members[layout.node[world.rank]].index(world.rank))
    run = make_run_record(world)
    if not options.survive:
        return _train_on_mesh(given, mesh, device, directory, run)
    from hpccoll.cli.train_survive import train_surviving

    summary = train_surviving(mesh, options, device, given.spares, given.checkpoints, directory, given.json_file, run)
    return 0 if summary is None else _choose_status(summary)


def _train_on_mesh(
    given: _TrainArguments, mesh: Mesh, device: str, directory: CheckpointDirectory | None, run: dict[str, Any]
) -> int:
    """Train on a mesh of all ranks, all of which must stay alive, and return the exit status; collective.

    Args:
        given: the command's arguments.
        device: `cpu`, or the GPU of this rank.
        directory: the directory of --checkpoint on rank 0; None on other ranks, or without --checkpoint.
        run: the record of kind `run`.
    """
    from hpccoll.communicator import Communicator
    from hpccoll.train.start import load_start
    from hpccoll.train.trainer import Trainer

    with Communicator() as comm:
        start, damaged = load_start(comm, given.options, directory)
        with ExitStack() as stack:
            appends = given.checkpoints.directory is not None
            output = TrainOutput(stack, given.json_file, run, start, given.options, appends=appends)
            for message in damaged:
                output.warn(message)
            if start.resumed:
                output.warn(f"resumed after step {start.step} from {given.checkpoints.directory}")
            trainer = Trainer(comm, mesh, given.options, device, start)
            if given.compare:
                status = _compare_with_torch(trainer, output)
            else:
                status = _run_steps(trainer, start, given, directory, output)
        trainer.close()
    return status


def _run_steps(
    trainer: Trainer,
    start: TrainingStart,
    given: _TrainArguments,
    directory: CheckpointDirectory | None,
    output: TrainOutput,
) -> int:
    """Run all training steps after the state `start`, write the summary, and return the exit status; collective.

    `directory` is the directory of --checkpoint on rank 0; None on other ranks, or without --checkpoint.
    """
    from hpccoll.train.training_run import run_training

    checkpoints = given.checkpoints
    summary = run_training(trainer, start, checkpoints, directory, output.add_step, output.warn, given.profile)
    output.add_summary(summary)
    return _choose_status(summary)


def _choose_status(summary: TrainSummaryRecord) -> int:
    """Return the exit status of a training run: 1 with wrong gradients, STOPPED if it ended early, else 0."""
    return 1 if summary.wrong else STOPPED if summary.stop != "complete" else 0


def _count_working_ranks(ranks: int, spares: int) -> int:
    """Return the number of ranks that train from the start, without spares; raise UsageError if it is 0."""
    if spares >= ranks:
        raise UsageError(f"--spares {spares} leaves none of {ranks} ranks to train; give --spares {ranks - 1} or less")
    return ranks - spares


def _compare_with_torch(trainer: Trainer, output: TrainOutput) -> int:
    """Train over hpccoll and over torch.distributed in turns, write the comparison, and return 0; collective."""
    from hpccoll.peers.process_group import open_process_group
    from hpccoll.train.torch_comparison import require_comparable, run_comparison

    require_comparable(trainer.mesh, trainer.options)
    backend = "gloo" if trainer.device == "cpu" else "nccl"
    with open_process_group(backend):
        output.add_comparison(run_comparison(trainer, backend, output.add_step))
    return 0


def _open_outputs(given: _TrainArguments) -> CheckpointDirectory | None:
    """Create and return the directory of --checkpoint, None if not given; raise UsageError for an unwritable output."""
    from hpccoll.train.checkpoint import CheckpointDirectory

    require_outputs_writable({"--json": given.json_file, "--profile": given.profile})
    directory = given.checkpoints.directory
    return CheckpointDirectory(directory) if directory is not None else None
