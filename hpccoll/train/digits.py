"""The data set: 1,797 images of handwritten digits (source: digits.md), and the order in which training reads them.

Every tenth image is held out for testing. Training passes repeatedly over all other images. The order in each pass
depends only on the seed and the number of the pass, so the number of samples seen determines the samples of a step.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
MAX_BRIGHTNESS = 16
HELD_OUT_STRIDE = 10  # every tenth image


@dataclass(frozen=True, slots=True)
class Digits:
    """Arrays of images, of shape (samples, 64) with values in 0..1, and of labels, of shape (samples,) in 0..9."""

    images: Array
    labels: Array

    def __len__(self) -> int:
        return len(self.labels)

    def get_batch(self, seed: int, first: int, size: int) -> tuple[Array, Array]:
        """Return images (size, 64) and labels (size,) of samples `first` to `first + size - 1` in training order."""
        positions = np.arange(first, first + size)
        chosen = np.empty(size, np.int64)
        for epoch in np.unique(positions // len(self)):
            order = np.random.default_rng([seed, int(epoch)]).permutation(len(self))
            in_epoch = positions // len(self) == epoch
            chosen[in_epoch] = order[positions[in_epoch] % len(self)]
        return self.images[chosen], self.labels[chosen]


def load_digits() -> tuple[Digits, Digits]:
    """Read the data file of the package; return the training digits and the held-out digits."""
    packed = resources.files("hpccoll.train").joinpath("digits.csv.gz").read_bytes()
    table = np.loadtxt(gzip.decompress(packed).decode("ascii").splitlines(), delimiter=",", dtype=np.int64)
    held_out = np.arange(len(table)) % HELD_OUT_STRIDE == HELD_OUT_STRIDE - 1
    images, labels = table[:, :-1] / MAX_BRIGHTNESS, table[:, -1]
    return Digits(images[~held_out], labels[~held_out]), Digits(images[held_out], labels[held_out])
