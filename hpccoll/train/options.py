"""The options of a training run and their validation against a mesh. This module does not import torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

from hpccoll.errors import UnavailableError, UsageError
from hpccoll.optional_packages import format_install_command
from hpccoll.parallel.mesh import EXPERT_REPLICAS, REPLICAS, ZERO_LEVELS, Mesh, split_strategy_words
from hpccoll.plan import ActionKind, Schedule
from hpccoll.schedules import get_schedule
from hpccoll.schedules.schedule_files import is_schedule_file, prove_schedule_file
from hpccoll.sizing import TransformerShape
from hpccoll.sizing.perceptron_shape import LinearShape, PerceptronShape
from hpccoll.sizing.training_setup import ModelShape
from hpccoll.units import format_count, format_nearest_divisors, format_nearest_multiples

INPUTS, CLASSES = 64, 10  # pixels of an image, digits
BYTES = 256  # vocabulary of a language model over bytes
ACTIVATIONS = ("tanh", "gelu", "swiglu")
SPLITS = ("pairs", "all_gather")
# How tp splits a linear layer: by output; by input; by output, with the outputs gathered; not at all.
LinearSplit: TypeAlias = Literal["column", "row", "gathered", "replicated"]
DTYPES = ("float32", "float64")
DECAYS = ("none", "cosine")
DEFAULT_PIPELINE_MICROBATCHES = 4
UNTIMED_STEPS = 2  # the first steps of --compare and --account, slower because they bind calls and log allocations


@dataclass(frozen=True, slots=True)
class MlpConfig:
    """The shape of a classifier of fully connected layers (a multi-layer perceptron)."""

    name: ClassVar[str] = "mlp"
    activations: ClassVar[tuple[str, ...]] = ("tanh", "gelu")
    unit: ClassVar[str] = "samples"  # the unit in which the speed of training is shown
    tokens: ClassVar[int] = 1  # per sample
    has_classes: ClassVar[bool] = True  # the model classifies samples, so that its accuracy can be stated
    heads: ClassVar[None] = None  # this field and the following ones have values for a GPT only
    context: ClassVar[None] = None
    experts: ClassVar[None] = None
    width: int = 64  # features between two layers
    layers: int = 4  # linear layers, including the first and the last
    activation: str = "tanh"  # tanh or gelu, the function after each layer but the last
    split: str = "pairs"  # how tensor parallelism splits the layers; a name in SPLITS

    def weight_shape(self, layer: int) -> tuple[int, int]:
        """Return the shape (out, in) of the weight of layer number `layer`."""
        return (CLASSES if layer == self.layers - 1 else self.width, self.width if layer else INPUTS)

    def choose_split(self, layer: int) -> LinearSplit:
        """Return how layer number `layer` is split over tensor-parallel ranks: column, row, gathered or replicated."""
        if self.split == "all_gather":
            return "gathered"
        if layer % 2:
            return "row"
        return "column" if layer + 1 < self.layers else "replicated"

    @property
    def parameter_count(self) -> int:
        """The number of trained weights and biases."""
        return sum(
            out_features * (in_features + 1) for out_features, in_features in map(self.weight_shape, range(self.layers))
        )

    def require_fits(self, mesh: Mesh) -> None:
        """Raise UsageError unless each tensor-parallel rank gets a part of the layers' width."""
        if mesh.tp > self.width and self.layers > 1:
            raise UsageError(f"tp={mesh.tp} ranks cannot share a width of {self.width}; give --width {mesh.tp} or more")

    def require_sequences_fit(self, mesh: Mesh, *, sequence_parallel: bool) -> None:  # noqa: ARG002 - no sequences
        """Raise UsageError, because a perceptron's samples are no sequences that ranks could split."""
        option = format_sequence_option(mesh)
        raise UsageError(
            f"{option} splits sequences, but --model {self.name} has none; add --model gpt, or leave {option} out"
        )

    def make_shape(self) -> ModelShape:
        """Return the model's shape in the form that the formulas of hpccoll/sizing take."""
        shapes = [(*self.weight_shape(layer), self.choose_split(layer)) for layer in range(self.layers)]
        linears = tuple(LinearShape(inputs, outputs, split) for outputs, inputs, split in shapes)
        return PerceptronShape(linears, self.activation == "tanh", has_classes=self.has_classes)


