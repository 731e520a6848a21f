"""A set of samples, and the order in which training reads them.

Training passes repeatedly over all samples. The order in each pass depends only on the seed and the number of the pass,
so the number of samples seen determines the samples of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

SampleArray = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Samples:
    """The inputs and targets of all samples, with one entry per sample along the first dimension."""

    inputs: SampleArray
    targets: SampleArray

    def __len__(self) -> int:
        return len(self.targets)

    def get_batch(self, seed: int, first: int, size: int) -> tuple[SampleArray, SampleArray]:
        """Return (inputs, targets) of the samples `first` to `first + size - 1` in training order, given by `seed`.

        The order continues after the last sample with another pass over all samples.
        """
        positions = np.arange(first, first + size)
        chosen = np.empty(size, np.int64)
        for epoch in np.unique(positions // len(self)):
            order = np.random.default_rng([seed, int(epoch)]).permutation(len(self))
            in_epoch = positions // len(self) == epoch
            chosen[in_epoch] = order[positions[in_epoch] % len(self)]
        return self.inputs[chosen], self.targets[chosen]
