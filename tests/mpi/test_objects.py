"""Python objects between ranks, receives from any rank, split, and the mpi4py communicator behind a communicator."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import hpccoll
from hpccoll.errors import BufferError, CommunicationError, MismatchError, UsageError
from hpccoll.runtime.messages.objects import ObjectCollectives
from hpccoll.runtime.progress import get_progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder


@pytest.fixture
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


def describe(rank):
    return {"rank": rank, "values": list(range(rank)), "array": np.arange(rank)}


def test_objects_come_to_every_rank_that_should_have_them(hpc):
    n, rank = hpc.size, hpc.rank
    for root in range(n):
        assert hpc.broadcast_object(describe(rank), root)["values"] == list(range(root))
        gathered = hpc.gather_object(describe(rank), root)
        assert (None if gathered is None else [each["rank"] for each in gathered]) == (
            list(range(n)) if rank == root else None
        )
        assert hpc.scatter_object([f"to {each}" for each in range(n)] if rank == root else None, root) == f"to {rank}"
    assert [each["array"].tolist() for each in hpc.all_gather_object(describe(rank))] == [
        list(range(each)) for each in range(n)
    ]


def test_ranks_that_share_cores_sleep_until_the_last_rank_calls(hpc):
    objects = ObjectCollectives(hpc.mpi, get_progress(), CallRecorder(), oversubscribed=True)
    hpc.barrier()
    if hpc.rank == 0:
        time.sleep(0.5)
    began, before = time.monotonic(), time.process_time()
    assert objects.all_gather(hpc.rank) == list(range(hpc.size))
    spent, waited = time.process_time() - before, time.monotonic() - began
    if hpc.rank:  # rank 0 may come later than after half a second
        assert spent < waited / 2, "a rank kept its core busy"


def test_objects_pass_while_asynchronous_operations_are_in_flight(hpc):
    n = hpc.size
    x, y = np.ones(200_000), np.ones(3)
    works = [hpc.all_reduce(x, async_op=True, algorithm="ring"), hpc.all_reduce(y, async_op=True)]
    assert hpc.all_gather_object(hpc.rank) == list(range(n))
    assert hpc.broadcast_object(hpc.rank, n - 1) == n - 1
    group = hpc.split(hpc.rank % 2)
    assert group.all_gather_object(hpc.rank) == list(range(hpc.rank % 2, n, 2))
    assert [work.wait()[0] for work in works] == [n, n]
    group.close()


def test_an_object_that_cannot_be_pickled_is_refused_on_every_rank(hpc):
    bad, n = hpc.size - 1, hpc.size
    obj = threading.Lock() if hpc.rank == bad else 1
    message = f"rank {bad} cannot be sent: lock cannot be pickled"
    for call in (hpc.all_gather_object, hpc.gather_object, lambda obj: hpc.broadcast_object(obj, bad)):
        with pytest.raises(UsageError, match=message):
            call(obj)
    with pytest.raises(UsageError, match=message):
        hpc.scatter_object([obj] * n if hpc.rank == bad else None, bad)
    with pytest.raises(UsageError, match=f"{n + 1} objects are not one for each of {n} ranks"):
        hpc.scatter_object([1] * (n + 1))
    with pytest.raises(UsageError, match=f"root {n} is not a rank"):
        hpc.broadcast_object(1, root=n)
    with pytest.raises(UsageError, match="lock cannot be pickled"):
        hpc.send_object(threading.Lock(), 0)
    assert hpc.all_gather_object("still here") == ["still here"] * n


@pytest.mark.needs_ranks(2)
def test_debug_mode_names_the_rank_that_called_another_method(comm, monkeypatch):
    monkeypatch.setenv("HPCCOLL_DEBUG", "1")
    hpc = hpccoll.Communicator(comm)
    call = hpc.all_gather_object if hpc.rank else hpc.broadcast_object
    with pytest.raises(MismatchError, match="rank 0 called broadcast_object and rank 1 called all_gather_object"):
        call(1)
    hpc.close()


def test_messages_come_from_any_rank_and_tell_their_sender(hpc):
    from mpi4py import MPI

    n, rank = hpc.size, hpc.rank
    if rank:
        hpc.send(np.full(3, rank), 0, tag=5)
        hpc.send_object({"from": rank}, 0, tag=6)
        hpc.isend(np.full(2, rank), 0, tag=7).wait()
        return
    seen: list[Any] = []
    for source in [None, MPI.ANY_SOURCE] * n:
        if len(seen) == n - 1:
            break
        x = np.zeros(3, np.int64)
        work = hpc.irecv(x, source, tag=5)
        assert work.wait() is x
        assert x.tolist() == [work.source] * 3
        seen.append(work.source)
    assert sorted(seen) == list(range(1, n))
    for tag in (6, 7):
        seen = []
        for _ in range(n - 1):
            status = MPI.Status()
            if tag == 6:
                assert hpc.recv_object(tag=6, status=status) == {"from": status.Get_source()}
            else:
                assert set(hpc.recv(np.zeros(2, np.int64), tag=7, status=status)) == {status.Get_source()}
            assert status.Get_tag() == tag
            seen.append(status.Get_source())
        assert sorted(seen) == list(range(1, n))


def test_sendrecv_passes_messages_round_the_ring(hpc):
    n, rank = hpc.size, hpc.rank
    x, left, right = np.full(4, rank), (rank - 1) % n, (rank + 1) % n
    received = hpc.sendrecv(x, right, left)
    assert (received is x, received.tolist()) == (False, [left] * 4)
    out = np.zeros(4, np.int64)
    assert hpc.sendrecv(x, left, out=out, sendtag=9, recvtag=9) is out
    assert out.tolist() == [right] * 4
    with pytest.raises(CommunicationError, match="received a message of 32 bytes into an array of 40"):
        hpc.sendrecv(x, rank, rank, out=np.zeros(5, np.int64))
    with pytest.raises(BufferError, match="x is of type list"):
        hpc.isend([1], 0)


def test_ranks_of_one_colour_get_a_communicator_in_the_order_of_their_keys(hpc):
    n, rank = hpc.size, hpc.rank
    with hpc.split(rank % 2, key=-rank) as group:
        members = list(range(rank % 2, n, 2))[::-1]
        assert (group.size, group.rank) == (len(members), members.index(rank))
        assert group.all_gather(np.array([rank])).reshape(-1).tolist() == members
    with hpc.split(0, key=-rank) as everyone:
        assert everyone.all_gather_object(rank) == list(range(n))[::-1]
    rest = hpc.split(None if rank == 0 else 7)
    assert (rest is None) == (rank == 0)
    if rest is not None:
        assert rest.all_gather_object(rank) == list(range(1, n))
        rest.close()
    with pytest.raises(UsageError, match=f"rank {n - 1}: split takes integers as color and key, not 'red' and 0"):
        hpc.split("red" if rank == n - 1 else 1)


def test_the_mpi4py_communicator_has_the_same_ranks(hpc):
    n, rank = hpc.size, hpc.rank
    assert (hpc.mpi.rank, hpc.mpi.size) == (rank, n)
    work = hpc.all_reduce(np.ones(5), async_op=True)
    assert hpc.mpi.allgather(rank) == list(range(n))
    assert work.wait().tolist() == [n] * 5
    request = hpc.mpi.Isend(np.full(2, rank, np.int64), (rank + 1) % n, 4)
    assert hpc.recv(np.zeros(2, np.int64), tag=4).tolist() == [(rank - 1) % n] * 2
    request.Wait()


def test_a_communicator_describes_itself(comm):
    hpc = hpccoll.Communicator(comm)
    nodes = len(hpc._engine.nodes)
    place = f"rank {hpc.rank} of {hpc.size} on {nodes} node{'s' if nodes > 1 else ''}"
    assert repr(hpc) == f"<hpccoll.Communicator: {place}, open>"
    hpc.close()
    assert repr(hpc) == f"<hpccoll.Communicator: {place}, closed>"
    for call in (lambda: hpc.mpi, lambda: hpc.split(0), lambda: hpc.all_gather_object(1), lambda: hpc.recv_object(0)):
        with pytest.raises(UsageError, match="communicator was closed"):
            call()
