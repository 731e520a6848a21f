"""The backend that torch.distributed uses from torch 2.14 on: a Python subclass of torch's C++ class `c10d::Backend`.

The process group around the backend is torch's own. Torch composes backends ("cpu:hpccoll,cuda:nccl"), splits groups,
and calls hooks, such as those of its flight recorder, around each operation of a backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend, ErrorType

from hpccoll.communicator import Communicator
from hpccoll.errors import UsageError
from hpccoll.torch.communicators import open_communicator
from hpccoll.torch.group_operations import GroupOperations
from hpccoll.torch.monitored_barrier import MonitoredBarrier
from hpccoll.torch.shrinking import Shrinkable
from hpccoll.torch.work import advance_operations


def make_options(given: Any, timeout: timedelta, ranks: Sequence[int], name: str) -> Any:
    """Return torch's options (`Backend.Options`) for the backend of a group.

    Args:
        given: the user's `pg_options`, which are changed and returned; None makes new options.
        timeout: the time allowed for an operation.
        ranks: the global ranks of the group.
        name: torch's name of the group.

    Raises:
        UsageError: `given` is not an object of torch's class `Backend.Options`.
    """
    options = Backend.Options("hpccoll", timeout=timeout) if given is None else given
    if not isinstance(options, Backend.Options):
        raise UsageError(
            f"pg_options is {type(given).__name__}; pass no pg_options, or torch.distributed.Backend.Options"
        )
    options._timeout, options.global_ranks_in_group = timeout, list(ranks)  # noqa: SLF001 - torch has no public name
    options.group_name = name
    return options


class HpccollBackend(Shrinkable, GroupOperations, Backend):
    """A backend of torch.distributed over a communicator of hpccoll, for torch from 2.14 on."""

    def __init__(self, comm: Communicator, options: Any, store: Any) -> None:
        Backend.__init__(self, comm.rank, comm.size)
        self.comm, self.timeout = comm, options._timeout  # noqa: SLF001 - torch has no public name
        self._options, self._store = options, store
        self._monitored_barrier = MonitoredBarrier(store, comm.rank, comm.size, advance_operations)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the name of the backend, "hpccoll"."""
        return "hpccoll"

    @property
    def options(self) -> Any:
        """The object with the options of this backend, as torch defines them."""
        return self._options

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time that an operation may take unless its call states another."""
        self.timeout = self._options._timeout = timeout  # noqa: SLF001 - torch has no public name

    @property
    def supports_splitting(self) -> bool:
        """Whether torch may call `split`."""
        return True

    def split(self, store: Any, ranks: Sequence[int], options: Any) -> HpccollBackend:
        """Return the backend of a new group of some ranks of this group; collective over `ranks`.

        Args:
            store: torch's key-value store of the new group.
            ranks: ranks of this group.
            options: torch's options of the new backend, with its name and timeout.

        Raises:
            UsageError: this rank is not in `ranks`; torch 2.15 would crash if `split` returned None.
        """
        if self.comm.rank not in ranks:
            raise UsageError(
                f"split_group: rank {self.comm.rank} of {self.comm.size} is in none of the new groups; put every rank "
                "of the group into a new group, or call torch.distributed.new_group"
            )
        members = [self._options.global_ranks_in_group[rank] for rank in ranks]
        comm = open_communicator(members, options.group_name, options._timeout)  # noqa: SLF001 - as above
        own = make_options(None, options._timeout, members, options.group_name)  # noqa: SLF001 - as above
        return HpccollBackend(comm, own, store)

    def _make_shrunk(self, comm: Communicator, left: Sequence[int], store: Any, options: Any) -> HpccollBackend:
        """Return a backend over `comm`, whose ranks are the ranks `left` of this group; local."""
        name = self._options.group_name
        ranks = dist.get_process_group_ranks(dist.distributed_c10d._resolve_process_group(name))  # noqa: SLF001 - as above
        members = [self._options.global_ranks_in_group[rank] for rank in left]
        made = HpccollBackend(comm, make_options(options, self.timeout, members, name), store)
        made.global_ranks = [ranks[rank] for rank in left]
        return made

    def make_process_group(self, name: str, devices: Sequence[Any], bound_device: Any) -> Any:
        """Return torch's process group over this backend, which `shrink` has made; local."""
        from hpccoll.torch.message_group import MessageGroup

        self._options.group_name = name
        return MessageGroup(self, self._store, devices, bound_device)

    def perform_nocolor_split(self, device: Any) -> None:
        """Do nothing: splitting a group needs no call on ranks that are not in the new group."""

    def eager_connect_single_device(self, device: Any) -> None:
        """Do nothing: the ranks are connected when the backend is made."""

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """Block until all ranks have called `monitored_barrier`; raise DistBackendError after a timeout. Collective.

        The error names the first missing rank or, with `wait_all_ranks`, all missing ranks. `opts` are torch's options.
        """
        timeout = opts.timeout if opts.timeout >= timedelta(0) else self.timeout  # negative: not given
        self._monitored_barrier.run(timeout, names_all=wait_all_ranks)

    def get_error(self) -> Any:
        """Return torch's code for "no error", because errors are raised where an operation is waited for."""
        return ErrorType.SUCCESS


def _refuse_other_features(features: Sequence[str]) -> None:
    """Define the properties `features` of `HpccollBackend`, such as `supports_coalescing`, as False.

    Torch 2.15 recurses without end when it reads a `supports_...` property that the backend does not define. Properties
    that the backend itself defines are kept.
    """
    for name in features:
        if name not in vars(HpccollBackend) and name not in vars(Shrinkable):
            setattr(HpccollBackend, name, property(lambda _: False))


_refuse_other_features(
    [name for name in dir(Backend) if "supports_" in name and isinstance(getattr(Backend, name), property)]
)
