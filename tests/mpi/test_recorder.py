"""Every kind of call leaves an entry in the flight recorder of its rank, with the arguments of the call."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hpccoll.arrays import Reduction
from hpccoll.communicator import Communicator
from hpccoll.errors import CommunicationError, MismatchError, WaitTimeoutError
from hpccoll.recordings import CallKind, RecordedCall
from hpccoll.runtime.recorder.flight_recorder import get_recorder


class Taped:
    """A communicator, and the entries of its calls in the flight recorder."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._known = {call.serial for call in get_recorder().read().calls}

    def read(self, communicator: Communicator | None = None) -> list[RecordedCall]:
        """Return the calls on a communicator (by default `comm`) since this object was made."""
        wanted = (communicator or self.comm)._state.communicator
        return [
            call
            for call in get_recorder().read().calls
            if call.communicator == wanted and call.serial not in self._known
        ]


@pytest.fixture
def taped(own: Communicator) -> Taped:
    return Taped(own)


@pytest.fixture
def own(comm) -> Iterator[Communicator]:
    with Communicator(comm) as made:
        yield made


def of_collective(calls: list[RecordedCall]) -> list[tuple[str, str, int, str, str, int | None]]:
    """Return the fields that must be equal on all ranks."""
    return [
        (call.operation, call.algorithm, call.count, call.dtype, call.reduction, call.root)
        for call in calls
        if call.kind is CallKind.COLLECTIVE
    ]


@pytest.mark.parametrize("algorithm", ["mpi", "ring", "shared_two_shot"])
def test_first_later_and_prepared_calls(taped, algorithm):
    x = np.ones(8, np.float32)
    prepared = taped.comm.all_reduce_init(x, "prod", algorithm=algorithm)
    for _ in range(4):
        taped.comm.all_reduce(x, "prod", algorithm=algorithm)
    for _ in range(3):  # on new arrays
        taped.comm.all_reduce(np.ones(8, np.float32), "prod", algorithm=algorithm)
    prepared()
    prepared.free()
    calls = [call for call in taped.read() if call.operation != "prepare"]
    assert of_collective(calls) == [("all_reduce", algorithm, 8, "float32", "prod", None)] * 8
    assert [call.number for call in calls] == list(range(2, 10))
    assert {call.state for call in calls} == {"ended"}
    assert all(call.begun_ns <= (call.ended_ns or 0) for call in calls)


def test_completed_rounds_of_a_call_that_has_not_ended(taped):
    seen = []

    def add(a, b):
        """Add, and note how many rounds are complete: a ring reduces in its first p - 1 rounds."""
        call = taped.read()[-1]
        seen.append((call.operation, call.state, call.round, call.rounds))
        return a + b

    comm, x = taped.comm, np.ones(taped.comm.size, np.float64)
    reduction = Reduction.from_function(add)
    prepared = comm.all_reduce_init(x, reduction, algorithm="ring")
    calls = [prepared, prepared, *[lambda: comm.all_reduce(np.ones(comm.size), reduction, algorithm="ring")] * 3]
    for call in calls:
        seen.clear()
        call()
        if comm.size > 1:  # one rank's plan has no rounds
            expected = [("all_reduce", "begun", t, 2 * (comm.size - 1)) for t in range(comm.size - 1)]
            assert list(dict.fromkeys(seen)) == expected
    work = comm.all_reduce(x, reduction, algorithm="ring", async_op=True)
    seen.clear()
    work.wait()
    assert {completed for _, _, completed, _ in seen} <= {None}  # only blocking calls record their rounds
    assert {call.rounds for call in taped.read()} == {None}


@pytest.mark.parametrize("algorithm", ["mpi", "ring", "hierarchical_ring"])
def test_asynchronous_calls(taped, algorithm):
    works = [taped.comm.all_reduce(np.ones(9), async_op=True, algorithm=algorithm) for _ in range(2)]
    for work in works:
        work.wait()
    calls = taped.read()
    assert of_collective(calls) == [("all_reduce", algorithm, 9, "float64", "sum", None)] * 2
    for call in calls:
        assert call.asynchronous
        assert call.state == "ended"
        assert call.begun_ns <= (call.started_ns or 0) <= (call.ended_ns or 0)


def test_only_a_wait_for_an_incomplete_call_is_recorded(taped):
    comm, x = taped.comm, np.empty(1)
    waited = comm.irecv(x, comm.rank)
    with pytest.raises(WaitTimeoutError):
        waited.wait(timeout=0.001)
    (call,) = taped.read()
    assert call.is_waited_for
    comm.isend(np.ones(1), comm.rank).wait()
    while not waited.test():
        pass
    early, waited_ns = comm.irecv(x, comm.rank), taped.read()[0].waited_ns
    waited.wait()
    comm.isend(np.ones(1), comm.rank).wait()
    while not early.test():
        pass
    early.wait()
    received = [call for call in taped.read() if call.operation == "recv"]
    assert [call.waited_ns for call in received] == [waited_ns, None]


