"""Symmetric buffers: arrays in memory that all ranks of a node can address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from hpccoll.arrays import ArrayModule, as_torch_tensor
from hpccoll.communicator.array_types import Array, DtypeLike, Shape
from hpccoll.communicator.base import CommunicatorBase
from hpccoll.errors import UsageError

if TYPE_CHECKING:
    import cupy
    import torch


class SymmetricBufferMethods(CommunicatorBase):
    """The methods of a communicator that allocate memory that all ranks of a node can address (symmetric buffers)."""

    def empty(self, shape: Shape, dtype: DtypeLike = "float32") -> NDArray[Any]:
        """Return an uninitialised NumPy array in memory that all ranks of the node can address; collective.

        Collectives access the array (a symmetric buffer) in place; pass symmetric buffers on all ranks or on none.
        The memory of all ranks of the node is released when no array on any of these ranks uses it.

        Raises:
            UsageError: any rank passed a negative extent or an unknown dtype.
            MismatchError: the ranks passed different shapes or dtypes.
            UnavailableError: any rank has too little memory, or the ranks cannot share memory.

        Example:
            >>> y = comm.empty((2, 3), np.float64)
            >>> y[:] = 1
            >>> comm.all_reduce(y)[0] / comm.size
            array([1., 1., 1.])
        """
        self._require_open()
        with self._state.call("empty"):
            return self._engine.node.symmetric.empty(shape, dtype)

    def cupy_empty(self, shape: Shape, dtype: DtypeLike = "float32") -> cupy.ndarray:
        """Return an uninitialised CuPy array in device memory that all ranks of the node can address; collective.

        Example:
            >>> y = comm.cupy_empty((2, 3), "float16")  # doctest: +SKIP
        """
        from hpccoll.runtime.cuda.device import device_empty

        self._require_open()
        with self._state.call("cupy_empty"):
            return device_empty(self._engine.node, shape, dtype)

    def torch_empty(
        self, shape: Shape, dtype: DtypeLike = "float32", device: str | torch.device = "cpu"
    ) -> torch.Tensor:
        """Return an uninitialised torch tensor that all ranks of the node can address; collective.

        `device` is cpu, cuda (the current device) or a device by number, such as cuda:1.

        Raises:
            UsageError: `device` is neither cpu nor cuda; `empty` states the other errors.

        Example:
            >>> comm.torch_empty(3, "bfloat16", device="cpu").dtype
            torch.bfloat16
        """
        kind, _, index = str(device).partition(":")
        if kind not in ("cpu", "cuda") or not (index.isdecimal() or not index):
            raise UsageError(f"torch_empty makes no tensor on device {device!r}; use cpu, cuda or cuda:0")
        if kind == "cpu":
            return as_torch_tensor(self.empty(shape, dtype))
        from hpccoll.runtime.cuda.device import device_empty

        self._require_open()
        with self._state.call("torch_empty"):
            return as_torch_tensor(device_empty(self._engine.node, shape, dtype, int(index) if index else None))

    def free(self, x: Array) -> None:
        """Free a symmetric buffer, and the prepared calls bound to it on this rank; later use raises UsageError.

        `free` waits for asynchronous shared-memory collectives on the buffer. Asynchronous messages and collectives of
        the MPI library go on, and keep the memory until they are complete.

        Example:
            >>> y = comm.empty(3)
            >>> comm.free(y)
        """
        self._require_open()
        self._engine.node.symmetric.free(x)

    def stages(self, module: ArrayModule) -> bool:
        """Whether messages from memory of `module` (NumPy, CuPy, torch CUDA) are copied through pinned host memory.

        For device memory, the first call starts probe processes and waits for them.

        Example:
            >>> from hpccoll.arrays import NUMPY
            >>> comm.stages(NUMPY)
            False
        """
        return self._engine.uses_pinned_memory(module)
