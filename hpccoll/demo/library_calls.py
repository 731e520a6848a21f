"""The source code of an example's calls in each library, taken from the functions that run."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hpccoll.demo import in_hpccoll, in_mpi4py, in_torch
from hpccoll.demo.examples import Example

LIBRARIES: dict[str, ModuleType] = {"hpccoll": in_hpccoll, "mpi4py": in_mpi4py, "torch.distributed": in_torch}


def format_library_calls(example: Example) -> dict[str, str]:
    """Return a dict from each library's name (hpccoll, mpi4py, torch.distributed) to the code of an example's calls."""
    return {
        library: "\n\n".join(get_function_body(getattr(module, call)) for call in example.calls)
        for library, module in LIBRARIES.items()
    }


def get_function_body(function: Callable[..., Any]) -> str:
    """Return the source code of a function's body, without the docstring and the last statement, its return."""
    source = textwrap.dedent(inspect.getsource(function))
    definition = ast.parse(source).body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise TypeError(f"{function} is not a plain function")
    statements = definition.body[1:-1]
    lines = source.splitlines()[statements[0].lineno - 1 : statements[-1].end_lineno]
    return textwrap.dedent("\n".join(re.sub(r"\s*# noqa.*", "", line) for line in lines))
