"""Shows the operations of a process group in Python to torch's dispatch modes, such as `CommDebugMode`.

Dispatch modes observe the operators `torch.ops.c10d`. Torch up to 2.13 calls a process group that is written in Python
without these operators. While a dispatch mode is active, each operation is therefore also called on a process group of
torch's own class, which calls the operator and whose backend does not communicate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch._C import _len_torch_dispatch_stack
from torch._C._distributed_c10d import FakeProcessGroup
from torch.utils._python_dispatch import _disable_current_modes

T = TypeVar("T")
OPERATIONS: Final = (
    "broadcast", "allreduce", "allreduce_coalesced", "reduce", "allgather", "_allgather_base", "all_gather_single",
    "allgather_coalesced", "allgather_into_tensor_coalesced", "all_gather_single_coalesced", "gather", "scatter",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced", "alltoall_base", "all_to_all_single", "alltoall", "barrier", "send", "recv",
)  # fmt: skip


def show_operations(names: Sequence[str] = OPERATIONS) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that lets torch's dispatch modes see the operations `names` of a process group class."""

    def decorate(cls: type[T]) -> type[T]:
        for name in names:
            if hasattr(dist.ProcessGroup, name):  # some versions of torch have fewer names
                setattr(cls, name, _make_visible(name, getattr(cls, name)))
        return cls

    return decorate


def _make_visible(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls `method`, the operation `name` of a process group, and shows it to dispatch modes."""

    @wraps(method)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        """Show the call to torch's dispatch modes, if some are active, then call the method."""
        if not (named or _len_torch_dispatch_stack()):
            return method(self, *args)  # torch names only the options of a barrier; passing no names is faster
        if not _len_torch_dispatch_stack():
            return method(self, *args, **named)
        _enter_operator(self, name, args, named)
        with _disable_current_modes():  # they see neither copies nor other operations of `method`
            return method(self, *args, **named)

    return call


def _enter_operator(group: Any, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Let dispatch modes see the operation `name`, by calling it on a group of torch that does not communicate.

    `args` and `named` are the arguments of the call on `group`; new tensors replace the tensors among them.
    """
    with _disable_current_modes():
        silent = dist.ProcessGroup(group.rank(), group.size())
        backend = FakeProcessGroup._create_internal(group.rank(), group.size())  # noqa: SLF001 - as torch's own tests
        for device in ("cpu", "cuda"):
            silent._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)  # noqa: SLF001
        silent._set_group_name(group.group_name)  # noqa: SLF001
        copies = _replace_tensors(args), _replace_tensors(named)
    getattr(silent, name)(*copies[0], **copies[1])


def _replace_tensors(x: Any) -> Any:
    """Return a copy of nested lists, tuples and dicts, with a new uninitialized tensor in place of each tensor.

    A new tensor has the shape, dtype and device of the old one, and is contiguous.
    """
    if isinstance(x, torch.Tensor):
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if isinstance(x, dict):
        return {name: _replace_tensors(value) for name, value in x.items()}
    return type(x)(_replace_tensors(element) for element in x) if isinstance(x, list | tuple) else x
