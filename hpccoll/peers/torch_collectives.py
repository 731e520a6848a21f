"""Binds the collectives of a torch process group to tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hpccoll.plan import Operation

Tensor = Any
LaunchCall = Callable[[], Any]  # starts a collective and returns torch's Work


class TorchCollectives:
    """Prepares collective calls on a torch process group (ProcessGroupGloo, ProcessGroupNCCL) of `n` ranks.

    `options` is the module with torch's option classes, such as AllreduceOptions.
    """

    def __init__(self, group: Any, options: Any, n: int) -> None:
        self._group, self._options, self._n = group, options, n

    def bind_barrier(self) -> LaunchCall:
        """Return a function that starts a barrier and returns torch's Work."""
        return partial(self._group.barrier, self._make_options("Barrier"))

    def bind(
        self, operation: Operation, source: Tensor | None, result: Tensor | None, op: Any, root: int, in_place: bool
    ) -> LaunchCall:
        """Return a function that starts a collective on the given tensors and returns torch's Work.

        Args:
            source: 1-D input; None if this rank has none.
            result: 1-D output; None if this rank has none.
            op: torch's ReduceOp if the operation reduces, else None.
            root: the root rank; ignored unless the operation has a root.
            in_place: whether `source` and `result` share memory.
        """
        if operation.has_root:
            return self._bind_rooted(operation, source, result, op, root, in_place)
        if operation is Operation.ALL_REDUCE:
            options = self._make_options("Allreduce", reduceOp=op)
            launch = partial(self._group.allreduce, [result], options)
            return launch if in_place else _copy_then(result, source, launch)
        if operation is Operation.REDUCE_SCATTER:
            options = self._make_options("ReduceScatter", reduceOp=op)
            return partial(self._single("reduce_scatter_single", "_reduce_scatter_base"), result, source, options)
        if operation is Operation.ALL_GATHER:
            launch = self._single("all_gather_single", "_allgather_base")
            return partial(launch, result, source, self._make_options("Allgather"))
        launch = self._single("all_to_all_single", "alltoall_base")
        return partial(launch, result, source, [], [], self._make_options("AllToAll"))

    def _make_options(self, name: str, **values: Any) -> Any:
        """Return a new object of torch's option class `{name}Options`, with the attributes in `values` set."""
        options = getattr(self._options, f"{name}Options")()
        for key, value in values.items():
            setattr(options, key, value)
        return options

    def _single(self, name: str, before: str) -> Any:
        """Return the process group's method `name`, which is called `before` in torch older than 2.13."""
        return getattr(self._group, name, None) or getattr(self._group, before)

    def _bind_rooted(
        self, operation: Operation, source: Tensor | None, result: Tensor | None, op: Any, root: int, in_place: bool
    ) -> LaunchCall:
        """Return a function that starts a broadcast, reduce, gather or scatter; arguments as in `bind`."""
        options = self._make_options(operation.value.capitalize(), rootRank=root)
        if operation is Operation.BROADCAST:
            launch = partial(self._group.broadcast, [result], options)
            return launch if in_place or source is None else _copy_then(result, source, launch)
        if operation is Operation.REDUCE:
            options.reduceOp = op
            # On ranks other than the root, Gloo overwrites the tensor with partial sums, so pass a copy of the input.
            into = source.clone() if result is None and source is not None else result
            launch = partial(self._group.reduce, [into], options)
            return launch if in_place else _copy_then(into, source, launch)
        if operation is Operation.GATHER:
            return partial(self._group.gather, [] if result is None else [self._blocks(result)], [source], options)
        return partial(self._group.scatter, [result], [] if source is None else [self._blocks(source)], options)

    def _blocks(self, whole: Tensor) -> list[Tensor]:
        """Return a view of each rank's block of the tensor `whole`, in which all blocks have the same size."""
        return list(whole.view(self._n, whole.numel() // self._n).unbind(0))

    def shutdown(self) -> None:
        """Shut the process group down; no collective can be started afterwards."""
        shutdown = getattr(self._group, "shutdown", None)
        if shutdown is not None:
            shutdown()
        self._group = None


def _copy_then(out: Tensor, source: Tensor, launch: LaunchCall) -> LaunchCall:
    """Return a function that copies `source` to `out` and then calls `launch`, which starts a collective on `out`."""

    def call() -> Any:
        out.copy_(source)
        return launch()

    return call
