"""A least-recently-used cache that tells what it drops."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LeastRecent(Generic[Value]):
    """At most `capacity` entries; the one that was not used for longest goes first, through `dropped`."""

    def __init__(self, capacity: int, dropped: Callable[[Value], object] | None = None) -> None:
        self._capacity, self._dropped = capacity, dropped
        self._entries: OrderedDict[Hashable, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Value | None:
        """Return the entry and mark it as used, or None."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: Hashable, value: Value) -> None:
        """Add an entry, dropping the least recent where there is no room."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > self._capacity:
            _, old = self._entries.popitem(last=False)
            self._drop(old)

    def clear(self) -> None:
        """Drop everything."""
        while self._entries:
            self._drop(self._entries.popitem()[1])

    def _drop(self, value: Value) -> None:
        if self._dropped is not None:
            self._dropped(value)
