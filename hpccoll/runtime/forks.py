"""Objects that refuse their use in a forked child process, where MPI cannot be used."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from weakref import WeakKeyDictionary


def abandon_at_fork(owner: object, abandon: Callable[[], object]) -> None:
    """Call `abandon` in each forked child process, as long as `owner` lives; `abandon` may not refer to `owner`.

    To detect a fork by comparing process ids would cost a system call in every call of hpccoll.
    """
    _get_owners()[owner] = abandon


@cache
def _get_owners() -> WeakKeyDictionary[object, Callable[[], object]]:
    """Return the objects of this process that a fork affects, with the function to call for each."""
    owners: WeakKeyDictionary[object, Callable[[], object]] = WeakKeyDictionary()

    def abandon_all() -> None:
        """In a forked child, call the function of every object."""
        for abandon in list(owners.values()):
            abandon()

    os.register_at_fork(after_in_child=abandon_all)
    return owners
