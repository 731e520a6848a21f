"""Error messages for names of mpi4py's methods: they state the method of `Communicator` that does the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

# The calls of hpccoll that replace methods of mpi4py, by the method's name in lower case.
# The keys are the names without the `i` of non-blocking methods and the `_init` of persistent methods.
_REPLACEMENTS: Final = {
    "allreduce": "all_reduce(x, op='sum')",
    "reduce": "reduce(x, root=0)",
    "scan": "scan(x)",
    "exscan": "exscan(x)",
    "bcast": "broadcast(x, root=0)",
    "allgather": "all_gather(x)",
    "allgatherv": "all_gather(x, counts=counts)",
    "gather": "gather(x, root=0)",
    "gatherv": "gather(x, root=0, counts=counts)",
    "scatter": "scatter(x, root=0, out=block)",
    "scatterv": "scatter(x, root=0, counts=counts, out=block)",
    "reduce_scatter": "reduce_scatter(x, counts=counts)",
    "reduce_scatter_block": "reduce_scatter(x)",
    "alltoall": "all_to_all(x)",
    "alltoallv": "all_to_all(x, counts=sent, out_counts=received)",
    "barrier": "barrier()",
    "send": "send(x, dest)",
    "recv": "recv(x, source)",
    "sendrecv": "sendrecv(x, dest, source, out=y)",
    "get_rank": "rank",
    "get_size": "size",
    "split": "split(color, key)",
    "create_group": "new_group(ranks)",
    "create_cart": "cart(dims, periods)",
    "get_coords": "cart(dims).coords",
    "shift": "cart(dims).shift(dim, displacement)",
    "neighbor_allgather": "cart(dims).neighbor_all_gather(x)",
    "neighbor_alltoall": "cart(dims).neighbor_all_to_all(x)",
    "free": "close()",
}
# Replacements of mpi4py's methods for Python objects, whose names have a lower-case first letter.
_OBJECT_REPLACEMENTS: Final = {
    "allreduce": "all_reduce(number)",
    "bcast": "broadcast_object(obj)",
    "allgather": "all_gather_object(obj)",
}


class Mpi4pyNames:
    """A base class whose AttributeError for a method of mpi4py, such as `comm.Allreduce`, states hpccoll's method."""

    if not TYPE_CHECKING:  # otherwise type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            replacement = find_replacement(name)
            if replacement is not None:
                message += f"; use comm.{replacement}, or mpi4py's own method: comm.mpi.{name}"
            raise AttributeError(message, name=name, obj=self)


def find_replacement(name: str) -> str | None:
    """Return the call of hpccoll, such as `all_reduce(x)`, that does the same as mpi4py's method `name`, else None."""
    if name in _OBJECT_REPLACEMENTS:
        return _OBJECT_REPLACEMENTS[name]
    method, is_prepared = name.removesuffix("_init").lower(), name.endswith("_init")
    if method in _REPLACEMENTS:
        replacement = _REPLACEMENTS[method]
        return replacement.replace("(", "_init(", 1) if is_prepared else replacement
    blocking = _REPLACEMENTS.get(method.removeprefix("i"), "")
    if not blocking.endswith(")"):
        return None
    if method.endswith(("send", "recv")):
        return f"i{blocking}"
    return f"{blocking.removesuffix(')')}, async_op=True)".replace("(, ", "(")
