"""Objects that refuse their use in a forked child process, where MPI cannot be used."""

from __future__ import annotations

import os
from functools import cache
from typing import Protocol
from weakref import WeakSet


class Abandonable(Protocol):
    """An object that is hashable and can be referenced weakly."""

    def abandon(self) -> None:
        """Refuse later uses and release nothing."""


def abandon_at_fork(owner: Abandonable) -> None:
    """Call `owner.abandon` in each forked child process, as long as `owner` lives.

    To detect a fork by comparing process ids would cost a system call in every call of hpccoll.
    """
    _get_owners().add(owner)


@cache
def _get_owners() -> WeakSet[Abandonable]:
    """Return the objects of this process that a fork affects."""
    owners: WeakSet[Abandonable] = WeakSet()

    def abandon_all() -> None:
        """Abandon, in a forked child, all objects that a fork affects."""
        for owner in owners:
            owner.abandon()

    os.register_at_fork(after_in_child=abandon_all)
    return owners
