"""When the calls of a communicator are told of a death: after all survivors have answered, or at once in `close`."""

from __future__ import annotations

from typing import Any

import pytest
from mpi4py import MPI

from hpccoll.failures.rank_losses import LossNotice, LossWatch
from hpccoll.runtime.recorder.call_recorder import CallRecorder


class FourRanks:
    """The communicator of rank 0 of four ranks."""

    rank, size, is_revoked = 0, 4, False

    def Revoke(self):  # noqa: N802 - the name of mpi4py
        self.is_revoked = True


@pytest.mark.parametrize("is_closing", [False, True])
def test_a_rank_that_closes_waits_for_no_answers_and_revokes_nothing(is_closing):
    comm: Any = FourRanks()
    state, sent, stopped = CallRecorder(), [], []
    state.is_closing = is_closing
    watch = LossWatch([comm], state, ["a", "b", "c", "d"])
    watch.receive(LossNotice(3, (2,)))  # rank 1 has not answered

    def advance() -> bool:
        return watch.advance(MPI.GROUP_EMPTY, lambda rank, _: sent.append(rank), lambda: stopped.append(True))

    assert advance() == (not is_closing)
    assert sent == [1, 3]
    assert (state.interruption is not None) == is_closing
    assert not comm.is_revoked
    watch.receive(LossNotice(1, (2,)))
    assert not advance()
    assert state.interruption.ranks == (2,)
    assert comm.is_revoked == (not is_closing)
