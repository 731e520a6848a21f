"""Data parallelism: ranks along the dp axis hold the same parameters, take different samples and sum their gradients.

A rank's loss is the sum over its own samples divided by the size of the global batch. The sum of the ranks' losses is
the mean over the batch even if ranks have different numbers of samples, unlike the average of the ranks' means.

The gradients are stored in a few long buffers (buckets), and each bucket is summed over the ranks by one all_reduce,
which starts during the backward pass as soon as the gradients of the bucket are complete (as in Li et al., "PyTorch
Distributed", VLDB 2020).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hpccoll.errors import UsageError
from hpccoll.parallel.axis_group import AxisGroup
from hpccoll.parallel.progress_thread import ProgressThread

if TYPE_CHECKING:
    from hpccoll.runtime.work import Work


class ShardPiece(NamedTuple):
    """Consecutive elements of a parameter that a rank updates: the elements from `begin` on of the flat parameter.

    In the flat tensor that has the piece, the elements begin at `offset`.
    """

    parameter: Any
    begin: int  # first element in the flat parameter
    offset: int  # first element in the flat tensor that has the piece
    elements: int


def note_backward_pass(parameter: Any, missing: dict[Any, int], view: Any | None) -> None:
    """Record that a backward pass has added to a parameter's gradient, and move the gradient to `view`, if given.

    `missing` has, by parameter, the number of backward passes that have not added to its gradient yet; the call updates
    `missing`. Raises UsageError if all backward passes of the parameter have been recorded already.
    """
    if parameter not in missing:
        raise UsageError(
            "more backward passes added to a gradient than `passes` states; give `begin` the number for each parameter"
        )
    if view is not None and parameter.grad is not view:
        parameter.grad = view.copy_(parameter.grad)
    missing[parameter] -= 1
    if not missing[parameter]:
        del missing[parameter]


class _Bucket:
    """The gradients of some parameters, as views of one buffer, and the progress of their sum in a training step."""

    def __init__(self, parameters: Sequence[Any], dp: AxisGroup) -> None:
        sizes = [parameter.numel() for parameter in parameters]
        self.buffer = dp.empty(sum(sizes), parameters[0])
        parts = zip(parameters, self.buffer.split(sizes), strict=True)
        self.views = {parameter: part.view_as(parameter) for parameter, part in parts}
        self.missing: dict[Any, int] = {}  # by parameter, the backward passes that have not added to its gradient yet
        self.work: Work[Any] | None = None

    def zero_unused(self) -> None:
        """Set to zero the gradients of parameters that no backward pass of the step has used."""
        for parameter in self.missing:
            if parameter.grad is None:
                parameter.grad = self.views[parameter].zero_()


class GradientBuckets:
    """The gradients of a list of parameters, stored in a few long buffers and summed during the backward pass.

    A training step calls `begin`, runs its backward passes, and calls `finish`. Afterwards each `parameter.grad` is the
    sum over the ranks of `dp`, as a view of a buffer. Buckets are in reverse order of the parameters, the order in
    which the backward pass completes the gradients. All ranks start the all_reduces in the order of the buckets.

    The constructor is collective over `dp`. On CPUs, the buffers are symmetric, so that ranks of a node reduce them in
    place. If `dp` spans several nodes, a thread advances the all_reduces while the backward pass computes. Within a
    node, the all_reduces advance whenever a gradient is complete. If `dp` has one rank, there are no buckets.

    Args:
        parameters: tensors of one dtype and device.
        max_bytes: size limit of a bucket; a larger parameter gets a bucket to itself.
    """

    def __init__(self, parameters: Sequence[Any], dp: AxisGroup, max_bytes: int) -> None:
        self.parameters, self.dp = parameters, dp
        self._buckets: list[_Bucket] = []
        self._started = 0  # the number of buckets whose all_reduce has been started in this step
        self._progress = ProgressThread(dp)
        if dp.size == 1:
            return
        bucket: list[Any] = []
        for parameter in reversed(parameters):
            if bucket and sum(member.nbytes for member in [*bucket, parameter]) > max_bytes:
                self._add_bucket(bucket)
                bucket = []
            bucket.append(parameter)
        self._add_bucket(bucket)

    def _add_bucket(self, parameters: Sequence[Any]) -> None:
        """Make a bucket of the given parameters and register hooks on their gradients; collective over `dp`."""
        bucket = _Bucket(parameters, self.dp)
        self._buckets.append(bucket)

        def note_gradient(parameter: Any) -> None:
            """Record that a backward pass has added to a gradient, and start the all_reduces of complete buckets."""
            note_backward_pass(parameter, bucket.missing, bucket.views[parameter])
            self._start_complete_buckets()

        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(note_gradient)

    @property
    def buffers(self) -> list[Any]:
        """The buffers with the gradients of all buckets, in the order in which they are summed."""
        return [bucket.buffer for bucket in self._buckets]

    def begin(self, passes: Mapping[Any, int]) -> None:
        """Start a training step: forget the gradients of the last step; local.

        `passes` has, for each parameter, the number of backward passes of this step that add to its gradient. An
        all_reduce starts after the last backward pass, so that the gradients of several micro-batches are summed over
        the ranks once.
        """
        self._started = 0
        for parameter in self.parameters:
            parameter.grad = None  # the first backward pass then stores a gradient instead of adding to zeros
        for bucket in self._buckets:
            bucket.missing = {parameter: passes[parameter] for parameter in bucket.views}

    def finish(self) -> None:
        """Sum the buckets that are not summed yet, and block until all sums are complete; collective over `dp`.

        Cost: in a whole step, each of n ranks sends 2(n-1)/n of the gradients' bytes.
        """
        if self.dp.size == 1:
            for parameter in self.parameters:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for bucket in self._buckets[self._started :]:
            bucket.zero_unused()
            self._start_all_reduce(bucket)
        self._progress.stop()
        for bucket in self._buckets:
            assert bucket.work is not None  # noqa: S101 - all buckets are started
            self.dp.finish(bucket.work)

    def _start_complete_buckets(self) -> None:
        """Start the all_reduces of buckets whose gradients are complete, in order, and advance those in flight."""
        self.dp.advance_started()
        while self._started < len(self._buckets) and not self._buckets[self._started].missing:
            self._start_all_reduce(self._buckets[self._started])

    def _start_all_reduce(self, bucket: _Bucket) -> None:
        """Start the all_reduce of a bucket, and a thread that lets it make progress if `dp` needs one."""
        bucket.work = self.dp.start_all_reduce(bucket.buffer)
        self._started += 1
        self._progress.start()


class ReplicatedParameters:
    """Parameters that each rank of a group holds whole (no ZeRO), with the interface of `ZeroShards` (zero.py).

    The constructor is collective over the groups. `groups` has, by parameter, the group of ranks that hold it.
    """

    def __init__(self, groups: Mapping[Any, AxisGroup], bucket_bytes: int) -> None:
        self.shards, self._groups = list(groups), groups
        by_group: dict[AxisGroup, list[Any]] = defaultdict(list)
        for parameter, group in groups.items():
            by_group[group].append(parameter)
        self._buckets = [GradientBuckets(own, group, bucket_bytes) for group, own in by_group.items()]

    @property
    def weights(self) -> list[Any]:
        """The tensors that hold the parameters: the parameters themselves."""
        return self.shards

    @property
    def buffers(self) -> list[Any]:
        """The empty list, because gradients are reduced in place."""
        return []

    def begin(self, passes: Mapping[Any, int]) -> None:
        """Start a training step, as `GradientBuckets.begin` does; local."""
        for buckets in self._buckets:
            buckets.begin(passes)

    def finish(self) -> None:
        """Block until the gradients of all parameters are summed over their groups; collective over the groups."""
        for buckets in self._buckets:
            buckets.finish()

    def run(self, _stage: int, _number: int, function: Callable[[Any], Any], x: Any) -> Any:
        """Return function(x): the computation of a part of a stage; no parameters need to be gathered first."""
        return function(x)

    def gather_parameters(self) -> None:
        """Do nothing, because each rank has updated the whole parameters."""

    def gathered(self) -> AbstractContextManager[None]:
        """Context manager that does nothing, because each rank has the whole parameters."""
        return nullcontext()

    def gather_tensors(self, own: Sequence[Any]) -> list[Any]:
        """Return the tensors unchanged, because each rank has whole ones."""
        return list(own)

    def cut_tensors(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the tensors uncut, because each rank holds whole parameters."""
        return list(tensors)

    def get_gradient(self, parameter: Any) -> Any:
        """Return the gradient of a parameter, summed over its group after `finish`."""
        return parameter.grad

    def list_gradients(self) -> Iterator[tuple[Any, Any]]:
        """Yield each parameter and its gradient on the first rank of its group; nothing on other ranks."""
        return ((x, x.grad) for x, group in self._groups.items() if group.index == 0)

    def list_pieces(self) -> Iterator[ShardPiece]:
        """Yield a piece for each whole parameter, with its offset in the flat tensor of all parameters."""
        before = 0
        for parameter in self.shards:
            yield ShardPiece(parameter, 0, before, parameter.numel())
            before += parameter.numel()
