"""Tests whether the MPI library accepts device memory, one operation at a time.

MPI libraries have claimed CUDA support that they lack and denied support that they have. An MPI library without CUDA
support crashes on a device pointer. Each operation is tested in a separate MPI job, because the test may crash or hang.
The command of each process is `python -m hpccoll.runtime.cuda.probe OPERATION device|host FIRST`.

Rank r of the job uses device number FIRST + r. With the argument `host`, the probe uses host memory and needs no GPU.
Device buffers are allocated by cuMemAlloc and passed to MPI by address, so neither torch nor CuPy is needed. A probe of
one rank does not test the network.
"""

from __future__ import annotations

import ctypes
import os
import sys
from array import array
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from hpccoll.processes.command import CommandResult, run_command, run_python, standalone_mpi_environment
from hpccoll.runtime import job
from hpccoll.runtime.cuda.driver import CudaDriver

COUNTS = (16, 2**18)  # elements of 4 bytes: MPI libraries send short and long messages by different protocols
REQUIRED_OPERATIONS = ("send_recv", "all_reduce")
LIMIT_S = 60.0  # creating a CUDA context takes seconds, more on a node with eight GPUs
_FLOAT_NBYTES = 4
_PASSED = "worked on"

MpiBuffer: TypeAlias = list[Any]  # an mpi4py buffer specification: memory and datatype
CallOperation: TypeAlias = Callable[[Any, Any, MpiBuffer, MpiBuffer], object]
ExpectResult: TypeAlias = Callable[[int, int, int], list[float]]


def list_device_names() -> tuple[str, ...]:
    """Return the names of the CUDA devices that this process may use; empty without a driver or device.

    Calls the CUDA driver in this process, without creating a context.
    """
    try:
        driver = CudaDriver(device=None)
        return tuple(driver.query_device_name(device) for device in range(driver.count_devices()))
    except (OSError, RuntimeError):
        return ()


@cache
def is_mpi_cuda_aware() -> bool:
    """Whether MPI accepts memory of the current device in all REQUIRED_OPERATIONS; probed once per process.

    Cost: nothing without a GPU; otherwise one process per operation, a few seconds each.
    """
    if not list_device_names():
        return False
    device = find_current_device()
    return all(has_passed(probe_operation(name, device=device)) for name in REQUIRED_OPERATIONS)


def find_current_device() -> int:
    """Return the number of this thread's current CUDA device; 0 if no device is current."""
    try:
        return CudaDriver(device=None).query_int("cuCtxGetDevice")
    except (OSError, RuntimeError):
        return 0


def probe_operation(
    operation: str,
    memory: Literal["device", "host"] = "device",
    mpirun: Path | None = None,
    limit_s: float = LIMIT_S,
    device: int = 0,
) -> CommandResult:
    """Run an operation of OPERATIONS on device or host memory in a separate MPI job, and return how the job ended.

    `mpirun` is the command that starts a job of two ranks; None starts one process, a job of one rank. Rank 0 uses
    device number `device`. The job is killed after `limit_s` seconds.
    """
    arguments = ["-m", "hpccoll.runtime.cuda.probe", operation, memory, str(device)]
    with standalone_mpi_environment() as environ:
        if mpirun is None:
            return run_python(arguments, limit_s, environ)
        return run_command([str(mpirun), "-n", "2", sys.executable, *arguments], limit_s, environ | _allow_any_slots())


def has_passed(result: CommandResult) -> bool:
    """Whether the job of `probe_operation` ran the operation and received the right values."""
    return result.succeeded and _PASSED in result.stdout


def _allow_any_slots() -> dict[str, str]:
    """Return environment variables that let Open MPI's mpirun start two ranks on any machine; MPICH ignores them."""
    settings = {
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }
    if os.getuid() == 0:  # without these settings, mpirun refuses to run as root
        settings |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return settings


def _open_memory(where: str, number: int) -> tuple[Callable[..., int], Callable[..., object], Callable[..., bytes]]:
    """Return functions that allocate, write and read memory: on a GPU if `where` is `device`, else on the host.

    The GPU has the number `number` modulo the number of GPUs.
    """
    if where == "device":
        driver = CudaDriver(number % max(1, CudaDriver(device=None).count_devices()))
        return driver.allocate, driver.write, driver.read
    blocks: list[Any] = []

    def allocate(nbytes: int) -> int:
        """Allocate host memory, which lives as long as this function, and return its address."""
        blocks.append(ctypes.create_string_buffer(nbytes))
        return ctypes.addressof(blocks[-1])

    return allocate, lambda address, data: ctypes.memmove(address, data, len(data)), ctypes.string_at


