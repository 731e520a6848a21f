"""Messages between two ranks, of any size and from any memory."""

from __future__ import annotations

from typing import Any, Final

from mpi4py import MPI

from hpccoll.errors import UsageError
from hpccoll.runtime.arrays import BoundCall, Buffer, as_buffer
from hpccoll.runtime.engine import Engine
from hpccoll.runtime.work import MessageTransfer, Work

LONGEST_SEGMENT: Final = 2**30  # bytes; MPI counts in 32 bits


def isend(engine: Engine, comm: MPI.Intracomm, x: Any, dest: int, tag: int) -> Work:
    """Start sending `x` to rank `dest` on `comm`."""
    _require_peer(engine, "dest", dest, tag)
    buffer = as_buffer(x, "x", writable=False)
    host = _take_pinned(engine, buffer)
    if host is not None:
        buffer.module.bind_copy_to_host(host, buffer.flat)()
    buffer.module.synchronize()  # the stream may still be writing x, or copying it to the host
    payload = buffer.module.as_bytes(buffer.flat) if host is None else host
    requests = [comm.Isend([segment, MPI.BYTE], dest, tag) for segment in cut_payload(buffer, payload)]
    transfer = MessageTransfer(f"rank {engine.rank}: sending to rank {dest}", requests, [], [])
    return Work(engine.rank, engine.progress, transfer, None, (x, payload))


def irecv(engine: Engine, comm: MPI.Intracomm, x: Any, source: int, tag: int) -> Work:
    """Start receiving into `x` from rank `source` on `comm`."""
    _require_peer(engine, "source", source, tag)
    buffer = as_buffer(x, "x", writable=True)
    host = _take_pinned(engine, buffer)
    buffer.module.synchronize()  # a queued kernel may still read x
    payload = buffer.module.as_bytes(buffer.flat) if host is None else host
    segments = cut_payload(buffer, payload)
    requests = [comm.Irecv([segment, MPI.BYTE], source, tag) for segment in segments]
    last: list[BoundCall] = [] if host is None else [buffer.module.bind_copy_from_host(buffer.flat, host)]
    sizes = [segment.nbytes for segment in segments]
    transfer = MessageTransfer(f"rank {engine.rank}: receiving from rank {source}", requests, last, sizes)
    return Work(engine.rank, engine.progress, transfer, x, (x, payload))


def cut_payload(buffer: Buffer, payload: Any) -> list[Any]:
    """Cut the bytes of a buffer at whole elements into segments of at most LONGEST_SEGMENT bytes; at least one."""
    itemsize = buffer.dtype.itemsize
    step = max(LONGEST_SEGMENT // itemsize, 1) * itemsize
    return [payload[start : start + step] for start in range(0, max(buffer.nbytes, 1), step)]


def _take_pinned(engine: Engine, buffer: Buffer) -> Any:
    """Return pinned host memory where MPI cannot take the buffer's own, else None."""
    return buffer.module.empty_pinned(buffer.nbytes) if engine.uses_pinned_memory(buffer.module) else None


def _require_peer(engine: Engine, role: str, peer: int, tag: int) -> None:
    if not 0 <= peer < engine.size:
        raise UsageError(f"{role} {peer} is not a rank of 0..{engine.size - 1}")
    if not 0 <= tag < 2**15:
        raise UsageError(f"tag {tag} is not between 0 and {2**15 - 1}")
