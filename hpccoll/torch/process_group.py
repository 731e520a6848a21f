"""The process group that torch.distributed up to 2.13 takes from a backend written in Python."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hpccoll.communicator import Communicator
from hpccoll.torch.compilation import exempt_from_compilation
from hpccoll.torch.dispatch_modes import show_operations
from hpccoll.torch.group_operations import GroupOperations
from hpccoll.torch.monitored_barrier import MonitoredBarrier
from hpccoll.torch.shrinking import Shrinkable
from hpccoll.torch.work import advance_operations


@exempt_from_compilation
@show_operations()
class HpccollProcessGroup(Shrinkable, GroupOperations, dist.ProcessGroup):  # type: ignore[misc]
    """A process group of torch.distributed over a communicator of hpccoll, for torch up to 2.13.

    Torch calls operations by old and by new names, so the class has both.
    """

    def __init__(self, comm: Communicator, timeout: timedelta, store: Any) -> None:
        dist.ProcessGroup.__init__(self, comm.rank, comm.size)
        self.comm, self.timeout, self._store = comm, timeout, store
        self._name, self._description = "", ""
        self._monitored_barrier = MonitoredBarrier(store, comm.rank, comm.size, advance_operations)

    _allgather_base = GroupOperations.all_gather_single
    allgather_into_tensor_coalesced = GroupOperations.all_gather_single_coalesced
    _reduce_scatter_base = GroupOperations.reduce_scatter_single
    reduce_scatter_tensor_coalesced = GroupOperations.reduce_scatter_single_coalesced
    alltoall_base = GroupOperations.all_to_all_single

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the name of the backend, "hpccoll"."""
        return "hpccoll"

    @property
    def _device_types(self) -> list[torch.device]:
        """The types of devices whose tensors torch gives to this group: the CPU."""
        return [torch.device("cpu")]

    def _get_backend(self, device: Any) -> Any:  # noqa: ARG002 - torch passes it
        """Return this group, which is its own backend for tensors of its devices."""
        return self

    @property
    def group_name(self) -> str:
        """The name that torch gave the group."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        """Set the group's name; called by torch."""
        self._name = name

    getGroupName = lambda self: self._name  # noqa: E731, N815
    setGroupName = _set_group_name  # noqa: N815

    @property
    def group_desc(self) -> str:
        """The description that torch gave the group."""
        return self._description

    def _set_group_desc(self, description: str) -> None:
        """Set the group's description; called by torch."""
        self._description = description

    def get_group_store(self) -> Any:
        """Return torch's key-value store of the group."""
        return self._store

    def size(self) -> int:
        """Return the number of ranks of the group."""
        return self.comm.size

    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self.comm.rank

    def _make_shrunk(self, comm: Communicator, left: Sequence[int], store: Any, options: Any) -> HpccollProcessGroup:  # noqa: ARG002
        """Return a process group over `comm`, whose ranks are the ranks `left` of this group; local."""
        made, ranks = HpccollProcessGroup(comm, self.timeout, store), dist.get_process_group_ranks(self)
        made.global_ranks = [ranks[rank] for rank in left]
        return made

    def make_process_group(self, name: str, devices: Sequence[Any], bound_device: Any) -> Any:  # noqa: ARG002
        """Return this group, which is its own process group."""
        return self

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Block until all ranks have called `monitored_barrier`; raise DistBackendError after a timeout. Collective.

        The error names the first missing rank or, with `wait_all_ranks`, all missing ranks. None as `timeout` stands
        for the group's timeout. `torch.distributed.monitored_barrier` itself refuses this group, because the group does
        not use Gloo.
        """
        self._monitored_barrier.run(self.timeout if timeout is None else timeout, names_all=wait_all_ranks)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time that an operation may take unless its call states another."""
        self.timeout = timeout
