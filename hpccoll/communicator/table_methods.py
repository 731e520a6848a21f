"""A decorator for the methods of collectives, with which repeated calls run in C without the method's Python code."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from inspect import Parameter, signature
from typing import Any, Final, TypeVar, cast

from hpccoll.native import TableMethod
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import SUM

MethodT = TypeVar("MethodT", bound=Callable[..., Any])
_MISSING: Final = object()  # stands for the default value of a parameter that has none
# A call in the table of calls is blocking and has equal blocks, so these parameters must be False or None.
_ROLES: Final = {"async_op": "false", "counts": "none", "out_counts": "none"}


def run_known_calls(operation: Operation) -> Callable[[MethodT], MethodT]:
    """Return a decorator of a communicator's method: the object's table of calls carries out calls of a known kind.

    The decorated method calls the Python function for all other calls. The table is the `CallTable` in the attribute
    `_table`, which finds out whether a call is of a known kind.
    """

    def decorate(function: MethodT) -> MethodT:
        """Return the method that looks up its calls in the table, and calls `function` for unknown calls."""
        parameters = list(signature(function).parameters.values())[1:]
        names = tuple(parameter.name for parameter in parameters)
        method = TableMethod(
            function,
            "_table",
            names,
            tuple(_ROLES.get(name, name) for name in names),
            tuple(_MISSING if each.default is Parameter.empty else each.default for each in parameters),
            _MISSING,
            sum(parameter.kind is Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters),
            (operation, None, None, SUM, 0, "auto", None),
        )
        return cast("MethodT", update_wrapper(method, function))

    return decorate
