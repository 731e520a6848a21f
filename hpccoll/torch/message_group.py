"""A process group of one backend, from torch 2.14, which sends and receives messages in Python.

Torch puts the handles of a backend in Python into a wrapper, which always answers False to `is_completed` and does not
know the sender of a message that was received from any rank. Messages of this group therefore go from torch's Python
code to the backend, and return hpccoll's own handles. All other operations go through torch's code in C++.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from hpccoll.torch.compilation import exempt_from_compilation
from hpccoll.torch.dispatch_modes import show_operations
from hpccoll.torch.work import TorchWork

if TYPE_CHECKING:
    from hpccoll.torch.backend import HpccollBackend


@exempt_from_compilation
@show_operations(("send", "recv", "recv_anysource"))
class MessageGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group that passes sends and receives to a backend of hpccoll directly, and the rest to torch's code.

    Args:
        backend: the backend of the group.
        store: torch's key-value store of the group.
        devices: the devices whose tensors the backend communicates.
        bound_device: the device that torch has bound to the group, or None.
    """

    def __init__(self, backend: HpccollBackend, store: Any, devices: Sequence[Any], bound_device: Any) -> None:
        super().__init__(store, backend.comm.rank, backend.comm.size)
        self._backend = backend  # keeps the Python object alive; torch holds its C++ part only
        kind = dist.ProcessGroup.BackendType.CUSTOM
        self._set_default_backend(kind)
        for device in devices:
            self._register_backend(device, kind, backend)
        if bound_device:
            self.bound_device_id = bound_device

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the name of the backend, "hpccoll"."""
        return self._backend.getBackendName()

    def send(self, tensors: Sequence[Any], dst: int, tag: int = 0) -> TorchWork:
        """Start to send `tensors` to rank `dst` of the group; return a handle. The receiver passes the same `tag`."""
        return self._backend.send(tensors, dst, tag)

    def recv(self, tensors: Sequence[Any], src: int | None, tag: int = 0) -> TorchWork:
        """Start to receive `tensors`, sent with `tag`, from rank `src` of the group (None: any); return a handle."""
        return self._backend.recv(tensors, src, tag)

    def recv_anysource(self, tensors: Sequence[Any], tag: int = 0) -> TorchWork:
        """Start to receive `tensors`, sent with `tag`, from any rank; the handle's `source_rank` is the sender."""
        return self._backend.recv(tensors, None, tag)


def find_devices(name: str) -> list[Any]:
    """Return the device types of the group that torch is making now, as `torch.device` objects.

    The list is empty if the backend `name` is not the only backend of the group.

    Torch tells a backend nothing about other backends of its group, so this function reads the local variable
    `backend_config` of torch's `_new_process_group_helper` from the call stack.
    """
    import torch

    frame: Any = sys._getframe(1)  # noqa: SLF001 - documented, and faster than the module inspect
    code = dist.distributed_c10d._new_process_group_helper.__code__  # noqa: SLF001 - torch has no public name
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    config = frame.f_locals.get("backend_config") if frame else None
    backends = config.get_device_backend_map() if config else {}
    return [torch.device(device) for device in backends] if set(backends.values()) == {name} else []
