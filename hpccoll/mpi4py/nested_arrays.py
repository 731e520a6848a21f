"""Takes the arrays out of tuples, lists and dicts, so that only the rest is pickled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hpccoll.mpi4py.array_libraries import find_library

MOST_ITEMS: Final = 256  # containers with more items are pickled as they are
MOST_DEPTH: Final = 8
CONTAINERS: Final = frozenset((tuple, list, dict))
LEAVES: Final = frozenset((int, float, complex, bool, str, bytes, type(None)))


class ArrayPlace:
    """Stands in a container for an array that was taken out: the array's index in the list of `take_arrays_out`."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayPlace, (self.number,)


def may_hold_arrays(container: Any, depth: int = 0) -> bool:
    """Whether a tuple, list or dict contains an array. Cost: 0.5 us for a small dict.

    `depth` is the number of containers around this one. If it is above MOST_DEPTH, or the container has more than
    MOST_ITEMS items, the result is false.
    """
    if len(container) > MOST_ITEMS or depth > MOST_DEPTH:
        return False
    for item in container.values() if type(container) is dict else container:
        kind = type(item)
        if kind in LEAVES:
            continue
        if may_hold_arrays(item, depth + 1) if kind in CONTAINERS else find_library(item) is not None:
            return True
    return False


def take_arrays_out(obj: Any, least_bytes: int) -> tuple[Any, list[Any]]:
    """Return a copy of a container with an `ArrayPlace` for each array of at least `least_bytes`, and these arrays.

    Several occurrences of one array, tuple, list or dict in the container are occurrences of one object in the result,
    too. A container that contains itself is returned as it is, with an empty list of arrays.
    """
    replaced: dict[int, Any] = {}
    arrays: list[Any] = []
    visited: set[int] = set()

    def replace(item: Any, depth: int) -> Any:
        """Return `item` with its arrays taken out; `depth` is the number of containers around it."""
        if id(item) in replaced:
            return replaced[id(item)]
        if find_library(item) is not None and item.nbytes >= least_bytes:
            replaced[id(item)] = ArrayPlace(len(arrays))
            arrays.append(item)
            return replaced[id(item)]
        kind: Any = type(item)
        if kind not in (tuple, list, dict) or len(item) > MOST_ITEMS or depth > MOST_DEPTH:
            return item
        if id(item) in visited:
            raise RecursionError("a container contains itself")
        visited.add(id(item))
        count_before = len(arrays)
        if kind is dict:
            copy = {key: replace(value, depth + 1) for key, value in item.items()}
        else:
            copy = kind([replace(value, depth + 1) for value in item])
        replaced[id(item)] = result = copy if len(arrays) > count_before else item
        return result

    try:
        return replace(obj, 0), arrays
    except RecursionError:
        return obj, []


def put_arrays_back(obj: Any, arrays: Sequence[Any]) -> Any:
    """Return a result of `take_arrays_out` with `arrays` in place of each `ArrayPlace`; changes its lists and dicts."""
    restored: dict[int, Any] = {}

    def replace(item: Any, depth: int) -> Any:
        """Return `item` with arrays in place of each `ArrayPlace`; `depth` is the number of containers around it."""
        if type(item) is ArrayPlace:
            return arrays[item.number]
        if id(item) in restored or type(item) not in (tuple, list, dict) or depth > MOST_DEPTH + 1:
            return restored.get(id(item), item)
        result: Any = item
        if type(item) is dict:
            for key, value in item.items():
                item[key] = replace(value, depth + 1)
        elif type(item) is list:
            item[:] = [replace(value, depth + 1) for value in item]
        else:
            result = tuple([replace(value, depth + 1) for value in item])
        restored[id(item)] = result
        return result

    return replace(obj, 0)
