"""Data parallelism: ranks along the dp axis hold the same parameters, take different samples and sum their gradients.

A rank's loss is the sum over its own samples divided by the size of the global batch. The sum of the ranks' losses is
the mean over the batch even if ranks have different numbers of samples, unlike the average of the ranks' means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hpccoll.parallel.axis_group import AxisGroup

BUCKET_BYTES = 4 << 20  # long enough for full bandwidth, short enough for several buckets per model


class GradientBuckets:
    """The gradients of a list of parameters, stored contiguously in a few long buffers.

    The constructor allocates the buffers (buckets) and sets each `parameter.grad` to a view of a buffer, in which the
    backward pass accumulates. The buffers' addresses never change, so the communicator can reuse calls it has prepared.
    Buckets are in reverse order of the parameters, the order in which the backward pass completes the gradients.

    Args:
        parameters: tensors of one dtype and device.
        max_bytes: size limit of a bucket; a larger parameter gets a bucket to itself.
    """

    def __init__(self, parameters: Sequence[Any], max_bytes: int = BUCKET_BYTES) -> None:
        self.buffers: list[Any] = []
        bucket: list[Any] = []
        for parameter in reversed(parameters):
            if bucket and sum(each.nbytes for each in [*bucket, parameter]) > max_bytes:
                self._add_bucket(bucket)
                bucket = []
            bucket.append(parameter)
        if bucket:
            self._add_bucket(bucket)

    def _add_bucket(self, parameters: Sequence[Any]) -> None:
        """Allocate a zeroed bucket and set each parameter's `grad` to its slice of the bucket."""
        buffer = torch.zeros(sum(parameter.numel() for parameter in parameters)).to(parameters[0])
        first = 0
        for parameter in parameters:
            parameter.grad = buffer[first : first + parameter.numel()].view_as(parameter)
            first += parameter.numel()
        self.buffers.append(buffer)

    def zero(self) -> None:
        """Set all gradients to zero."""
        for buffer in self.buffers:
            buffer.zero_()

    def all_reduce(self, dp: AxisGroup) -> None:
        """Sum the gradients over `dp` in place, one all_reduce per bucket; blocking, collective over `dp`.

        Cost: each of n ranks sends 2(n-1)/n of the gradients' bytes.
        """
        for buffer in self.buffers:
            dp.all_reduce(buffer)
