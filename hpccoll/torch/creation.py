"""Makes the communicator of a new group of torch.distributed, and the object that torch wants for it."""

from __future__ import annotations

import zlib
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

from hpccoll.communicator import Communicator
from hpccoll.errors import UsageError
from hpccoll.runtime import job
from hpccoll.torch.process_group import HpccollProcessGroup

MOST_TAGS: Final = 32768  # MPI guarantees tags up to 32767


def create_group(options: Any, _: Any) -> Any:
    """Return a group of torch.distributed over the ranks that torch gives; collective over these ranks.

    Raises:
        UsageError: torch's ranks are not those of the MPI job.
    """
    comm = _create_communicator(options)
    timeout = options.timeout
    seconds = timeout if isinstance(timeout, timedelta) else timedelta(seconds=float(timeout))
    return HpccollProcessGroup(comm, seconds, options.store)


def _create_communicator(options: Any) -> Communicator:
    """Return the communicator of a new group; the first group has all ranks of the MPI job."""
    world = job.get_world()
    members = list(options.global_ranks_in_group) or list(range(world.size))
    if not dist.is_initialized() and options.group_size != world.size:
        raise UsageError(
            f"torch.distributed was told that there are {options.group_size} ranks, but the MPI job has {world.size}; "
            f"start the script by mpirun -n {options.group_size}, and leave WORLD_SIZE unset"
        )
    if members[options.group_rank] != world.rank:
        raise UsageError(
            f"torch.distributed calls this process rank {members[options.group_rank]}, but it is rank {world.rank} of "
            "the MPI job; leave RANK and WORLD_SIZE unset, and pass no rank to init_process_group"
        )
    group = world.group.Incl(members)
    comm = world.Create_group(group, tag=zlib.crc32(str(options.group_id).encode()) % MOST_TAGS)
    group.Free()
    return Communicator(comm, adopt=True, mixed_forms=True)
