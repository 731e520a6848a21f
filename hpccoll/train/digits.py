"""The data: 1,797 images of handwritten digits that come along (digits.md says from where), in an order of their own.

Every tenth image is held out. The others are passed through again and again, each time in another order that only the
seed and the number of the pass decide: so which samples a step sees follows from how many were seen before it.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
BRIGHTEST = 16
HELD_OUT = 10  # every tenth


@dataclass(frozen=True, slots=True)
class Digits:
    """Images (samples, 64) of 0..1 and labels (samples,) of 0..9."""

    images: Array
    labels: Array

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, seed: int, first: int, size: int) -> tuple[Array, Array]:
        """Return the images and labels of `size` samples, after `first` that were seen before."""
        places = np.arange(first, first + size)
        chosen = np.empty(size, np.int64)
        for turn in np.unique(places // len(self)):
            order = np.random.default_rng([seed, int(turn)]).permutation(len(self))
            of_turn = places // len(self) == turn
            chosen[of_turn] = order[places[of_turn] % len(self)]
        return self.images[chosen], self.labels[chosen]


def load() -> tuple[Digits, Digits]:
    """Return the digits to train on and those that are held out."""
    packed = resources.files("hpccoll.train").joinpath("digits.csv.gz").read_bytes()
    table = np.loadtxt(gzip.decompress(packed).decode("ascii").splitlines(), delimiter=",", dtype=np.int64)
    out = np.arange(len(table)) % HELD_OUT == HELD_OUT - 1
    images, labels = table[:, :-1] / BRIGHTEST, table[:, -1]
    return Digits(images[~out], labels[~out]), Digits(images[out], labels[out])
