"""A torch process group's methods bound to tensors: how each collective is said in torch's words."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hpccoll.plan import Operation

Tensor = Any
Launch = Callable[[], Any]  # returns torch's Work


class TorchCollectives:
    """The collectives of one process group.

    Args:
        group: a ProcessGroupGloo or ProcessGroupNCCL.
        options: the module that has AllreduceOptions and its like.
        rank: this rank.
        n: ranks in the group.
    """

    def __init__(self, group: Any, options: Any, rank: int, n: int) -> None:
        self._group, self._options, self._rank, self._n = group, options, rank, n

    def barrier(self) -> Launch:
        """Bind a barrier."""
        return partial(self._group.barrier, self._options.BarrierOptions())

    def bind(
        self, operation: Operation, source: Tensor | None, result: Tensor | None, op: Any, root: int, in_place: bool
    ) -> Launch:
        """Bind a collective to tensors; `source` and `result` are None where the rank has none.

        Args:
            operation: which.
            source: what the rank brings, 1-D.
            result: what the rank gets, 1-D.
            op: torch's ReduceOp, where the operation reduces.
            root: rank of the root, where there is one.
            in_place: whether the two share memory.
        """
        if operation.has_root:
            return self._rooted(operation, source, result, op, root, in_place)
        if operation is Operation.ALL_REDUCE:
            options = self._options.AllreduceOptions()
            options.reduceOp = op
            launch = partial(self._group.allreduce, [result], options)
            return launch if in_place else _after_copy(result, source, launch)
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
        """The method on single tensors: torch 2.13 renames it for groups, later versions may for backends."""
        return getattr(self._group, name, None) or getattr(self._group, before)

    def _rooted(
        self, operation: Operation, source: Tensor | None, result: Tensor | None, op: Any, root: int, in_place: bool
    ) -> Launch:
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
            return launch if in_place or source is None else _after_copy(result, source, launch)
        if operation is Operation.REDUCE:
            options.reduceOp = op
            # Gloo leaves partial sums in the tensors of the other ranks: what they brought must survive.
            into = source.clone() if result is None and source is not None else result
            launch = partial(self._group.reduce, [into], options)
            return launch if in_place else _after_copy(into, source, launch)
        if operation is Operation.GATHER:
            return partial(self._group.gather, [] if result is None else [self._blocks(result)], [source], options)
        return partial(self._group.scatter, [result], [] if source is None else [self._blocks(source)], options)

    def _blocks(self, whole: Tensor) -> list[Tensor]:
        return list(whole.view(self._n, whole.numel() // self._n).unbind(0))

    def shutdown(self) -> None:
        """End the group."""
        shutdown = getattr(self._group, "shutdown", None)
        if shutdown is not None:
            shutdown()
        self._group = None


def _after_copy(out: Tensor, source: Tensor, launch: Launch) -> Launch:
    def call() -> Any:
        out.copy_(source)
        return launch()

    return call
