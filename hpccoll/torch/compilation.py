"""Keeps torch.compile out of the methods that torch.distributed calls."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


def exempt_from_compilation(cls: type[T]) -> type[T]:
    """Mark the methods of a class, so that torch.compile compiles neither them nor what they call; return the class.

    A compiled function may call a collective from C++, as DDP does at the second training step; torch.compile would
    then trace the collective, and fail at objects that it does not know. Marked methods are not slower than unmarked
    methods.
    """
    exempt_functions(method for method in vars(cls).values() if inspect.isfunction(method))
    return cls


def exempt_functions(functions: Iterable[Any]) -> None:
    """Mark Python functions, so that torch.compile compiles neither them nor the functions that they call."""
    frames = import_module("torch._C._dynamo.eval_frame")  # torch.compiler.disable would load torch._dynamo
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)  # noqa: SLF001
    for function in functions:
        frames.set_code_exec_strategy(function.__code__, skip)
