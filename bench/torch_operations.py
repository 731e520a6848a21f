"""The operations of torch.distributed that torch_backend.py times, as calls on a group of either backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist

Call: TypeAlias = Callable[[Any], object]  # takes the group
MOST_OBJECT_BYTES: Final = 2**20
FRESH: Final = "all_reduce, fresh"  # on tensors that no call has seen before


def list_operations(nbytes: int, rank: int, n: int) -> dict[str, Call]:
    """Return a call per operation; `nbytes` are those of the larger tensor of a rank.

    Every call uses the same tensors again; zeros stay zeros, so that repeated sums stay finite.
    """
    calls = _list_reductions(nbytes, n) | _list_movements(nbytes, rank, n) | _list_messages(nbytes, rank)
    if nbytes <= MOST_OBJECT_BYTES:
        calls |= _list_object_collectives(nbytes, rank, n)
    if nbytes <= 8:
        calls["barrier"] = dist.barrier
    return calls


def _list_reductions(nbytes: int, n: int) -> dict[str, Call]:
    """Return the operations that reduce tensors."""
    count = max(nbytes // 4, 1)
    x, halves = torch.zeros(count), [torch.zeros(max(count // 2, 1)) for _ in range(2)]
    whole, blocks = torch.zeros(n * max(count // n, 1)), [torch.zeros(max(count // n, 1)) for _ in range(n)]
    return {
        "all_reduce": lambda group: dist.all_reduce(x, group=group),
        "all_reduce, async": lambda group: dist.all_reduce(x, group=group, async_op=True).wait(),
        "all_reduce_coalesced": lambda group: dist.all_reduce_coalesced(halves, group=group),
        "reduce": lambda group: dist.reduce(x, 0, group=group),
        "reduce_scatter": lambda group: dist.reduce_scatter(blocks[0], blocks[1:] + blocks[:1], group=group),
        "reduce_scatter_tensor": lambda group: dist.reduce_scatter_tensor(blocks[0], whole, group=group),
    }


def _list_movements(nbytes: int, rank: int, n: int) -> dict[str, Call]:
    """Return the collectives that reduce nothing."""
    count = max(nbytes // 4 // n, 1)
    block, x = torch.zeros(count), torch.zeros(n * count)
    whole, blocks = torch.zeros(n * count), [torch.zeros(count) for _ in range(n)]
    sent = [count + (count // 2 if (rank + to) % n < n // 2 else -(count // 2)) for to in range(n)]
    if n % 2:
        sent = [count] * n
    at_root = blocks if rank == 0 else None
    return {
        "broadcast": lambda group: dist.broadcast(x, 0, group=group),
        "all_gather": lambda group: dist.all_gather(blocks, block, group=group),
        "all_gather_into_tensor": lambda group: dist.all_gather_into_tensor(whole, block, group=group),
        "gather": lambda group: dist.gather(block, at_root, 0, group=group),
        "scatter": lambda group: dist.scatter(block, at_root, 0, group=group),
        "all_to_all_single": lambda group: dist.all_to_all_single(whole, x, group=group),
        "all_to_all_single, uneven": lambda group: dist.all_to_all_single(whole, x, sent, sent, group=group),
    }


def _list_messages(nbytes: int, rank: int) -> dict[str, Call]:
    """Return exchanges between ranks 0 and 1, 2 and 3 and so on."""
    x, y, peer = torch.zeros(max(nbytes // 4, 1)), torch.zeros(max(nbytes // 4, 1)), rank ^ 1

    def send_and_receive(group: Any) -> None:
        """Send a tensor and receive another, one after the other; even ranks send first."""
        for sends in (rank % 2 == 0, rank % 2 == 1):
            if sends:
                dist.send(x, peer, group=group)
            else:
                dist.recv(y, peer, group=group)

    def exchange(group: Any) -> None:
        """Send and receive at the same time."""
        works = [dist.isend(x, peer, group=group), dist.irecv(y, peer, group=group)]
        for work in works:
            if work is not None:
                work.wait()

    def exchange_as_batch(group: Any) -> None:
        """Send and receive by one call."""
        pair = [dist.P2POp(dist.isend, x, peer, group), dist.P2POp(dist.irecv, y, peer, group)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()

    return {"send and recv": send_and_receive, "isend and irecv": exchange, "batch_isend_irecv": exchange_as_batch}


def _list_object_collectives(nbytes: int, rank: int, n: int) -> dict[str, Call]:
    """Return the collectives of Python objects, which carry `nbytes` bytes."""
    payload = bytes(nbytes)
    given, found = [payload], [None] * n
    at_root = [payload] * n if rank == 0 else None
    return {
        "broadcast_object_list": lambda group: dist.broadcast_object_list(given, 0, group=group),
        "all_gather_object": lambda group: dist.all_gather_object(found, payload, group=group),
        "scatter_object_list": lambda group: dist.scatter_object_list([None], at_root, 0, group=group),
        "gather_object": lambda group: dist.gather_object(payload, found if rank == 0 else None, 0, group=group),
    }
