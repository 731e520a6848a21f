"""The backends Gloo, NCCL and hpccoll of torch.distributed as engines, started in an MPI job.

An engine's process group has its own store and is called without torch.distributed's dispatcher, so the user's default
group is not affected. The engine of the backend hpccoll shows what torch adds to the time of hpccoll's own collectives.
Rank 0 opens the group's TCPStore on a free port and sends the port number to the other ranks by MPI. Buffers become
tensors without a copy. Operations without a reduction transfer raw bytes, so they support every dtype.
"""

from __future__ import annotations

import importlib
import os
import socket
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccoll.arrays import ArrayModule, BoundCall, DType, FlatArray, Reduction
from hpccoll.communicator import Communicator
from hpccoll.errors import CommunicationError, UnavailableError
from hpccoll.optional_packages import format_install_command
from hpccoll.peers.library_engine import check_buffers, unsupported_error
from hpccoll.peers.torch_collectives import TorchCollectives
from hpccoll.plan import Operation
from hpccoll.runtime import job
from hpccoll.runtime.agreement import run_or_raise
from hpccoll.runtime.cuda import probe as cuda_probe

if TYPE_CHECKING:
    from mpi4py import MPI

TORCH_OWN = "torch-hpccoll"  # the engine of hpccoll as a backend of torch.distributed
TIMEOUT = timedelta(seconds=60)
_LOOPBACK = "127.0.0.1"
_SHARE_GPUS = "NCCL_MULTI_RANK_GPU_ENABLE"
_OPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG"}
_BITWISE = {"band": "BAND", "bor": "BOR", "bxor": "BXOR"}
_GLOO_ON_DEVICE = (Operation.ALL_REDUCE, Operation.BROADCAST)  # source: "Backends" in torch.distributed's docs
# The torch dtype in which values of a dtype are reduced: booleans as bytes 0 and 1, complex numbers as pairs of floats.
_REDUCED_AS = {
    **{name: name for name in ("int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")},
    "bool": "uint8",
    "complex64": "float32",
    "complex128": "float64",
}


