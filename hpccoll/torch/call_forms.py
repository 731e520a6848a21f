"""The short forms in which torch lets users call a process group: single tensors, and arguments in place of options.

Up to torch 2.13, a process group in Python gets the arguments as the user wrote them: `group.allreduce(x, op=MAX)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

# For each operation: torch's class of options, and the arguments, in order, that users may pass in place of options.
FORMS: Final[Mapping[str, tuple[Any, Sequence[str]]]] = {
    "allreduce": (dist.AllreduceOptions, ("op", "timeout")),
    "allreduce_coalesced": (dist.AllreduceCoalescedOptions, ("op", "timeout")),
    "broadcast": (dist.BroadcastOptions, ("root", "timeout")),
    "reduce": (dist.ReduceOptions, ("root", "op", "timeout")),
    "gather": (dist.GatherOptions, ("root", "timeout")),
    "scatter": (dist.ScatterOptions, ("root", "timeout")),
    "reduce_scatter": (dist.ReduceScatterOptions, ("op", "timeout")),
}
FIELDS: Final = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}


def make_options(operation: str, given: Any, more: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Return torch's options, such as `AllreduceOptions`, for a call of a process group's method.

    Users may pass the fields of the options, such as `op` and `timeout`, in place of the options.

    Args:
        operation: the name of the method, such as `allreduce`.
        given: the user's options, or the first field of the options, or None.
        more: the fields of the options that follow `given`, by position.
        named: fields of the options by name.

    Raises:
        TypeError: there are too many arguments, or an argument has an unknown name.
    """
    kind, names = FORMS[operation]
    if isinstance(given, kind):
        return given
    values = dict(zip(names, (given, *more), strict=False)) if given is not None or more else {}
    unknown = set(named) - set(names)
    if unknown or len(more) >= len(names) or set(named) & set(values):
        wrong = ", ".join(sorted(unknown)) or "the given arguments"
        raise TypeError(f"{operation} takes {kind.__name__}, or {', '.join(names)}; not {wrong}")
    options = kind()
    for name, value in (values | dict(named)).items():
        if value is not None:
            setattr(options, FIELDS[name], value)
    return options


def list_tensors(x: Any) -> Any:
    """Return a tensor as a list of one tensor, and a list of tensors unchanged."""
    return [x] if isinstance(x, torch.Tensor) else x


def nest_lists(outputs: Any, inputs: Any) -> tuple[Any, Any]:
    """Return the outputs and inputs of a gather or scatter in torch's long form, with one list per device of a process.

    In the short form, one of outputs and inputs is a tensor; the other is a list of one tensor per rank, or None.
    Arguments in the long form are returned unchanged.
    """
    if isinstance(inputs, torch.Tensor):
        return ([outputs] if outputs else []), [inputs]
    if isinstance(outputs, torch.Tensor):
        return [outputs], ([inputs] if inputs else [])
    return outputs, inputs
