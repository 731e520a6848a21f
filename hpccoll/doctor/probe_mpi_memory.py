"""Run as an MPI job of its own: hands device memory to one operation of MPI and looks at what arrives.

With `host` for memory the same path runs without a GPU. Rank 0 prints `worked on N ranks`. The memory is the driver's
own (cuMemAlloc), so neither torch nor CuPy is needed, and MPI is given an address and a number of bytes.
"""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpccoll.runtime import job
from hpccoll.runtime.cuda.driver import Driver

COUNTS = (16, 2**18)  # elements of 4 bytes: MPIs send short and long messages by different paths
_FLOAT_NBYTES = 4


@dataclass(frozen=True, slots=True)
class Memory:
    """Where the buffers lie: how to allocate, write and read them, by address."""

    allocate: Callable[[int], int]
    write: Callable[[int, bytes], None]
    read: Callable[[int, int], bytes]


def device_memory(rank: int) -> Memory:
    """Return memory of a GPU; ranks take turns over those that there are."""
    count = Driver(device=None).number("cuDeviceGetCount")
    driver = Driver(rank % max(1, count))
    return Memory(driver.allocate, driver.write, driver.read)


def host_memory() -> Memory:
    """Return plain memory, with the same calls."""
    kept: dict[int, Any] = {}

    def allocate(nbytes: int) -> int:
        block = ctypes.create_string_buffer(nbytes)
        address = ctypes.addressof(block)
        kept[address] = block
        return address

    def write(address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    return Memory(allocate, write, ctypes.string_at)


def floats(values: list[float]) -> bytes:
    """Return values as float32."""
    return array("f", values).tobytes()


Buffer = list[Any]
Call = Callable[[Any, Any, Buffer, Buffer], object]
Wanted = Callable[[int, int, int], list[float]]


def _to_next(_mpi: Any, comm: Any, send: Buffer, recv: Buffer) -> None:
    comm.Sendrecv(send, (comm.rank + 1) % comm.size, 0, recv, (comm.rank - 1) % comm.size, 0)


def _persistent(mpi: Any, comm: Any, send: Buffer, recv: Buffer) -> None:
    requests = [
        comm.Recv_init(recv, (comm.rank - 1) % comm.size, 0),
        comm.Send_init(send, (comm.rank + 1) % comm.size, 0),
    ]
    mpi.Prequest.Startall(requests)
    mpi.Request.Waitall(requests)
    for request in requests:
        request.Free()


def _broadcast(_mpi: Any, comm: Any, send: Buffer, recv: Buffer) -> None:
    comm.Bcast(send if comm.rank == 0 else recv, 0)


# Every rank brings `count` times its own number from 1 on, and takes what the second function says: of rank, ranks and
# count. Of blocks (all_gather, gather, scatter, all_to_all) there is one for each rank.
OPERATIONS: dict[str, tuple[Call, Wanted]] = {
    "send_recv": (_to_next, lambda rank, n, count: [float((rank - 1) % n + 1)] * count),
    "persistent": (_persistent, lambda rank, n, count: [float((rank - 1) % n + 1)] * count),
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
        lambda rank, n, count: [float(each + 1) for each in range(n) for _ in range(count // n)],
    ),
    "all_to_all": (
        lambda mpi, comm, send, recv: comm.Alltoall(send, recv),
        lambda rank, n, count: [float(each + 1) for each in range(n) for _ in range(count // n)],
    ),
    "reduce_scatter": (
        lambda mpi, comm, send, recv: comm.Reduce_scatter_block(send, _block(recv, comm.size), mpi.SUM),
        lambda rank, n, count: [n * (n + 1) / 2] * (count // n),
    ),
}


def _block(buffer: Buffer, ranks: int) -> Buffer:
    memory, datatype = buffer
    return [memory[: len(memory) // ranks], datatype]


def attempt(operation: str, where: str) -> str:
    """Run one operation on all ranks of this job; return what was tried.

    Raises:
        SystemExit: something else arrived than should have.
    """
    mpi, comm = job.load_mpi(), job.get_world()
    memory = device_memory(comm.rank) if where == "device" else host_memory()
    call, wanted = OPERATIONS[operation]
    for least in COUNTS:
        count = least - least % comm.size
        nbytes = count * _FLOAT_NBYTES
        source, result = memory.allocate(nbytes), memory.allocate(nbytes)
        # write() waits for its copy: MPI, which knows of no stream, finds both buffers filled.
        memory.write(source, floats([comm.rank + 1.0] * count))
        memory.write(result, floats([-1.0] * count))
        send, recv = ([mpi.memory.fromaddress(at, nbytes), mpi.FLOAT] for at in (source, result))
        call(mpi, comm, send, recv)
        right = floats(wanted(comm.rank, comm.size, count))
        if memory.read(result, len(right)) != right:
            raise SystemExit(f"{operation} of {count} elements: something else arrived on rank {comm.rank}")
    comm.Barrier()
    return f"worked on {comm.size} rank{'s' * (comm.size > 1)}, {' and '.join(map(str, COUNTS))} elements of float32"


if __name__ == "__main__":
    said = attempt(sys.argv[1], sys.argv[2])
    if job.get_world().rank == 0:
        sys.stdout.write(said + "\n")
