"""Makes the process group or the backend that torch.distributed wants for a new group."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from hpccoll.communicator import Communicator
from hpccoll.errors import UsageError
from hpccoll.runtime import job
from hpccoll.torch.communicators import duplicate_world, list_kept, open_communicator
from hpccoll.torch.lost_ranks import find_communicator
from hpccoll.torch.shrinking import let_torch_shrink_groups


def create_group(options: Any, backend_options: Any, timeout: timedelta) -> Any:
    """Return a process group, or a backend if the group has several backends; collective over the group's ranks.

    Args:
        options: torch's description of the group: its ranks, its name and its store.
        backend_options: the `pg_options` of the user, or None.
        timeout: the time limit of this call, and of each operation of the group.

    Raises:
        UsageError: torch's ranks are not those of the MPI job, or `backend_options` are those of another backend.
    """
    duplicate_world(timeout)
    members = _find_members(options)
    comm = open_communicator(members, str(options.group_id), timeout)
    made = make_group(comm, members, options.group_id, timeout, options.store, backend_options)
    if not takes_python_backends():
        return made
    from hpccoll.torch.message_group import MessageGroup, find_devices

    devices, group = find_devices("hpccoll"), options.process_group
    return MessageGroup(made, group.get_group_store(), devices, group.bound_device_id) if devices else made


def make_group(
    comm: Communicator, members: Sequence[int], name: str, timeout: timedelta, store: Any, backend_options: Any = None
) -> Any:
    """Return a backend over a communicator, or a process group if torch accepts no backends written in Python. Local.

    Args:
        comm: a communicator of the group's ranks, made with `mixed_forms=True`.
        members: the global ranks of the group.
        name: torch's name of the group.
        timeout: the time allowed for an operation.
        store: torch's key-value store of the group.
        backend_options: the `pg_options` of the user, or None.
    """
    let_torch_shrink_groups()
    if not takes_python_backends():
        from hpccoll.torch.process_group import HpccollProcessGroup

        return HpccollProcessGroup(comm, timeout, store)
    from hpccoll.torch.backend import HpccollBackend, make_options

    backend = HpccollBackend(comm, make_options(backend_options, timeout, members, name), store)
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        list_kept().append(backend)  # torch's wrapper keeps only the backend's C++ part alive
    return backend


@cache
def takes_python_backends() -> bool:
    """Whether this torch lets Python derive from its class of backends; torch up to 2.13 does not."""

    class Probe(Backend):
        """A backend without operations, to try whether torch can construct it."""

    try:
        Probe(0, 1)
    except TypeError:  # torch up to 2.13: "No constructor defined!"
        return False
    return True


def _find_members(options: Any) -> list[int]:
    """Return the ranks in MPI.COMM_WORLD of a new group's members; `options` are torch's description of the group.

    Raises UsageError if this process's rank or the number of ranks differs between torch and the MPI job.
    """
    world = job.get_world()
    world_ranks = _list_world_ranks(world.size)
    members = [world_ranks[rank] for rank in options.global_ranks_in_group] or world_ranks
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
    return members


def _list_world_ranks(size: int) -> list[int]:
    """Return the list of the ranks in MPI.COMM_WORLD that correspond to torch's global ranks.

    Torch's and MPI's ranks are equal until `shrink_group` shrinks the default group. `size` is the size of
    MPI.COMM_WORLD.
    """
    if not dist.is_initialized() or dist.get_world_size() == size:
        return list(range(size))
    return list(job.list_world_ranks(find_communicator(None).mpi) or ())