def _send_to_next(_mpi: Any, comm: Any, send: MpiBuffer, recv: MpiBuffer) -> None:
    """Send to the next rank and receive from the previous one."""
    comm.Sendrecv(send, (comm.rank + 1) % comm.size, 0, recv, (comm.rank - 1) % comm.size, 0)


def _send_persistent(mpi: Any, comm: Any, send: MpiBuffer, recv: MpiBuffer) -> None:
    """Send to the next rank and receive from the previous one, by persistent requests."""
    receive = comm.Recv_init(recv, (comm.rank - 1) % comm.size, 0)
    requests = [receive, comm.Send_init(send, (comm.rank + 1) % comm.size, 0)]
    mpi.Prequest.Startall(requests)
    mpi.Request.Waitall(requests)
    for request in requests:
        request.Free()


def _broadcast(_mpi: Any, comm: Any, send: MpiBuffer, recv: MpiBuffer) -> None:
    """Broadcast from rank 0's send buffer to the other ranks' receive buffers."""
    comm.Bcast(send if comm.rank == 0 else recv, 0)


def _block(buffer: MpiBuffer, ranks: int) -> MpiBuffer:
    """Return the first of `ranks` equal blocks of a buffer."""
    memory, datatype = buffer
    return [memory[: len(memory) // ranks], datatype]


# For each operation: the MPI call, and the first elements that a rank receives, computed from (rank, ranks, count).
# Every rank sends elements of value rank + 1.
# A block of all_gather, all_to_all or reduce_scatter has count / ranks elements.
OPERATIONS: dict[str, tuple[CallOperation, ExpectResult]] = {
    "send_recv": (_send_to_next, lambda rank, n, count: [float((rank - 1) % n + 1)] * count),
    "persistent": (_send_persistent, lambda rank, n, count: [float((rank - 1) % n + 1)] * count),
    "broadcast": (_broadcast, lambda rank, n, count: [1.0] * count if rank else []),
    "reduce": (
        lambda mpi, comm, send, recv: comm.Reduce(send, recv, mpi.SUM, 0),
        lambda rank, n, count: [] if rank else [n * (n + 1) / 2] * count,
    ),
    "all_reduce": (
        lambda mpi, comm, send, recv: comm.Allreduce(send, recv, mpi.SUM),
        lambda rank, n, count: [n * (n + 1) / 2] * count,
    ),
    "all_gather": (
        lambda mpi, comm, send, recv: comm.Allgather(_block(send, comm.size), recv),
        lambda rank, n, count: [float(source + 1) for source in range(n) for _ in range(count // n)],
    ),
    "all_to_all": (
        lambda mpi, comm, send, recv: comm.Alltoall(send, recv),
        lambda rank, n, count: [float(source + 1) for source in range(n) for _ in range(count // n)],
    ),
    "reduce_scatter": (
        lambda mpi, comm, send, recv: comm.Reduce_scatter_block(send, _block(recv, comm.size), mpi.SUM),
        lambda rank, n, count: [n * (n + 1) / 2] * (count // n),
    ),
}


def run_operation(operation: str, where: str, first: int = 0) -> str:
    """Test an operation of OPERATIONS on all ranks of this job in `device` or `host` memory; return a success message.

    Rank r uses device number `first` + r. Collective; starts MPI.

    Raises:
        SystemExit: this rank received wrong values.
    """
    mpi, comm = job.load_mpi(), job.get_world()
    allocate, write, read = _open_memory(where, first + comm.rank)
    call, expect = OPERATIONS[operation]
    for minimum in COUNTS:
        count = minimum - minimum % comm.size
        nbytes = count * _FLOAT_NBYTES
        source, result = allocate(nbytes), allocate(nbytes)
        # `write` returns only when the copy is done, because MPI does not wait for a CUDA stream.
        write(source, _to_float32([comm.rank + 1.0] * count))
        write(result, _to_float32([-1.0] * count))
        send, recv = ([mpi.memory.fromaddress(address, nbytes), mpi.FLOAT] for address in (source, result))
        call(mpi, comm, send, recv)
        expected = _to_float32(expect(comm.rank, comm.size, count))
        if read(result, len(expected)) != expected:
            raise SystemExit(f"{operation} of {count} elements: wrong values arrived on rank {comm.rank}")
    comm.Barrier()
    return f"{_PASSED} {comm.size} rank{'s' * (comm.size > 1)}, {' and '.join(map(str, COUNTS))} elements of float32"


def _to_float32(values: list[float]) -> bytes:
    """Convert numbers to float32, and return them as bytes."""
    return array("f", values).tobytes()


if __name__ == "__main__":
    sentence = run_operation(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    if job.get_world().rank == 0:
        sys.stdout.write(sentence + "\n")