@dataclass(frozen=True, slots=True)
class CourseConfig(MlpConfig):
    """The shape of a deep perceptron whose layers all have `width` inputs and outputs, trained by mean square loss."""

    name: ClassVar[str] = "course"
    has_classes: ClassVar[bool] = False
    activation: str = "gelu"

    def weight_shape(self, layer: int) -> tuple[int, int]:  # noqa: ARG002 - all layers have the same shape
        """Return the shape (out, in) of the weight of layer number `layer`."""
        return (self.width, self.width)


@dataclass(frozen=True, slots=True)
class ExpertConfig:
    """A mixture of experts in place of each MLP: a router sends each token to `top_k` of `count` MLPs (experts)."""

    count: int  # experts of each block
    top_k: int = 2  # experts of a token
    capacity_factor: float | None = None  # see `compute_capacity`
    aux_loss_coeff: float = 0.01  # factor of the load-balancing loss of each block

    def compute_capacity(self, tokens: int) -> int:
        """Return how many of `tokens` tokens an expert takes at most.

        The limit is `capacity_factor` times the mean number of tokens per expert, rounded up, or `tokens` if no factor
        is set.
        """
        if self.capacity_factor is None:
            return tokens
        return math.ceil(self.capacity_factor * tokens * self.top_k / self.count)


