"""What a training run is asked to do, and whether that fits together on a mesh. Nothing here needs torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hpccoll.errors import UnavailableError, UsageError
from hpccoll.parallel.mesh import Mesh, shares

INPUTS, CLASSES = 64, 10  # of the digits
MODELS = ("mlp",)
ACTIVATIONS = ("tanh", "gelu")
DTYPES = ("float32", "float64")
MICROBATCHES_OF_A_PIPELINE = 4


@dataclass(frozen=True, slots=True)
class Mlp:
    """A classifier of fully connected layers.

    Args:
        width: features between two layers.
        layers: linear layers, the first and the last included.
        activation: after each layer but the last, one of ACTIVATIONS.
    """

    width: int = 64
    layers: int = 4
    activation: str = "tanh"

    def size(self, layer: int) -> tuple[int, int]:
        """Return (out, in) of a layer's weight."""
        return (CLASSES if layer == self.layers - 1 else self.width, self.width if layer else INPUTS)

    @property
    def parameters(self) -> int:
        """Numbers that are trained."""
        return sum(out * (into + 1) for out, into in map(self.size, range(self.layers)))


@dataclass(frozen=True, slots=True)
class Settings:
    """One run.

    Args:
        model: what is trained.
        steps: how many in all, those before a resumption included.
        seed: of the parameters and of the order of the data.
        batch: samples a step, over all ranks.
        microbatches: parts of a rank's share of the batch; None for 4 with a pipeline, 1 without.
        lr: of plain stochastic gradient descent.
        dtype: of parameters, activations and gradients.
        device: cpu or cuda.
        schedule: of the pipeline.
        check: hold the gradients of the first step against one process's.
    """

    model: Mlp
    steps: int
    seed: int = 0
    batch: int = 64
    microbatches: int | None = None
    lr: float = 0.5
    dtype: str = "float32"
    device: str = "cpu"
    schedule: str = "1f1b"
    check: bool = False

    def micros(self, mesh: Mesh) -> int:
        """Return how many micro-batches a rank's share of the batch is cut into."""
        return self.microbatches or (MICROBATCHES_OF_A_PIPELINE if mesh.pp > 1 else 1)

    def require(self, mesh: Mesh) -> None:
        """Raise UsageError unless the mesh can cut the model and the batch."""
        model, micros = self.model, self.micros(mesh)
        if mesh.pp > model.layers:
            raise UsageError(
                f"pp={mesh.pp} stages cannot share {model.layers} layers; "
                f"give --layers {mesh.pp} or more, or fewer stages"
            )
        if mesh.tp > model.width and model.layers > 1:
            raise UsageError(
                f"tp={mesh.tp} ranks cannot share a width of {model.width}; give --width {mesh.tp} or more"
            )
        if self.batch < mesh.dp * micros:
            raise UsageError(
                f"--batch {self.batch} leaves micro-batches empty: dp={mesh.dp} times {micros} micro-batches "
                f"take {mesh.dp * micros} samples at least; give a larger --batch or fewer --microbatches"
            )

    def identity(self) -> dict[str, Any]:
        """Return what a checkpoint must agree with for the run to go on with it."""
        return {"model": "mlp", **asdict(self.model), "dtype": self.dtype, "seed": self.seed}


def micro_slices(batch: int, mesh: Mesh, dp_index: int, micros: int) -> list[slice]:
    """Return which samples of a batch are in each micro-batch of a rank; sizes differ by one at most."""
    share = shares(batch, mesh.dp)[dp_index]
    return [
        slice(share.start + part.start, share.start + part.stop) for part in shares(share.stop - share.start, micros)
    ]


def require_torch() -> None:
    """Raise UnavailableError, with the command that installs it, where there is no torch."""
    try:
        import torch  # noqa: F401 - whether it loads is the question
    except ImportError as error:
        raise UnavailableError(
            f'training needs torch, which cannot be loaded ({error}); pip install "hpccoll[torch]"'
        ) from error
