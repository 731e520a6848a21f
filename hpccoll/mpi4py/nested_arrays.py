"""Takes the arrays out of tuples, lists and dicts, so that only the rest is pickled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hpccoll.mpi4py.array_libraries import find_library

MOST_ITEMS: Final = 256  # containers with more items are pickled as they are
MOST_DEPTH: Final = 8


class ArrayPlace:
    """The place of an array that was taken out of a container: its number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayPlace, (self.number,)


def take_arrays_out(obj: Any, least_bytes: int) -> tuple[Any, list[Any]]:
    """Return a copy of a container with an `ArrayPlace` for each array of at least `least_bytes`, and these arrays.

    An array, a tuple, a list or a dict that occurs several times occurs as often in the result, as one object.
    """
    places: dict[int, Any] = {}
    arrays: list[Any] = []
    entered: set[int] = set()

    def replace(item: Any, depth: int) -> Any:
        """Return an item with its arrays taken out; `depth` is the number of containers around it."""
        if id(item) in places:
            return places[id(item)]
        if find_library(item) is not None and item.nbytes >= least_bytes:
            places[id(item)] = ArrayPlace(len(arrays))
            arrays.append(item)
            return places[id(item)]
        kind: Any = type(item)
        if kind not in (tuple, list, dict) or len(item) > MOST_ITEMS or depth > MOST_DEPTH:
            return item
        if id(item) in entered:
            raise RecursionError("a container contains itself")
        entered.add(id(item))
        before = len(arrays)
        if kind is dict:
            copy = {key: replace(value, depth + 1) for key, value in item.items()}
        else:
            copy = kind([replace(value, depth + 1) for value in item])
        places[id(item)] = result = copy if len(arrays) > before else item
        return result

    try:
        return replace(obj, 0), arrays
    except RecursionError:
        return obj, []


def put_arrays_back(obj: Any, arrays: Sequence[Any]) -> Any:
    """Return the container from which `take_arrays_out` took arrays, with the given arrays at their places."""
    done: dict[int, Any] = {}

    def replace(item: Any, depth: int) -> Any:
        """Return an item with arrays in place of each `ArrayPlace`; `depth` is the number of containers around it."""
        if type(item) is ArrayPlace:
            return arrays[item.number]
        if id(item) in done or type(item) not in (tuple, list, dict) or depth > MOST_DEPTH + 1:
            return done.get(id(item), item)
        result: Any = item
        if type(item) is dict:
            for key, value in item.items():
                item[key] = replace(value, depth + 1)
        elif type(item) is list:
            item[:] = [replace(value, depth + 1) for value in item]
        else:
            result = tuple([replace(value, depth + 1) for value in item])
        done[id(item)] = result
        return result

    return replace(obj, 0)