@dataclass(frozen=True, slots=True)
class GptConfig:
    """The shape of a small GPT over bytes: pre-norm blocks of causal attention and an MLP, and a tied head."""

    name: ClassVar[str] = "gpt"
    activations: ClassVar[tuple[str, ...]] = ("gelu", "swiglu")
    unit: ClassVar[str] = "tokens"
    has_classes: ClassVar[bool] = False
    width: int = 128  # features of a position
    layers: int = 3  # blocks
    activation: str = "gelu"  # function in the MLPs; swiglu gates the features of one linear layer by those of another
    heads: int = 4  # heads of attention, each with an equal part of the features
    context: int = 128  # bytes in a sample
    data: str | None = None  # a file to train on; None means sources of the standard library
    experts: ExpertConfig | None = None  # None: every token uses the one MLP of its block

    @property
    def is_gated(self) -> bool:
        """Whether the MLPs multiply the outputs of two linear layers (as swiglu does)."""
        return self.activation == "swiglu"

    @property
    def mlp_width(self) -> int:
        """The number of features between the layers of an MLP."""
        # A gated MLP has three weight matrices instead of two; 2/3 of the features keep the number of elements.
        return 8 * -(-self.width // 3) if self.is_gated else 4 * self.width

    def list_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter by name, in the order of the model."""
        width = self.width
        shapes: dict[str, tuple[int, ...]] = {
            "embedding.weight": (BYTES, width),
            "position.weight": (self.context, width),
        }
        square, up, down = (width, width), (self.mlp_width, width), (width, self.mlp_width)
        for block in range(self.layers):
            at = f"blocks.{block}"
            shapes |= {f"{at}.{name}.weight": square for name in ("query", "key", "value")}
            mlp = {"up": up, "down": down} | ({"gate": up} if self.is_gated else {})
            sizes = {"out": square, "norm1": (width,), "norm2": (width,)} | (mlp if self.experts is None else {})
            for name, size in sizes.items():
                shapes |= {f"{at}.{name}.weight": size, f"{at}.{name}.bias": size[:1]}
            if self.experts is not None:
                shapes[f"{at}.router.weight"] = (self.experts.count, width)
                for expert in range(self.experts.count):
                    shapes |= {f"{at}.experts.{expert}.{name}.weight": size for name, size in mlp.items()}
        return shapes | {"norm.weight": (width,), "norm.bias": (width,)}

    @property
    def tokens(self) -> int:
        """The number of tokens (bytes) per sample."""
        return self.context

    @property
    def parameter_count(self) -> int:
        """The number of trained weights and biases."""
        return sum(math.prod(shape) for shape in self.list_shapes().values())

    def require_fits(self, mesh: Mesh) -> None:
        """Raise UsageError unless the number of heads divides the width, and tp the number of heads."""
        if self.width % self.heads:
            widths = format_nearest_multiples(self.width, self.heads)
            raise UsageError(f"--width {self.width} cannot be shared by --heads {self.heads}; give --width {widths}")
        if self.heads % mesh.tp:
            heads = format_nearest_multiples(self.heads, mesh.tp)
            raise UsageError(
                f"tp={mesh.tp} ranks cannot share --heads {self.heads} equally; "
                f"give --heads {heads}, or tp={format_nearest_divisors(mesh.tp, self.heads)}"
            )

    def require_sequences_fit(self, mesh: Mesh, *, sequence_parallel: bool) -> None:
        """Raise UsageError unless the ranks that split the positions of a sample can share them equally."""
        if sequence_parallel and mesh.tp == 1:
            raise UsageError(
                f"--sequence-parallel splits sequences over tp, but {mesh} has no ranks along tp; "
                "name a mesh such as tp=2, or leave --sequence-parallel out"
            )
        parts = {"twice cp": 2 * mesh.cp if mesh.cp > 1 else 1}
        if sequence_parallel:
            parts[f"{'cp times ' * (mesh.cp > 1)}tp"] = mesh.cp * mesh.tp
        for name, count in parts.items():
            if self.context % count:
                contexts = format_nearest_multiples(self.context, math.lcm(*parts.values()))
                raise UsageError(
                    f"{mesh}: --context {self.context} cannot be split into {count} equal parts ({name}); "
                    f"give --context {contexts}"
                )

    def make_shape(self) -> ModelShape:
        """Return the model's shape in the form that the formulas of hpccoll/sizing take."""
        return TransformerShape(
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            feed_forward=self.mlp_width,
            experts=self.experts.count if self.experts else 1,
            active_experts=self.experts.top_k if self.experts else 1,
            vocabulary=BYTES,
            context=self.context,
            qkv_biases=False,
            dropout=False,
            gated=self.is_gated,
            tiled_attention=True,
        )


ModelConfig = MlpConfig | GptConfig
MODELS: dict[str, type[ModelConfig]] = {model.name: model for model in (MlpConfig, CourseConfig, GptConfig)}


def format_sequence_option(mesh: Mesh) -> str:
    """Return the option that splits sequences over ranks, `cp=N` or `--sequence-parallel`, for error messages."""
    return f"cp={mesh.cp}" if mesh.cp > 1 else "--sequence-parallel"


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """The optimizer and its learning rate, by default plain stochastic gradient descent at a constant rate."""

    name: str = "sgd"  # or adamw
    lr: float = 0.5  # learning rate after the warm-up
    warmup: int = 0  # steps in which the learning rate grows linearly
    decay: str = "none"  # cosine: after the warm-up, the rate falls to zero at the end of the run; a name in DECAYS

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names, in torch, of the tensors that the optimizer keeps for each parameter."""
        return ("exp_avg", "exp_avg_sq") if self.name == "adamw" else ()


OPTIMIZERS = {"sgd": OptimizerConfig(), "adamw": OptimizerConfig("adamw", 3e-3, 100, "cosine")}


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The options of a training run."""

    model: ModelConfig
    steps: int  # total number of steps, including those before the run was resumed
    seed: int = 0  # determines the initial parameters and the order of the samples
    batch: int = 64  # samples per step, over all ranks
    microbatches: int | None = None  # micro-batches per rank and step; None means 4 with a pipeline and 1 without
    optimizer: OptimizerConfig = OPTIMIZERS["sgd"]
    dtype: str = "float32"  # type of parameters, activations and gradients; a name in DTYPES
    device: str = "cpu"  # or cuda
    bucket_bytes: int = 25 * 2**20  # size limit of the buffers in which gradients are summed over replicas
    schedule: str = "1f1b"  # name of a pipeline schedule, or a CSV file
    recompute: bool = False  # compute activations again in the backward pass instead of keeping them
    sequence_parallel: bool = False  # split the tokens over tp between the tensor-parallel layers of a GPT
    zero: int = 0  # level of ZeRO: 1 splits optimizer state over replicas, 2 also gradients, 3 also parameters
    check: bool = False  # compare the gradients of the first step with those of one process
    survive: bool = False  # keep copies of the state, from which the other ranks continue after the death of a rank

    def count_microbatches(self, mesh: Mesh) -> int:
        """Return the number of micro-batches per rank and step on a mesh."""
        return self.microbatches or (DEFAULT_PIPELINE_MICROBATCHES if mesh.pp > 1 else 1)

    def make_schedule(self, mesh: Mesh) -> Schedule:
        """Return the pipeline schedule on a mesh.

        Raises:
            UsageError: the schedule does not exist, or does not fit the mesh or the number of micro-batches.
            PlanError: the schedule is from a file and wrong.
        """
        microbatches = self.count_microbatches(mesh)
        if not is_schedule_file(self.schedule):
            family = get_schedule(self.schedule)
            return family.plan(mesh.pp * family.default_stages_per_rank, microbatches)
        schedule, _ = prove_schedule_file(self.schedule)
        if (schedule.ranks, schedule.microbatches) != (mesh.pp, microbatches):
            raise UsageError(
                f"--schedule {self.schedule} is for {format_count(schedule.ranks, 'rank')} and {schedule.microbatches} "
                f"micro-batches, not for pp={mesh.pp} and {microbatches} micro-batches; "
                f"give pp={schedule.ranks} and --microbatches {schedule.microbatches}"
            )
        return schedule

    def require_mesh_fits(self, mesh: Mesh) -> None:
        """Raise UsageError unless the schedule, the model's layers, its width and the batch fit the mesh."""
        model, microbatches = self.model, self.count_microbatches(mesh)
        stages = self.make_schedule(mesh).stages
        if stages > model.layers:
            named = (
                f"pp={mesh.pp} stages" if stages == mesh.pp else f"{stages} stages of {self.schedule} on pp={mesh.pp}"
            )
            raise UsageError(
                f"{named} cannot share {model.layers} layers; give --layers {stages} or more, or fewer stages"
            )
        model.require_fits(mesh)
        if self.batch < mesh.samplers * microbatches:
            split = f"dp={mesh.dp}" + f" times ep={mesh.ep}" * (mesh.ep > 1)
            raise UsageError(
                f"--batch {self.batch} leaves micro-batches empty: {split} times {microbatches} micro-batches "
                f"need at least {mesh.samplers * microbatches} samples; give a larger --batch or fewer --microbatches"
            )
        _require_experts_fit(model.experts, mesh.ep)
        if mesh.cp > 1 or self.sequence_parallel:
            model.require_sequences_fit(mesh, sequence_parallel=self.sequence_parallel)
        if self.zero > 1:
            self._require_whole_backward_passes(mesh)

    def get_state_replicas(self, mesh: Mesh) -> tuple[str, ...]:
        """Return the axes along which ranks hold equal parameters and optimizer state; () if ZeRO splits these."""
        if self.zero and mesh.count(*REPLICAS) > 1:
            return ()
        return REPLICAS if self.model.experts is None else EXPERT_REPLICAS

    def require_timed_steps(self, option: str) -> None:
        """Raise UsageError if all steps are untimed; `option` is the option that times steps, such as --compare."""
        if self.steps <= UNTIMED_STEPS:
            raise UsageError(
                f"{option} does not time the first {UNTIMED_STEPS} steps and needs --steps {UNTIMED_STEPS + 1} or more"
            )

    def _require_whole_backward_passes(self, mesh: Mesh) -> None:
        """Raise UsageError unless each backward pass of a rank completes the gradients of all its parameters."""
        schedule = self.make_schedule(mesh)
        if schedule.stages > mesh.pp or (mesh.pp > 1 and ActionKind.BACKWARD_WEIGHT in schedule.kinds):
            raise UsageError(
                f"--zero {self.zero} needs backward passes that compute all gradients of a rank, but --schedule "
                f"{self.schedule} splits them; give --schedule 1f1b, or --zero 1"
            )

    def get_checkpoint_identity(self) -> dict[str, Any]:
        """Return, by name, the options that a checkpoint must share with the run that resumes from it."""
        shape = asdict(self.model)
        shape.pop("split", None)  # a checkpoint has whole parameters, which any split can continue to train
        experts = shape.pop("experts", None) or {}  # the capacity and the factor of the balance loss may change
        shape |= {"experts": experts.get("count"), "top_k": experts.get("top_k")}
        return {
            "model": self.model.name,
            **shape,
            "optimizer": self.optimizer.name,
            "dtype": self.dtype,
            "seed": self.seed,
        }


def split_strategy(strategy: str, options: TrainOptions) -> tuple[str, TrainOptions]:
    """Return the axes of a parallelization strategy (`dp` if none), and a copy of `options` with its other settings.

    The strategy `tp=2,sp` is tp=2 with --sequence-parallel, and `zero2` is dp with --zero 2. Raises UsageError if the
    strategy and `options` together name different levels of ZeRO.
    """
    axes, levels, is_sequence_parallel = split_strategy_words(strategy)
    for word in levels:
        if options.zero not in (0, ZERO_LEVELS[word]):
            raise UsageError(
                f"{word} sets --zero {ZERO_LEVELS[word]}, not --zero {options.zero}; leave one of them out"
            )
        options = replace(options, zero=ZERO_LEVELS[word])
    return axes, replace(options, sequence_parallel=True) if is_sequence_parallel else options


def _require_experts_fit(experts: ExpertConfig | None, ep: int) -> None:
    """Raise UsageError unless the ranks of ep can share the experts equally, and the options of the experts are valid.

    `top_k` must be at most the number of experts; the capacity factor must be None, or positive and finite. Without
    experts (None), ep must be 1.
    """
    if experts is None:
        if ep > 1:
            raise UsageError(f"ep={ep} ranks have no experts to share; add --model gpt --experts {ep}, or give dp={ep}")
        return
    count, top_k, factor = experts.count, experts.top_k, experts.capacity_factor
    if top_k > count:
        raise UsageError(
            f"--top-k {top_k} is more than --experts {count}; "
            f"give --top-k {count} or less, or --experts {top_k} or more"
        )
    if count % ep:
        raise UsageError(
            f"ep={ep} ranks cannot share --experts {count} equally; "
            f"give --experts {format_nearest_multiples(count, ep)}, or ep={format_nearest_divisors(ep, count)}"
        )
    if factor is not None and not 0 < factor < math.inf:
        raise UsageError(
            f"--capacity-factor {factor:g} gives --experts {count} no capacity for tokens; give a finite number above "
            "0, such as 1.25, or leave --capacity-factor out to drop no token"
        )


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """When and where a run writes checkpoints, and the stop file: the run ends early once this file exists."""

    directory: str | None = None  # None: write no checkpoints
    every: int = 100  # steps between two checkpoints; one is also written after the last step
    stop_file: str | None = None  # the run writes a checkpoint and stops after the step during which this file appears


def require_torch() -> None:
    """Raise UnavailableError, with the command that installs torch, if torch cannot be imported."""
    try:
        import torch  # noqa: F401 - only tests that the import works
    except ImportError as error:
        raise UnavailableError(
            f"training needs torch, which cannot be imported ({error}); {format_install_command('torch')}"
        ) from error
