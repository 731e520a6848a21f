"""Data parallelism: every rank along the axis has the same parameters and its own samples; gradients are added up.

Each rank's loss is the sum over its samples divided by the size of the whole batch. So the sum over ranks is the mean
over the batch, also where shares differ in size: dividing a sum of means by the ranks would weigh samples unevenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hpccoll.parallel.channel import Channel

BUCKET_BYTES = 4 << 20  # long enough for full bandwidth; several, so that the first can leave before the last is filled


class Buckets:
    """The gradients of some parameters, side by side in few long buffers that stay where they are.

    `parameter.grad` is a view into a bucket, so backward accumulates in place and nothing is copied; buffers that come
    again are bound to prepared calls by the communicator. The last parameters come first, as backward finishes them.

    Args:
        parameters: tensors of one dtype and device.
        most_bytes: of a bucket; a larger parameter has one of its own.
    """

    def __init__(self, parameters: Sequence[Any], most_bytes: int = BUCKET_BYTES) -> None:
        self.buffers: list[Any] = []
        together: list[Any] = []
        for parameter in reversed(parameters):
            if together and _nbytes([*together, parameter]) > most_bytes:
                self._add(together)
                together = []
            together.append(parameter)
        if together:
            self._add(together)

    def _add(self, parameters: Sequence[Any]) -> None:
        buffer = torch.zeros(sum(each.numel() for each in parameters)).to(parameters[0])
        first = 0
        for parameter in parameters:
            parameter.grad = buffer[first : first + parameter.numel()].view_as(parameter)
            first += parameter.numel()
        self.buffers.append(buffer)

    def zero(self) -> None:
        """Forget the gradients of the step before."""
        for buffer in self.buffers:
            buffer.zero_()

    def all_reduce(self, dp: Channel) -> None:
        """Add up the gradients of all ranks along the axis, a bucket at a time. Cost: 2(n-1)/n of their bytes."""
        for buffer in self.buffers:
            dp.all_reduce(buffer)


def _nbytes(parameters: Sequence[Any]) -> int:
    return sum(int(each.numel()) * int(each.element_size()) for each in parameters)
