"""Objects that refuse their use in a forked child process, where MPI cannot be used."""

from __future__ import annotations

import os
from functools import cache
from typing import Protocol
from weakref import WeakSet


class Abandonable(Protocol):
    """An object that `abandon_at_fork` accepts: it is hashable, can be referenced weakly, and has `abandon`."""

    def abandon(self) -> None:
        """Refuse later uses of this object, and release none of its resources."""


def abandon_at_fork(owner: Abandonable) -> None:
    """Call `owner.abandon` in each forked child process, as long as `owner` lives.

    To detect a fork by comparing process ids would cost a system call in every call of hpccoll.
    """
    _get_owners().add(owner)


@cache
def _get_owners() -> WeakSet[Abandonable]:
    """Return the set of the living objects that were passed to `abandon_at_fork` in this process.

    The first call registers the function that abandons these objects in forked child processes.
    """
    owners: WeakSet[Abandonable] = WeakSet()

    def abandon_all() -> None:
        """Abandon, in a forked child, all objects that a fork affects."""
        for owner in owners:
            owner.abandon()

    os.register_at_fork(after_in_child=abandon_all)
    return owners
