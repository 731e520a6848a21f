"""The training and the held-out samples of the perceptrons; text.py has those of a GPT."""

from __future__ import annotations

import gzip
from importlib import resources

import numpy as np

from hpccoll.train.samples import Samples
from hpccoll.train.text import HELD_OUT_STRIDE

COURSE_SAMPLES, COURSE_HELD_OUT = 1024, 128
MAX_BRIGHTNESS = 16  # of a pixel of a digit


def make_course_samples(width: int) -> tuple[Samples, Samples]:
    """Return the training and the held-out samples: random vectors (n, width) and, as targets, functions of them.

    The target of a vector x is tanh(x W) with a random matrix W. Calls with the same width return the same samples.
    """
    generator = np.random.default_rng(0)
    weight = generator.standard_normal((width, width)) / width**0.5
    inputs = generator.standard_normal((COURSE_SAMPLES + COURSE_HELD_OUT, width))
    targets = np.tanh(inputs @ weight)
    train, held_out = slice(0, COURSE_SAMPLES), slice(COURSE_SAMPLES, None)
    return Samples(inputs[train], targets[train]), Samples(inputs[held_out], targets[held_out])


def load_digits() -> tuple[Samples, Samples]:
    """Return the training and the held-out samples of the 1,797 handwritten digits that digits.md describes.

    The inputs are images of 64 values in 0..1, and the targets are the digits 0 to 9.
    """
    packed = resources.files("hpccoll.train").joinpath("digits.csv.gz").read_bytes()
    table = np.loadtxt(gzip.decompress(packed).decode("ascii").splitlines(), delimiter=",", dtype=np.int64)
    held_out = np.arange(len(table)) % HELD_OUT_STRIDE == HELD_OUT_STRIDE - 1
    images, labels = table[:, :-1] / MAX_BRIGHTNESS, table[:, -1]
    return Samples(images[~held_out], labels[~held_out]), Samples(images[held_out], labels[held_out])
