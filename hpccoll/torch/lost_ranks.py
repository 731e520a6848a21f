"""The dead ranks of a group, for torch.distributed.shrink_group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator


def find_lost_ranks(group: Any = None) -> list[int]:
    """Return the dead ranks of a group of the backend "hpccoll", after an operation of the group has failed.

    The returned numbers are ranks of the group, as `torch.distributed.shrink_group` takes them. Returns an empty list
    if all ranks live, or if the job was not started with `mpirun --with-ft ulfm`.

    Args:
        group: a process group; None means the default group of all ranks.
    """
    return list(find_communicator(group).lost_ranks)


def find_communicator(group: Any) -> Communicator:
    """Return hpccoll's communicator of a process group of the backend "hpccoll"; of all ranks if `group` is None."""
    group = dist.group.WORLD if group is None else group
    backend = group if hasattr(group, "comm") else group._get_backend(group._device_types[0])  # noqa: SLF001 - as torch
    comm: Communicator = backend.comm
    return comm