def test_operations_and_counts(taped):
    comm, n = taped.comm, taped.comm.size
    comm.broadcast(np.ones(3), root=n - 1)
    comm.reduce(np.ones(3), root=0)
    comm.all_gather(np.ones(3))
    comm.reduce_scatter(np.ones(3 * n, np.int64))
    comm.all_to_all(np.ones(2 * n, np.int32))
    comm.scan(np.ones(5))
    comm.barrier()
    comm.all_gather(np.ones((comm.rank + 1, 2)), counts=range(1, n + 1))
    comm.all_gather_object({"any": "object"})
    calls = taped.read()
    assert [call.operation for call in calls] == [
        "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "scan", "barrier", "all_gather",
        "all_gather_object",
    ]  # fmt: skip
    assert [call.count for call in calls] == [3, 3, 3, 3, 2, 5, 0, n * (n + 1), 0]
    assert [call.root for call in calls] == [n - 1, 0, *[None] * 7]
    assert [call.uneven for call in calls] == [False] * 7 + [True, False]
    assert [call.number for call in calls] == list(range(1, 10))
    assert calls[5].reduction == "sum"
    assert calls[2].reduction == ""


def test_all_ranks_record_the_same(taped):
    comm = taped.comm
    for count in (1, 100, 10_000):
        comm.all_reduce(np.ones(count))
        comm.broadcast(np.ones(count))
    seen = comm.all_gather_object((comm._state.communicator, of_collective(taped.read())))
    assert seen.count(seen[0]) == comm.size


def test_messages(taped):
    comm = taped.comm
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    receive = comm.irecv(np.empty(4, np.int16), left, tag=3)
    send = comm.isend(np.ones(4, np.int16), right, tag=3)
    send.wait()
    receive.wait()
    send = comm.isend(np.ones(2), right)
    comm.recv(np.empty(2))
    send.wait()
    calls = taped.read()
    assert [call.kind for call in calls] == [CallKind.RECEIVE, CallKind.SEND, CallKind.SEND, CallKind.RECEIVE]
    assert [call.operation for call in calls] == ["recv", "send", "send", "recv"]
    assert [call.peer for call in calls] == [left, right, right, None]
    assert [call.tag for call in calls] == [3, 3, 0, 0]
    assert [(call.count, call.dtype) for call in calls] == [(4, "int16")] * 2 + [(2, "float64")] * 2
    assert {call.state for call in calls} == {"ended"}
    assert [call.number for call in calls] == [1, 2, 3, 4]


def test_groups_have_ids_and_members_of_their_own(taped):
    comm = taped.comm
    group = comm.split(comm.rank % 2, key=-comm.rank)
    group.barrier()
    calls = taped.read(group)
    assert [(call.operation, call.number) for call in calls] == [("barrier", 1)]
    assert [(call.operation, call.kind) for call in taped.read()] == [
        ("split", CallKind.COLLECTIVE),
        ("split", CallKind.WAIT),
    ]
    recorded = get_recorder().read().communicators[calls[0].communicator]
    expected = tuple(rank for rank in reversed(range(comm.size)) if rank % 2 == comm.rank % 2)
    assert recorded.members is not None
    assert [comm._comm.group.Translate_ranks([rank], comm._comm.group)[0] for rank in expected] == list(expected)
    assert len(recorded.members) == len(expected)
    assert (recorded.rank, recorded.is_open) == (group.rank, True)
    group.close()
    assert not get_recorder().read().communicators[calls[0].communicator].is_open


@pytest.mark.needs_ranks(2)
def test_failed_calls(taped):
    comm = taped.comm
    with pytest.raises(MismatchError):
        comm.all_reduce(np.ones(4 + comm.rank), algorithm="shared_one_shot")
    assert taped.read()[-1].state == "failed"


def test_message_of_another_size_has_failed(taped):
    comm = taped.comm
    send = comm.isend(np.ones(3), comm.rank)
    with pytest.raises(CommunicationError):
        comm.recv(np.empty(4), comm.rank)
    send.wait()
    assert [call.state for call in taped.read()] == ["ended", "failed"]


@pytest.mark.full_except_on(1, 2)
def test_wrapped_ring_keeps_the_latest_calls_and_counts_the_lost(taped):
    x = np.ones(1)
    for _ in range(get_recorder().entries + 10):
        taped.comm.all_reduce(x)
    calls = taped.read()
    assert len(calls) == get_recorder().entries
    assert calls[-1].number == get_recorder().entries + 10
    assert get_recorder().read().lost >= 10


@pytest.mark.full_except_on(2, 3)
def test_many_communicators(comm):
    ids = []
    for _ in range(100):
        with Communicator(comm) as made:
            made.barrier()
            ids.append(made._state.communicator)
    recording = get_recorder().read()
    assert len(set(ids)) == 100
    assert recording.communicators[ids[-1]].is_open is False
    assert {call.communicator for call in recording.calls[-2:]} == {ids[-1]}


@pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called")  # JAX warns if other tests have loaded it
def test_forked_child_leaves_the_recording_of_its_parent_alone(taped):
    comm, x = taped.comm, np.ones(2)
    for _ in range(3):
        comm.all_reduce(x)
    work = comm.irecv(np.empty(1), comm.rank)
    before = [call for call in taped.read() if call.kind is CallKind.COLLECTIVE]
    child = os.fork()
    if child == 0:
        for call in (lambda: comm.all_reduce(x), comm.barrier, work.wait, get_recorder().remove):
            try:
                call()
            except Exception as error:  # noqa: BLE001 - a forked child must only not write
                print(error, file=sys.stderr)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    calls = taped.read()
    assert [call for call in calls if call.kind is CallKind.COLLECTIVE] == before
    assert calls[-1].waited_ns is None
    path = get_recorder().path
    assert path is None or Path(path).exists()
    send = comm.isend(np.ones(1), comm.rank)
    work.wait()
    send.wait()
