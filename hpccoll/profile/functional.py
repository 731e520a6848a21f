"""Records the functional collectives of torch, which DTensor and tensor parallelism call.

The argument `group` of a functional collective may be a name or a mesh, and the collective calls the C++ methods of the
group. The function that replaces a functional collective turns the argument `group` into a process group, and records
the address of the result's memory, by which a later call of `wait_tensor` on this result is recognized. Code that
torch.compile compiles calls the original functions.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from hpccoll.native import TracedCall
from hpccoll.profile.traced_methods import FUNCTIONAL, TracedMethod, list_methods

_WAIT: Final = "wait_tensor"


@dataclass(frozen=True, slots=True)
class StartedCollective:
    """A functional collective of torch that has started.

    Args:
        handle: the address of the result's memory, by which the recorder matches the later wait.
        result: the tensor that the collective returned.
    """

    handle: int
    result: Any


def record_functional(make_traced: Callable[[int, TracedMethod, Any], TracedCall]) -> None:
    """Replace the functional collectives of torch, and `wait_tensor`, by functions whose calls are recorded.

    Args:
        make_traced: takes the index of a method in `list_methods`, the method and a function; returns a function that
            behaves like the given function and records its calls.
    """
    for code, method in enumerate(list_methods()):
        original = getattr(functional, method.name, None) if method.owner == FUNCTIONAL else None
        if original is not None and not hasattr(original, "__wrapped__"):
            make_recorded = _make_wait if method.name == _WAIT else _make_collective
            setattr(functional, method.name, make_recorded(original, functools.partial(make_traced, code, method)))


def _make_collective(original: Callable[..., Any], make_traced: Callable[[Any], TracedCall]) -> Callable[..., Any]:
    """Return a function that replaces the functional collective `original` of torch, and whose calls are recorded.

    `make_traced` turns a function into one whose calls are recorded.
    """
    names = list(inspect.signature(original).parameters)
    at_group, at_tag = names.index("group"), names.index("tag")
    at_source = names.index("src") if "src" in names else None

    def run(_group: Any, _tensor: Any, _root: int, call: Callable[[], Any]) -> StartedCollective:
        """Return the collective that `call` starts; the other arguments are there for the recorder to read."""
        result = call()
        return StartedCollective(getattr(result, "elem", result).data_ptr(), result)

    traced = make_traced(run)

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        """Call torch's collective; record the call unless torch.compile compiles it."""
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)

        def find(place: int, default: Any) -> Any:
            """Return the argument at a position of the collective's signature; `default` if it is not given."""
            return args[place] if place < len(args) else kwargs.get(names[place], default)

        group = functional._resolve_group(find(at_group, None), find(at_tag, ""))  # noqa: SLF001 - no public name
        if isinstance(group, str):
            group = dist.distributed_c10d._resolve_process_group(group)  # noqa: SLF001
        root = -1 if at_source is None else find(at_source, 0)
        return traced(group, find(0, None), root, functools.partial(original, *args, **kwargs)).result

    return collective


def _make_wait(original: Callable[[Any], Any], make_traced: Callable[[Any], TracedCall]) -> Callable[[Any], Any]:
    """Return a function that replaces torch's `wait_tensor`, and whose calls are recorded.

    `make_traced` turns a function into one whose calls are recorded.
    """
    traced = make_traced(lambda operation: original(operation.result))

    @functools.wraps(original)
    def wait_tensor(tensor: Any) -> Any:
        """Call torch's `wait_tensor`; record the call unless torch.compile compiles it."""
        if torch.compiler.is_compiling():
            return original(tensor)
        return traced(StartedCollective(tensor.data_ptr(), tensor))

    return wait_tensor
