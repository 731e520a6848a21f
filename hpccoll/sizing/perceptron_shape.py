"""The shape of a perceptron whose training is estimated: linear layers, and activation functions between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from hpccoll.parallel.mesh import Mesh
from hpccoll.sizing.model_part import PartTraffic


@dataclass(frozen=True, slots=True)
class LinearShape:
    """A linear layer with biases, and how tensor parallelism (tp) splits it.

    `column` splits by output, and sums the gradients of inputs in the backward pass. `row` splits by input, and sums
    the outputs. `gathered` splits by output, and gathers the outputs. `replicated` does not split.
    """

    inputs: int
    outputs: int
    split: Literal["column", "row", "gathered", "replicated"]

    def count_features(self, tp: int) -> tuple[int, int, int]:
        """Return the numbers of features of input, matrix product and output, on the rank of tp with most features."""
        inputs = -(-self.inputs // tp) if self.split == "row" else self.inputs
        product = -(-self.outputs // tp) if self.split in ("column", "gathered") else self.outputs
        return inputs, product, self.outputs if self.split == "gathered" else product

    def count_weights(self, tp: int) -> int:
        """Return the number of a rank's weights, without biases, if the layer is split over `tp` ranks."""
        inputs, product, _ = self.count_features(tp)
        return inputs * product

    def count_parameters(self, tp: int) -> int:
        """Return the number of a rank's weights and biases, if the layer is split over `tp` ranks."""
        return self.count_weights(tp) + self.count_features(tp)[1]

    def list_traffic(self, nbytes: int, is_recomputed: bool, is_first: bool, is_last: bool) -> Iterator[PartTraffic]:
        """Yield the layer's collectives over tensor-parallel ranks for a micro-batch.

        Recomputation omits the communication at the end of the last layer, and the first layer's input needs no
        gradient. If the last layer gathers its outputs, the gradients of these outputs are the same on all ranks.
        `nbytes` is the number of bytes of one feature for all samples of the micro-batch.
        """
        forward = 1 + (is_recomputed and not is_last)
        if self.split == "column" and not is_first:
            yield PartTraffic("tp", "all_reduce", 1, nbytes * self.inputs)
        elif self.split == "row":
            yield PartTraffic("tp", "all_reduce", forward, forward * nbytes * self.outputs)
        elif self.split == "gathered":
            yield PartTraffic("tp", "all_gather", forward, forward * nbytes * self.outputs)
            if not is_last:
                yield PartTraffic("tp", "reduce_scatter", 1, nbytes * self.outputs)


@dataclass(frozen=True, slots=True)
class PerceptronShape:
    """Linear layers with an activation function after each but the last, as `hpccoll train` builds them.

    The backward pass of the activation function needs its output (tanh), or its input (GELU). The loss is the cross
    entropy of classes, or the mean square error.
    """

    experts: ClassVar[int] = 1
    active_experts: ClassVar[int] = 1
    linears: tuple[LinearShape, ...]
    keeps_outputs: bool  # whether the backward pass of the activation function needs its output
    has_classes: bool

    @property
    def layers(self) -> int:
        """The number of linear layers."""
        return len(self.linears)

    @property
    def width(self) -> int:
        """The number of features between two layers."""
        return self.linears[-1].inputs

    @property
    def used_weights(self) -> float:
        """The mean number of weights of a layer."""
        return sum(linear.inputs * linear.outputs for linear in self.linears) / self.layers

    def count_attention_core_flops(self, _sequence: int) -> int:
        """Return 0, because a perceptron has no attention."""
        return 0

    def list_splits(self, _mesh: Mesh, _stages: int) -> list[tuple[int, str, int, str]]:
        """Return an empty list: the mesh need not divide the features or layers, so ranks may have unequal numbers."""
        return []

    def count_sample_bytes(self, dtype: str, nbytes: int) -> int:
        """Return the bytes of a sample after its conversion to `dtype`, with `nbytes` bytes per number.

        The inputs of a sample are converted, and so are its targets unless they are class numbers. Samples are stored
        in float64, so the result is 0 for float64, which needs no converted copy.
        """
        copied = self.linears[0].inputs + (0 if self.has_classes else self.linears[-1].outputs)
        return 0 if dtype == "float64" else copied * nbytes