class TorchEngine:
    """A backend of torch.distributed as an engine: `gloo`, `nccl`, or `torch-hpccoll` (hpccoll as a torch backend).

    `nccl` needs CUDA buffers and a GPU per rank; the other backends are mainly for host buffers. The constructor starts
    a process group and is collective over `comm`. The start of the process group and each operation time out after
    TIMEOUT.

    Raises:
        UnavailableError: torch, the backend, or a GPU for each rank is missing; the message names the rank.
        CommunicationError: the processes did not connect to each other; the message names the rank and the failed step.
    """

    works_in_threads = True  # the constructor sets False for the backend hpccoll

    def __init__(self, comm: MPI.Intracomm, backend: str) -> None:
        self.name, self.comm = backend, comm
        self.works_in_threads = backend != TORCH_OWN
        layout = job.detect_layout(comm)
        local_rank = layout.node[: comm.rank].count(layout.node[comm.rank])
        ranks_per_node = max(layout.ranks_per_node)
        run_or_raise(
            comm,
            lambda: _require_backend(backend, ranks_per_node),
            lambda reason: UnavailableError(f"engine {backend}: {reason}"),
        )
        self._torch = importlib.import_module("torch")
        self._dist = importlib.import_module("torch.distributed")
        if backend == "nccl":
            self._torch.cuda.set_device(local_rank % self._torch.cuda.device_count())
        self._one_node = layout.nodes == 1
        self._store = self._open_store(_LOOPBACK if self._one_node else socket.gethostname())
        c10d = importlib.import_module("torch.distributed.distributed_c10d")
        group = run_or_raise(comm, self._make_group, partial(self._make_error, "start the process group"))
        self._collectives = TorchCollectives(group, c10d, comm.size)

    def _make_error(self, action: str, reason: str) -> CommunicationError:
        """Return a CommunicationError, whose message says that this engine cannot do `action`, and the `reason`."""
        return CommunicationError(f"engine {self.name} cannot {action}: {reason}")

    def _open_store(self, host: str) -> Any:
        """Return this rank's connection to a new torch TCPStore at a free port of rank 0's `host`. Collective."""
        address = self.comm.bcast(host)
        store = partial(self._dist.TCPStore, address, timeout=TIMEOUT, wait_for_workers=False)
        served: Any = None

        def serve() -> int:
            """Open the store at a free port on rank 0 and return the port; return 0 on other ranks. Sets `served`."""
            nonlocal served
            if self.comm.rank == 0:
                served = store(0, is_master=True)
            return served.port if served else 0

        port = self.comm.bcast(run_or_raise(self.comm, serve, partial(self._make_error, f"open a store on {address}")))
        failed = partial(self._make_error, f"connect to rank 0's store at {address}:{port}")
        return run_or_raise(self.comm, lambda: served or store(port, is_master=False), failed)

    def _make_group(self) -> Any:
        """Return a new process group of this engine's backend over the ranks of `comm`. Collective."""
        # SLF001: torch has no public way to create a second process group; its own code uses these private names.
        rank, size = self.comm.rank, self.comm.size
        if self.name == TORCH_OWN:
            from hpccoll.torch.creation import make_group

            comm = Communicator(self.comm, mixed_forms=True)
            return make_group(comm, list(range(size)), TORCH_OWN, TIMEOUT, self._store)
        if self.name == "nccl":
            options = self._dist.ProcessGroupNCCL.Options()
            options._timeout = TIMEOUT  # noqa: SLF001
            return self._dist.ProcessGroupNCCL(self._store, rank, size, options)
        if not self._one_node or "GLOO_SOCKET_IFNAME" in os.environ:
            return self._dist.ProcessGroupGloo(self._store, rank, size, TIMEOUT)
        # On one node use the loopback address, because the host name may resolve to an external address or not at all.
        options = self._dist.ProcessGroupGloo._Options()  # noqa: SLF001
        options._timeout = TIMEOUT  # noqa: SLF001
        options._devices = [self._dist.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]  # noqa: SLF001
        return self._dist.ProcessGroupGloo(self._store, rank, size, options)

    def prepare(self, operation: Operation, source: Any, result: Any, redop: str, root: int) -> BoundCall:
        """Return a function that runs torch's collective on the given buffers, and waits for its end.

        The arguments are those of `LibraryEngine.prepare`. all_reduce, reduce and broadcast out of place cost a copy,
        because torch offers them in place only.
        """
        if operation is Operation.BARRIER:
            return self._completed(self._collectives.bind_barrier(), None if self.name == "nccl" else -1)
        if operation.is_scan:
            raise unsupported_error(self.name, operation.value, "use --engine mpi,hpccoll")
        buffers = check_buffers(operation, source, result, root, self.comm.rank, self.comm.size)
        if self.name == "nccl" and not buffers.module.on_device:
            raise unsupported_error(self.name, "host buffers", "use --buffer cuda")
        if self.name == "gloo" and buffers.module.on_device and operation not in _GLOO_ON_DEVICE:
            raise unsupported_error(self.name, f"{operation.value} of device buffers", "use --buffer host")
        if operation is Operation.ALL_TO_ALL and buffers.in_place and self.name != TORCH_OWN:
            # Gloo accepts in-place all_to_all, but overwrites blocks before it has sent them.
            raise unsupported_error(self.name, "all_to_all in place", "use --out-of-place")
        op, kind = self._reduction(redop, buffers.dtype) if operation.reduces else (None, "uint8")
        source, result = (self._tensor(flat, buffers.module, kind) for flat in (buffers.source, buffers.result))
        launch = self._collectives.bind(operation, source, result, op, root, buffers.in_place)
        return self._completed(launch, buffers.module.device)

    def _reduction(self, redop: str, dtype: DType) -> tuple[Any, str]:
        """Return torch's ReduceOp of the reduction `redop`, and the name of the torch dtype in which to reduce.

        Raises UsageError if torch cannot reduce elements of type `dtype` by `redop`.
        """
        reduction, offered = Reduction.parse(redop), _OPS | ({} if self.name == "nccl" else _BITWISE)
        if reduction.name not in offered:
            instead = f"use one of {', '.join(offered)}, or --engine hpccoll"
            raise unsupported_error(self.name, f"reduction {reduction.name}", instead)
        reduction.require(dtype)
        if dtype.name not in _REDUCED_AS or (dtype.kind == "c" and reduction.name not in ("sum", "avg")):
            raise unsupported_error(self.name, f"reduction {reduction.name} of {dtype.name}", "use --engine hpccoll")
        return getattr(self._dist.ReduceOp, offered[reduction.name]), _REDUCED_AS[dtype.name]

    def _tensor(self, flat: FlatArray | None, module: ArrayModule, kind: str) -> Any:
        """Return an array's memory as a tensor without a copy; None if `flat` is None.

        Args:
            flat: a 1-D array.
            module: the array's module (NumPy, CuPy or torch).
            kind: name of the tensor's torch dtype, such as `uint8`.
        """
        if flat is None:
            return None
        message = module.as_bytes(flat)
        if isinstance(message, np.ndarray):
            with warnings.catch_warnings():
                # torch has no read-only tensors and warns of read-only arrays; a collective only reads its source.
                warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
                tensor = self._torch.from_numpy(message)
        else:
            tensor = self._torch.as_tensor(message, device=f"cuda:{module.device}")  # any other device means a copy
        return tensor.view(getattr(self._torch, kind))

    def _completed(self, launch: Callable[[], Any], device: int | None) -> BoundCall:
        """Return a function that starts an operation by `launch` and waits until its result is complete.

        Errors name the engine and the rank. `device` is the number of the buffers' CUDA device, -1 for host memory, or
        None for the current device.
        """
        stream_done = None if device == -1 else self._torch.cuda.current_stream(device).synchronize

        def call() -> None:
            try:
                launch().wait()
                if stream_done is not None:
                    stream_done()  # NCCL's wait only orders streams: the result is complete when the stream's work is
            except RuntimeError as error:
                reason = str(error).partition("\n")[0]
                raise CommunicationError(f"engine {self.name} failed on rank {self.comm.rank}: {reason}") from error

        return call

    def close(self) -> None:
        """Shut the process group down, then close rank 0's store. Collective."""
        self.comm.Barrier()  # a rank that leaves early breaks connections that others still read from
        self._collectives.shutdown()
        self.comm.Barrier()
        self._store = None


