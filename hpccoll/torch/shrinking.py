"""The methods that torch.distributed.shrink_group calls: they make a group without some ranks, which may be dead."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, Final

import torch.distributed as dist

from hpccoll.communicator import Communicator
from hpccoll.errors import RankLostError, UsageError
from hpccoll.runtime.fault_tolerance import find_dead, is_enabled

EXCLUSION_S: Final = 1.0  # until MPI must know of the death of a rank that the program excludes
SHRUNK: Final = "torch.distributed.shrink_group has replaced the group; use the group that it returned"
CREATE: Final = "_create_shrunk_process_group"  # torch's function that makes a process group over a shrunk backend


class Shrinkable:
    """A group that `torch.distributed.shrink_group` can shrink: base class of the process group and the backend."""

    comm: Communicator
    unusable: str
    _smaller: Communicator | None = None  # of the living ranks, made by a `shrink` after a death
    _living: tuple[int, ...] = ()  # the ranks of `_smaller` in this group

    @property
    def supports_shrinking(self) -> bool:
        """Whether torch may call `shrink`."""
        return True

    def shrink(self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, options: Any = None) -> Any:  # noqa: ARG002
        """Return a group without some ranks, which may be dead, in the order of this group; collective over the others.

        After the death of a rank, the excluded ranks must be the dead ones. Operations in flight are not continued.

        Args:
            ranks_to_exclude: ranks of this group.
            shrink_flags: is ignored, because a death ends operations in flight by itself.
            options: torch's options of the new backend, or None.

        Raises:
            UsageError: after a death, other ranks than the dead ones are excluded.
        """
        left = tuple(rank for rank in range(self.comm.size) if rank not in ranks_to_exclude)
        made = self._open_smaller(left, ranks_to_exclude)
        self.unusable = SHRUNK
        return self._make_shrunk(made, left, options)

    @abstractmethod
    def _make_shrunk(self, comm: Communicator, left: Sequence[int], options: Any) -> Any:
        """Return a group over `comm`, whose ranks are the ranks `left` of this group; local.

        `options` are torch's options of the new backend, or None.
        """

    def _open_smaller(self, left: tuple[int, ...], excluded: Sequence[int]) -> Communicator:
        """Return a communicator of the ranks `left` of this group; collective over these ranks.

        `excluded` are the other ranks. After a death, UsageError is raised unless `excluded` are the dead ranks.
        """
        if not self.comm.lost_ranks and self._smaller is None:
            try:
                made = self.comm.new_group(left)
                if made is not None:
                    return made
            except RankLostError:  # the program knew of the death first
                pass
        if self._smaller is None:
            self._require_dead(excluded)
            self._smaller, self._living = _shrink(self.comm, tuple(range(self.comm.size)))
        elif self._smaller.lost_ranks:
            self._smaller, self._living = _shrink(self._smaller, self._living)
        if self._living != left:
            dead = [rank for rank in range(self.comm.size) if rank not in self._living]
            raise UsageError(f"shrink_group excludes ranks {list(excluded)}, but ranks {dead} are dead; exclude these")
        return self._smaller

    def _require_dead(self, excluded: Sequence[int]) -> None:
        """Raise UsageError unless the ranks `excluded` are dead, because shrinking waits for all living ranks."""
        end, alive = time.monotonic() + EXCLUSION_S, set(excluded)
        while alive and is_enabled() and time.monotonic() < end:
            alive = set(excluded) - set(find_dead(self.comm.mpi))
            time.sleep(0.01 if alive else 0)
        if alive:
            raise UsageError(
                f"shrink_group excludes ranks {sorted(alive)}, which live; after the death of ranks "
                f"{list(self.comm.lost_ranks)} exclude only dead ranks"
            )


def _shrink(comm: Communicator, ranks: tuple[int, ...]) -> tuple[Communicator, tuple[int, ...]]:
    """Shrink a communicator to its living ranks; return the new one and the living ranks. Collective over them.

    `ranks` has a number for each rank of `comm`, such as its rank in another group; the result has those numbers.
    """
    before = comm.mpi.Get_group()
    made = comm.shrink()
    after = made.mpi.Get_group()
    living = tuple(ranks[old] for old in after.Translate_ranks(range(made.size), before))
    before.Free()
    after.Free()
    return made, living


@cache
def let_torch_shrink_process_groups() -> None:
    """Let torch's `shrink_group` accept a process group of Python in the place of a backend.

    Torch up to 2.13 can make a process group only over a backend written in C++. Torch's
    function `_create_shrunk_process_group` is replaced by one that returns a shrunk process group of Python as it is.
    """
    module = dist.distributed_c10d
    create: Callable[..., Any] | None = getattr(module, CREATE, None)
    if create is None:
        return

    @wraps(create)
    def create_or_return(new_backend: Any, ranks: list[int], metadata: dict[str, Any], is_default: bool) -> Any:
        """Return a shrunk process group of hpccoll as it is, and torch's process group over any other shrunk backend.

        The arguments are those of torch's function. The name and the global ranks are set as torch sets them.
        """
        if not isinstance(new_backend, Shrinkable):
            return create(new_backend, ranks, metadata, is_default)
        group: Any = new_backend
        ranks[:] = group.global_ranks  # torch has removed ranks of the group from a list of global ranks
        group._set_group_name(metadata["new_group_name"])  # noqa: SLF001 - torch has no public name
        description = "default:shrunken" if is_default else f"{metadata['original_group_name']}:shrunk"
        group._set_group_desc(description)  # noqa: SLF001 - as above
        return group

    setattr(module, CREATE, create_or_return)
