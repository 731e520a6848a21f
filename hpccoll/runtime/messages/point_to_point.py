"""Messages between two ranks, of any size and from any memory."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from hpccoll.errors import UsageError
from hpccoll.runtime.arrays import BoundCall, Buffer, as_buffer
from hpccoll.runtime.engine import Engine
from hpccoll.runtime.work import Transfer, Work, cut

MOST_BYTES = 2**30  # a message; MPI counts in 32 bits


def isend(engine: Engine, comm: MPI.Intracomm, x: Any, dest: int, tag: int) -> Work:
    """Start sending `x` to rank `dest`."""
    _require(engine, "dest", dest, tag)
    buffer = as_buffer(x, "x", writable=False)
    host = _bytes(engine, buffer)
    if host is not None:
        buffer.module.bind_copy_to_host(host, buffer.flat)()
    buffer.module.synchronize()  # the stream may still be writing x, or copying it to the host
    payload = buffer.module.as_bytes(buffer.flat) if host is None else host
    requests = [comm.Isend([part, MPI.BYTE], dest, tag) for part in _parts(buffer, payload)]
    transfer = Transfer(f"rank {engine.rank}: sending to rank {dest}", requests, [], [])
    return Work(engine, transfer.advance, None, (x, payload))


def irecv(engine: Engine, comm: MPI.Intracomm, x: Any, source: int, tag: int) -> Work:
    """Start receiving into `x` from rank `source`."""
    _require(engine, "source", source, tag)
    buffer = as_buffer(x, "x", writable=True)
    host = _bytes(engine, buffer)
    buffer.module.synchronize()  # a queued kernel may still read x
    payload = buffer.module.as_bytes(buffer.flat) if host is None else host
    parts = _parts(buffer, payload)
    requests = [comm.Irecv([part, MPI.BYTE], source, tag) for part in parts]
    last: list[BoundCall] = [] if host is None else [buffer.module.bind_copy_from_host(buffer.flat, host)]
    sizes = [part.nbytes for part in parts]
    transfer = Transfer(f"rank {engine.rank}: receiving from rank {source}", requests, last, sizes)
    return Work(engine, transfer.advance, x, (x, payload))


def _bytes(engine: Engine, buffer: Buffer) -> Any:
    """Pinned host memory where MPI cannot take the buffer's own, else None."""
    return buffer.module.empty_pinned(buffer.nbytes) if engine.stages(buffer.module) else None


def _parts(buffer: Buffer, payload: Any) -> list[Any]:
    itemsize = buffer.dtype.itemsize
    return [payload[start * itemsize : stop * itemsize] for start, stop in cut(buffer, MOST_BYTES)]


def _require(engine: Engine, what: str, peer: int, tag: int) -> None:
    if not 0 <= peer < engine.size:
        raise UsageError(f"{what} {peer} is not a rank of 0..{engine.size - 1}")
    if not 0 <= tag < 2**15:
        raise UsageError(f"tag {tag} is not between 0 and {2**15 - 1}")
