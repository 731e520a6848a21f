"""The methods that torch.distributed.shrink_group calls: they make a group without some ranks, which may be dead."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, Final

import torch
import torch.distributed as dist

from hpccoll.communicator import Communicator
from hpccoll.errors import RankLostError, UsageError
from hpccoll.failures.fault_tolerance import find_dead, is_enabled

EXCLUSION_S: Final = 1.0  # seconds within which MPI must report the death of a rank that the program excludes
SHRUNK: Final = "torch.distributed.shrink_group has replaced the group; use the group that it returned"
CREATE: Final = "_create_shrunk_process_group"  # torch's function that makes a process group over a shrunk backend


class Shrinkable:
    """A group that `torch.distributed.shrink_group` can shrink: base class of the process group and the backend."""

    comm: Communicator
    unusable: str
    _store: Any  # torch's key-value store of the group
    global_ranks: Sequence[int] = ()  # of a group that `shrink` made: torch's global ranks before the shrink
    _smaller: Communicator | None = None  # communicator of the living ranks, made by a `shrink` after a death
    _living: tuple[int, ...] = ()  # the ranks of `_smaller` in this group

    @property
    def supports_shrinking(self) -> bool:
        """Whether torch may call `shrink`."""
        return True

    def shrink(self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, options: Any = None) -> Any:  # noqa: ARG002
        """Return a group of all ranks but `ranks_to_exclude`, in this group's order; collective over the new group.

        The excluded ranks may be dead; after a death, they must be the dead ranks. Operations in flight are not
        continued.

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
        store = dist.PrefixStore("shrunk", self._store)  # keys of this group may be left in the store
        return self._make_shrunk(made, left, store, options)

    @abstractmethod
    def _make_shrunk(self, comm: Communicator, left: Sequence[int], store: Any, options: Any) -> Any:
        """Return a group over `comm`, whose ranks are the ranks `left` of this group; local.

        `store` is the store of the new group, and `options` are torch's options of the new backend, or None.
        """

    @abstractmethod
    def make_process_group(self, name: str, devices: Sequence[Any], bound_device: Any) -> Any:
        """Return torch's process group over this group or backend, which `shrink` has made; local.

        Args:
            name: torch's name of the process group.
            devices: the devices whose tensors this group communicates.
            bound_device: the device that torch has bound to the group, or None.
        """

    def _open_smaller(self, left: tuple[int, ...], excluded: Sequence[int]) -> Communicator:
        """Return a communicator of the ranks `left` of this group; collective over these ranks.

        `excluded` are the other ranks of this group. After a death, UsageError is raised unless `excluded` are the dead
        ranks.
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
    """Shrink `comm` to its living ranks; return the new communicator, and `ranks` without the entries of dead ranks.

    `ranks` has one entry per rank of `comm`, such as the rank's number in another group. Collective over the living
    ranks.
    """
    before = comm.mpi.Get_group()
    made = comm.shrink()
    after = made.mpi.Get_group()
    living = tuple(ranks[old] for old in after.Translate_ranks(range(made.size), before))
    before.Free()
    after.Free()
    return made, living


@cache
def let_torch_shrink_groups() -> None:
    """Let torch's `shrink_group` return process groups of this package over the groups and backends that it shrinks.

    Torch's private function `_create_shrunk_process_group` is replaced for `Shrinkable`s. Up to torch 2.13, it accepts
    only backends written in C++. From 2.14, it registers every CPU backend as Gloo, so that the constructor of
    `DistributedDataParallel` takes the backend for one of Gloo and crashes (`Logger::set_env_variables`). It also
    connects to the store again, which does not succeed after the death of the rank that has the store.
    """
    module = dist.distributed_c10d
    create: Callable[..., Any] | None = getattr(module, CREATE, None)
    if create is None:
        return

    @wraps(create)
    def create_or_wrap(new_backend: Any, ranks: list[int], metadata: dict[str, Any], is_default: bool) -> Any:
        """Return hpccoll's process group over a shrunk `Shrinkable`, and torch's over any other shrunk backend.

        The arguments are those of torch's function. The group gets the name and the description that torch would set.
        For a `Shrinkable`, the list `ranks` is overwritten with the group's global ranks, which torch then registers,
        because torch computes wrong ones if the shrunk group is not the default group.
        """
        if not isinstance(new_backend, Shrinkable):
            return create(new_backend, ranks, metadata, is_default)
        ranks[:] = new_backend.global_ranks  # torch has removed ranks of the group from a list of global ranks
        name = metadata["new_group_name"]
        backends = module.BackendConfig(module.Backend(metadata["backend_config"])).get_device_backend_map()
        devices = [torch.device(device) for device, each in backends.items() if each == "hpccoll"]
        group = new_backend.make_process_group(name, devices, metadata.get("bound_device_id"))
        group._set_group_name(name)  # noqa: SLF001 - torch has no public name
        description = "default:shrunken" if is_default else f"{metadata['original_group_name']}:shrunk"
        group._set_group_desc(description)  # noqa: SLF001 - as above
        return group

    setattr(module, CREATE, create_or_wrap)
