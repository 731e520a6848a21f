"""The collectives of a torch process group, bound to tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hpccoll.plan import Operation

Tensor = Any
LaunchCall = Callable[[], Any]  # starts a collective and returns torch's Work


class TorchCollectives:
    """The collectives of one process group.

    Args:
        group: a ProcessGroupGloo or ProcessGroupNCCL.
        options: the module with torch's option classes, such as AllreduceOptions.
        n: number of ranks.
    """

    def __init__(self, group: Any, options: Any, n: int) -> None:
        self._group, self._options, self._n = group, options, n

    def bind_barrier(self) -> LaunchCall:
        """Return a call that starts a barrier."""
        return partial(self._group.barrier, self._options.BarrierOptions())

    def bind(
        self, operation: Operation, source: Tensor | None, result: Tensor | None, op: Any, root: int, in_place: bool
    ) -> LaunchCall:
        """Return a call that starts a collective on these tensors; `source` or `result` may be None.

        Args:
            operation: the collective.
            source: this rank's input, 1-D.
            result: this rank's output, 1-D.
            op: torch's ReduceOp, if the operation reduces.
            root: rank of the root, if there is one.
            in_place: whether the two share memory.
        """
        if operation.has_root:
            return self._bind_rooted(operation, source, result, op, root, in_place)
        if operation is Operation.ALL_REDUCE:
            options = self._options.AllreduceOptions()
            options.reduceOp = op
            launch = partial(self._group.allreduce, [result], options)
            return launch if in_place else _copy_then(result, source, launch)
        if operation is Operation.REDUCE_SCATTER:
            options = self._options.ReduceScatterOptions()
            options.reduceOp = op
            return partial(self._single("reduce_scatter_single", "_reduce_scatter_base"), result, source, options)
        if operation is Operation.ALL_GATHER:
            launch = self._single("all_gather_single", "_allgather_base")
            return partial(launch, result, source, self._options.AllgatherOptions())
        launch = self._single("all_to_all_single", "alltoall_base")
        return partial(launch, result, source, [], [], self._options.AllToAllOptions())

    def _single(self, name: str, before: str) -> Any:
        """Return the group's method by its new name, or by its name before torch 2.13."""
        return getattr(self._group, name, None) or getattr(self._group, before)

    def _bind_rooted(
        self, operation: Operation, source: Tensor | None, result: Tensor | None, op: Any, root: int, in_place: bool
    ) -> LaunchCall:
        names = {
            Operation.BROADCAST: "BroadcastOptions",
            Operation.REDUCE: "ReduceOptions",
            Operation.GATHER: "GatherOptions",
            Operation.SCATTER: "ScatterOptions",
        }
        options = getattr(self._options, names[operation])()
        options.rootRank = root
        if operation is Operation.BROADCAST:
            launch = partial(self._group.broadcast, [result], options)
            return launch if in_place or source is None else _copy_then(result, source, launch)
        if operation is Operation.REDUCE:
            options.reduceOp = op
            # Gloo leaves partial sums in the other ranks' tensors, and their inputs must not change.
            into = source.clone() if result is None and source is not None else result
            launch = partial(self._group.reduce, [into], options)
            return launch if in_place else _copy_then(into, source, launch)
        if operation is Operation.GATHER:
            return partial(self._group.gather, [] if result is None else [self._blocks(result)], [source], options)
        return partial(self._group.scatter, [result], [] if source is None else [self._blocks(source)], options)

    def _blocks(self, whole: Tensor) -> list[Tensor]:
        """Return views of the blocks of a tensor, one per rank."""
        return list(whole.view(self._n, whole.numel() // self._n).unbind(0))

    def shutdown(self) -> None:
        """End the process group."""
        shutdown = getattr(self._group, "shutdown", None)
        if shutdown is not None:
            shutdown()
        self._group = None


def _copy_then(out: Tensor, source: Tensor, launch: LaunchCall) -> LaunchCall:
    """Return a call that copies `source` to `out` and then starts a collective."""

    def call() -> Any:
        out.copy_(source)
        return launch()

    return call
