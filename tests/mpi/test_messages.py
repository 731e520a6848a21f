"""Messages between two ranks: every dtype, any size, beside collectives in flight."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

import hpccoll
from hpccoll.arrays import DTYPES
from hpccoll.errors import BufferError, CommunicationError, UsageError, WaitTimeoutError
from hpccoll.measure.data import make_input
from hpccoll.runtime.messages import point_to_point as messaging
from hpccoll.runtime.progress import get_progress
from hpccoll.runtime.recorder.flight_recorder import get_recorder


@pytest.fixture(scope="module")
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


@pytest.fixture(scope="module")
def in_python(comm):
    """A communicator whose messages are all carried out in Python, as those of device memory."""
    with hpccoll.Communicator(comm) as made:
        made._messages.messenger.close()
        yield made


def around(hpc, x, y, tag=0):
    """Send x to the next rank, receive y from the one before; a ring, closed by a rank alone with itself."""
    sent = hpc.isend(x, (hpc.rank + 1) % hpc.size, tag)
    got = hpc.irecv(y, (hpc.rank - 1) % hpc.size, tag)
    assert got.wait() is y
    assert sent.wait() is None


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_goes_around_the_ring(hpc, name):
    for count in (0, 1, 77):
        x = make_input(DTYPES[name], 3, hpc.rank, count)
        y = np.zeros_like(x)
        around(hpc, x, y)
        assert y.tobytes() == make_input(DTYPES[name], 3, (hpc.rank - 1) % hpc.size, count).tobytes()


@settings(max_examples=10)
@given(count=st.integers(0, 5000), tag=st.integers(0, 2**15 - 1))
def test_any_size_and_tag(hpc, count, tag):
    y = np.zeros(count, np.int32)
    around(hpc, np.full(count, hpc.rank, np.int32), y, tag)
    assert y.tolist() == [(hpc.rank - 1) % hpc.size] * count


def test_send_and_receive_block_pair_by_pair(hpc):
    for giver in range(hpc.size):
        for taker in range(hpc.size):
            if giver == taker:
                continue
            if hpc.rank == giver:
                hpc.send(np.array([giver, taker]), taker)
            elif hpc.rank == taker:
                assert hpc.recv(np.zeros(2, np.int64), giver).tolist() == [giver, taker]


def test_a_rank_sends_to_itself(hpc):
    work = hpc.isend(np.array([1.5, 2.5]), hpc.rank)
    assert hpc.recv(np.zeros(2), hpc.rank).tolist() == [1.5, 2.5]
    work.wait()


def test_a_tag_finds_its_message_whatever_came_first(hpc):
    there, back = (hpc.rank + 1) % hpc.size, (hpc.rank - 1) % hpc.size
    sent = [hpc.isend(np.array([hpc.rank, tag]), there, tag) for tag in (5, 6, 7)]
    for tag in (7, 5, 6):
        assert hpc.recv(np.zeros(2, np.int64), back, tag).tolist() == [back, tag]
    for work in sent:
        work.wait()


def test_messages_of_one_tag_keep_their_order(hpc):
    there, back = (hpc.rank + 1) % hpc.size, (hpc.rank - 1) % hpc.size
    sent = [hpc.isend(np.array([i]), there) for i in range(50)]
    got = [hpc.irecv(np.zeros(1, np.int64), back) for _ in range(50)]
    assert [int(work.wait()[0]) for work in got] == list(range(50))
    for work in sent:
        work.wait()


def test_a_message_does_not_meet_a_collective_of_the_same_tag(hpc):
    """Collectives use small tags of their own: on another message space than these."""
    there, back = (hpc.rank + 1) % hpc.size, (hpc.rank - 1) % hpc.size
    early = [hpc.isend(np.array([-1.0, tag]), there, tag) for tag in range(5)]
    x = np.array([1.0, hpc.rank])
    hpc.all_reduce(x, algorithm="ring")
    under_way = hpc.all_reduce(np.array([2.0, hpc.rank]), algorithm="ring", async_op=True)
    total = hpc.size * (hpc.size - 1) / 2
    assert x.tolist() == [hpc.size, total]
    assert under_way.wait().tolist() == [2 * hpc.size, total]
    for tag in reversed(range(5)):
        assert hpc.recv(np.zeros(2), back, tag).tolist() == [-1.0, tag]
    for work in early:
        work.wait()


@pytest.mark.needs_ranks(2)
def test_waiting_for_a_message_carries_collectives_on(hpc):
    """Rank r waits for a message that r - 1 sends only after a collective in which r takes part."""
    x = np.full(1000, hpc.rank, np.float64)
    work = hpc.all_reduce(x, algorithm="ring", async_op=True)
    if hpc.rank == 0:
        work.wait()
        hpc.send(np.array([7]), 1)
    elif hpc.rank == 1:
        assert hpc.recv(np.zeros(1, np.int64), 0).tolist() == [7]
    assert set(work.wait()) == {hpc.size * (hpc.size - 1) / 2}


@pytest.mark.parametrize("most", [1, 8, 100])
@pytest.mark.parametrize("dtype", ["int8", "complex128"])
def test_large_messages_are_cut_into_parts(in_python, monkeypatch, most, dtype):
    monkeypatch.setattr(messaging, "LONGEST_SEGMENT", most)
    hpc = in_python
    x = make_input(DTYPES[dtype], 1, hpc.rank, 61)
    y = np.zeros_like(x)
    around(hpc, x, y)
    assert y.tobytes() == make_input(DTYPES[dtype], 1, (hpc.rank - 1) % hpc.size, 61).tobytes()


def test_what_is_sent_may_be_strided_read_only_or_let_go_of(hpc):
    x = np.arange(40).reshape(8, 5)[::2, 1:4] + hpc.rank
    strided = np.arange(80).reshape(8, 10)[::2, 1:4]
    strided.flags.writeable = False
    there, back = (hpc.rank + 1) % hpc.size, (hpc.rank - 1) % hpc.size
    works = [hpc.isend(strided, there), hpc.isend(x + 1, there)]
    got = hpc.recv(np.zeros((4, 3), np.int64), back)
    assert got.tolist() == strided.tolist()
    assert hpc.recv(np.zeros((4, 3), np.int64), back).tolist() == (x - hpc.rank + back + 1).tolist()
    for work in works:
        work.wait()


@pytest.mark.parametrize(("sent", "room"), [(5, 3), (3, 5)])
def test_a_message_of_another_size_is_told(hpc, sent, room):
    there, back = (hpc.rank + 1) % hpc.size, (hpc.rank - 1) % hpc.size
    for _ in range(2):  # a repeated message is not checked as the first one is
        work = hpc.isend(np.ones(sent), there)
        with pytest.raises(CommunicationError, match=f"rank {hpc.rank}: receiving from rank {back}"):
            hpc.recv(np.ones(room), back)
        work.wait()


@pytest.mark.parametrize("most", [messaging.MOST_DESCRIPTIONS, 3])  # descriptions of more kinds of messages are dropped
@pytest.mark.parametrize("way", ["hpc", "in_python"])
def test_repeated_messages_keep_their_dtype_tag_and_values(request, monkeypatch, most, way):
    hpc = request.getfixturevalue(way)
    monkeypatch.setattr(messaging, "MOST_DESCRIPTIONS", most)
    there, back = (hpc.rank + 1) % hpc.size, (hpc.rank - 1) % hpc.size
    known = get_recorder().read().calls[-1].serial if get_recorder().read().calls else -1
    kinds = [(dtype, tag) for dtype in (np.float32, np.int32) for tag in (0, 7)]
    for value in range(4):
        for dtype, tag in kinds:
            y = np.zeros(5, dtype)
            around(hpc, np.full(5, value + hpc.rank, dtype), y, tag)
            assert y.tolist() == [value + back] * 5
    calls = [call for call in get_recorder().read().calls if call.serial > known]
    sends = [(call.dtype, call.tag, call.peer, call.count) for call in calls if call.operation == "send"]
    assert sends == [(np.dtype(dtype).name, tag, there, 5) for dtype, tag in kinds] * 4


def test_a_repeated_message_is_refused_for_wrong_peers_and_read_only_arrays(hpc):
    x = np.zeros(3)
    for _ in range(2):
        around(hpc, np.ones(3), x)
    with pytest.raises(UsageError, match="is not a rank"):
        hpc.isend(x, hpc.size)
    x.flags.writeable = False
    with pytest.raises(BufferError, match="read-only"):
        hpc.irecv(x, hpc.rank)


@pytest.mark.parametrize("delay_s", [0.0, 0.02])  # a message that takes long is handed over to Python
def test_sendrecv_knows_its_sender_and_its_values(hpc, delay_s):
    there, back = (hpc.rank + 1) % hpc.size, (hpc.rank - 1) % hpc.size
    for count in (1, 1000, 200_000):  # the last one is sent by rendezvous
        time.sleep(delay_s if hpc.rank == 0 else 0)
        x = np.full(count, hpc.rank, np.int32)
        assert set(hpc.sendrecv(x, there, back, sendtag=count % 100, recvtag=count % 100)) == {back}
        assert set(hpc.sendrecv(x, there)) == {back}  # from any rank
    status = MPI.Status()
    work = hpc.isend(np.full(3, hpc.rank), there)
    time.sleep(delay_s if hpc.rank == 0 else 0)
    assert set(hpc.recv(np.empty(3, int), status=status)) == {back}
    assert (status.source, status.tag) == (back, 0)
    work.wait()


@pytest.mark.parametrize("delay_s", [0.0, 0.02])
@pytest.mark.parametrize(("sent", "room"), [(5, 3), (3, 5)])
def test_sendrecv_tells_of_a_message_of_another_size(hpc, sent, room, delay_s):
    there, back = (hpc.rank + 1) % hpc.size, (hpc.rank - 1) % hpc.size
    time.sleep(delay_s if hpc.rank == 0 else 0)
    with pytest.raises(
        CommunicationError, match=f"rank {hpc.rank}: receiving from rank {back}.*pass an array as large"
    ):
        hpc.sendrecv(np.ones(sent), there, back, out=np.ones(room))
    assert set(hpc.sendrecv(np.ones(sent), there, back)) == {1.0}


def test_blocking_messages_are_recorded(hpc):
    there, back = (hpc.rank + 1) % hpc.size, (hpc.rank - 1) % hpc.size
    hpc.sendrecv(np.ones(7), there, back, sendtag=3, recvtag=3)
    received, sent = get_recorder().read().calls[-2:]
    assert (sent.operation, sent.peer, sent.tag, sent.count, sent.dtype) == ("send", there, 3, 7, "float64")
    assert (received.operation, received.peer, received.tag, received.count) == ("recv", back, 3, 7)
    for message in (received, sent):
        assert message.ended_ns is not None
        assert message.begun_ns <= message.ended_ns
    assert not sent.failed
    assert not received.failed


@pytest.mark.parametrize("wrong", [{"dest": 99}, {"dest": 0, "tag": -1}, {"dest": 0, "tag": 2**15}])
def test_blocking_messages_refuse_wrong_arguments(hpc, wrong):
    dest, tag = wrong["dest"], wrong.get("tag", 0)
    with pytest.raises(UsageError):
        hpc.sendrecv(np.ones(2), dest, 0, sendtag=tag)


def test_closing_waits_for_messages_in_flight(comm, monkeypatch):
    """Each rank receives late, and waits for no message but by `close`, in which ranks do not wait for each other."""
    group, n = hpccoll.Communicator(comm), comm.size
    monkeypatch.setattr("hpccoll.communicator.base.wait_for_ranks", lambda *_: None)
    sent, received = np.full(2**20, comm.rank), np.zeros(2**20, np.int64)
    outgoing = group.isend(sent, (comm.rank + 1) % n)
    time.sleep(0.1 * comm.rank)
    incoming = group.irecv(received, (comm.rank - 1) % n)
    group.close()
    assert all(transfer.done for transfer in get_progress().transfers)
    assert outgoing.test()
    assert incoming.test()
    assert set(received) == {(comm.rank - 1) % n}


def test_dropped_handles_of_messages_keep_their_arrays(hpc):
    there, back = (hpc.rank + 1) % hpc.size, (hpc.rank - 1) % hpc.size
    received = [np.zeros(50_000, np.int32) for _ in range(100)]
    hpc.barrier()
    for number in range(100):
        hpc.irecv(received[number], back, number)
    for number in range(100):
        hpc.isend(np.full(50_000, 100 * hpc.rank + number, np.int32), there, number)  # the only reference to the array
    deadline = time.monotonic() + 60
    while not all((array == 100 * back + number).all() for number, array in enumerate(received)):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_messages_that_are_waited_for_late_or_in_another_thread(hpc):
    there, back = (hpc.rank + 1) % hpc.size, (hpc.rank - 1) % hpc.size
    incoming = hpc.irecv(np.zeros(100_000), back)
    assert not incoming.done
    assert incoming.source is None
    if hpc.size > 1:
        assert incoming.awaited is not None
    hpc.barrier()
    time.sleep(0.02 if hpc.rank else 0)
    outgoing = hpc.isend(np.full(100_000, 1.0 + hpc.rank), there)
    with ThreadPoolExecutor(1) as pool:
        results = [pool.submit(incoming.wait), pool.submit(outgoing.wait)]
        assert set(results[0].result()) == {1.0 + back}
        assert results[1].result() is None
    assert incoming.done
    assert incoming.source == back
    assert incoming.wait()[0] == 1.0 + back


def test_a_wait_for_a_message_ends_after_its_time(hpc):
    there, back = (hpc.rank + 1) % hpc.size, (hpc.rank - 1) % hpc.size
    incoming = hpc.irecv(np.zeros(3), back, 77)
    with pytest.raises(WaitTimeoutError):
        incoming.wait(timeout=0.01)
    hpc.barrier()
    work = hpc.isend(np.ones(3), there, 77)
    assert incoming.wait(timeout=60).tolist() == [1, 1, 1]
    work.wait()


def test_many_messages_in_random_order_beside_collectives(hpc):
    shared, own = random.Random(3), random.Random(hpc.rank)
    there, back = (hpc.rank + 1) % hpc.size, (hpc.rank - 1) % hpc.size
    for _ in range(20):
        sizes = [shared.randrange(2000) for _ in range(8)]
        sent = [hpc.isend(np.full(size, hpc.rank), there, tag) for tag, size in enumerate(sizes)]
        work = hpc.all_reduce(np.ones(300), async_op=True)
        tags = list(range(8))
        own.shuffle(tags)
        got = {tag: hpc.irecv(np.zeros(sizes[tag], np.int64), back, tag) for tag in tags}
        own.shuffle(tags)
        for tag in tags:
            assert got[tag].wait().tolist() == [back] * sizes[tag]
        assert set(work.wait()) == {hpc.size}
        for each in sent:
            each.wait()


def test_messages_to_and_from_no_rank_are_skipped(hpc):
    status, x = MPI.Status(), np.arange(3)
    assert hpc.send(x, hpccoll.PROC_NULL) is None
    assert hpc.send(x, None) is None
    assert hpc.isend(x, MPI.PROC_NULL).test()
    assert hpc.recv(x, hpccoll.PROC_NULL, 3, status=status) is x
    assert x.tolist() == [0, 1, 2]
    assert (status.source, status.tag) == (MPI.PROC_NULL, MPI.ANY_TAG)
    assert hpc.irecv(x, MPI.PROC_NULL).wait() is x
    assert hpc.send_object("nothing", hpccoll.PROC_NULL) is None
    assert hpc.recv_object(hpccoll.PROC_NULL) is None
    assert hpc.sendrecv(x, None, hpccoll.PROC_NULL).tolist() == [0, 0, 0]
    with pytest.raises(UsageError, match="unknown dtype"):  # as on the ranks that have a neighbor
        hpc.send(np.array(["text"]), hpccoll.PROC_NULL)


def test_the_borders_of_a_line_need_no_case_of_their_own(hpc):
    up = hpc.rank + 1 if hpc.rank + 1 < hpc.size else hpccoll.PROC_NULL
    down = hpc.rank - 1 if hpc.rank else hpccoll.PROC_NULL
    halo = hpc.sendrecv(np.array([hpc.rank]), up, down, out=np.array([-9]))
    assert halo == (hpc.rank - 1 if hpc.rank else -9)


def test_the_wildcard_has_a_name(hpc):
    sent = hpc.isend(np.array([4]), hpc.rank)
    assert hpc.recv(np.zeros(1, int), hpccoll.ANY_SOURCE) == 4
    sent.wait()


@pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="two ranks")
@pytest.mark.parametrize("call", ["recv", "sendrecv"])
def test_a_compared_message_of_another_dtype_is_refused(comm, call):
    with hpccoll.Communicator(comm, compare_arguments=True) as hpc:
        right, left = (hpc.rank + 1) % hpc.size, (hpc.rank - 1) % hpc.size
        x, out = np.full(4, hpc.rank, np.float32), np.zeros(4, np.int32)
        work = hpc.isend(x, right) if call == "recv" else None
        with pytest.raises(CommunicationError, match="a message of dtype float32 into an array of dtype int32"):
            _ = hpc.sendrecv(x, right, left, out=out) if work is None else hpc.recv(out, left)
        if work is not None:
            work.wait()
        hpc.sendrecv(x, right, out=out)  # receives from any rank do not compare dtypes
        raw = hpc.sendrecv(x.view(np.uint8), right, left, out=np.zeros(4, np.float32))  # bytes match every dtype
        assert raw.tolist() == hpc.sendrecv(x, right, left).tolist() == [left] * 4
        with pytest.raises(CommunicationError, match="a message of 16 bytes into an array of 20"):
            hpc.sendrecv(x, right, left, out=np.zeros(5, np.float32))