def _require_backend(backend: str, ranks_per_node: int) -> None:
    """Raise UnavailableError if torch, its backend `backend`, or a GPU for each rank of this node is missing.

    Torch is imported last, because its import is slow.
    """
    if find_spec("torch") is None:
        raise UnavailableError(f"torch is not installed; {format_install_command('torch')}")
    gpus = len(cuda_probe.list_device_names()) if backend == "nccl" else ranks_per_node
    if gpus == 0:
        raise UnavailableError(
            "there is no CUDA device (no NVIDIA driver, or no GPU visible); use --engine mpi,hpccoll,gloo"
        )
    if gpus < ranks_per_node and os.environ.get(_SHARE_GPUS) != "1":  # needs NCCL 2.30 or later
        raise UnavailableError(
            f"NCCL needs a GPU for each rank: {ranks_per_node} ranks on this node share {gpus} GPUs; with NCCL 2.30 "
            f"or later, set {_SHARE_GPUS}=1"
        )
    dist = importlib.import_module("torch.distributed")
    if not dist.is_available() or (backend != TORCH_OWN and not getattr(dist, f"is_{backend}_available")()):
        missing = "torch.distributed" if backend == TORCH_OWN else backend
        raise UnavailableError(f"this torch was built without {missing}; install a torch build that has it")
