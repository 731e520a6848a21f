"""The examples of `hpccoll demo`, which the file examples.toml of this package describes.

In the example `ring_all_reduce_5`, chunk c of rank r's vector is (c + 1) * 10**r, so the digits of a sum show the chunk
and the ranks that were added.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import UnknownNameError
from hpccoll.plan import Operation


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An example of `hpccoll demo`: functions to call on MPI ranks, their arguments, and texts to print."""

    name: str
    ranks: int  # number of ranks on which the example runs
    # Names of the functions in in_*.py that the example runs, each on new copies of the arguments
    calls: tuple[str, ...]
    # For each argument of a call, its value on rank 0, 1 and so on: a number, or a list for an array. Ranks beyond the
    # last value get None.
    inputs: tuple[tuple[list[Any] | float, ...], ...]
    description: tuple[str, str]  # two lines of text
    # Table headings of the arguments and of all results
    titles: tuple[tuple[str, ...], tuple[str, ...]] = (("before",), ("after",))
    # The collective that `algorithm` runs; None if the example is not about one collective
    operation: Operation | None = None
    algorithm: str = ""  # the name of the algorithm that runs the operation, and that `hpccoll demo` draws
    accepts_algorithm: bool = True  # whether the option `--algorithm` may choose another algorithm

    def make_arguments(self, rank: int) -> tuple[NDArray[np.float32] | float | None, ...]:
        """Return the arguments of the example's calls on `rank`: new float32 arrays, numbers, or None."""
        values = [array[rank] if rank < len(array) else None for array in self.inputs]
        return tuple(np.array(value, np.float32) if isinstance(value, list) else value for value in values)


def _load_examples() -> tuple[Example, ...]:
    """Return the examples of `hpccoll demo`, which the file examples.toml describes."""
    text = resources.files("hpccoll.demo").joinpath("examples.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, tuple[Example, ...]])["examples"]


EXAMPLES = _load_examples()


def get_example(name: str) -> Example:
    """Return the example `name` of `hpccoll demo`; raise UnknownNameError, with the valid names, if there is none."""
    for example in EXAMPLES:
        if example.name == name:
            return example
    raise UnknownNameError("example", name, [example.name for example in EXAMPLES])


def find_example(operation: Operation) -> Example | None:
    """Return the first example of `operation` that accepts any algorithm of the operation; None if there is none."""
    return next((example for example in EXAMPLES if example.operation is operation and example.accepts_algorithm), None)
