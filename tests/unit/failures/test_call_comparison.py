"""Which calls of two ranks are found to differ, and when ranks tell each other about their calls."""

from __future__ import annotations

import pytest

from hpccoll.failures.call_comparison import FIRST_NOTICE_S, REPEAT_S, CallComparison, UnfinishedCall
from hpccoll.runtime.recorder.call_recorder import CallRecorder

COMMUNICATOR = 0xABC
RING = {"algorithm": "ring", "count": 8, "dtype": "float32", "reduction": "sum"}


class Rank:
    """A rank that is in its first collective call, `operation`."""

    def __init__(self, operation="all_reduce", communicator=COMMUNICATOR, **fields):
        self.sent: list[UnfinishedCall] = []
        self.state = CallRecorder()
        self.state.open(communicator, 0, 2, (0, 1))
        self.state.begin(operation, self.state.describe(operation, **fields))
        self.comparison = CallComparison(self.state, [1], lambda _, notice: self.sent.append(notice))

    def tell(self, other: Rank, times: int = 2) -> None:
        """Wait from time 0 for as long as it takes to tell `other` about this call `times` times."""
        for number in range(times):
            now = FIRST_NOTICE_S + REPEAT_S * number
            self.comparison.announce(1, now)
            other.comparison.receive(1, self.sent[-1], now)


@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        ("all_reduce", RING | {"algorithm": "tree"}),
        ("all_reduce", RING | {"algorithm": "mpi"}),
        ("all_reduce", RING | {"root": 1}),
        ("reduce", RING),
        ("empty", {}),
    ],
)
def test_a_call_that_differs_is_found(operation, fields):
    own, other = Rank(**RING | {"root": 0}), Rank(operation, **fields)
    other.tell(own)
    found = own.comparison.find_difference(1, since=0.0)
    assert found is not None
    assert found[0].operation == "all_reduce"
    assert found[1:] == (1, other.sent[-1].call)


@pytest.mark.parametrize("changed", [{}, {"count": 9}, {"dtype": "int32"}, {"asynchronous": True}, {"root": 1}])
def test_other_differences_do_not_count(changed):
    own, other = Rank(**RING), Rank(**RING | changed)
    other.tell(own)
    assert own.comparison.find_difference(1, since=0.0) is None


def test_calls_on_other_communicators_are_not_compared():
    own, other = Rank(**RING), Rank("barrier", COMMUNICATOR + 1)
    other.tell(own)
    assert own.comparison.find_difference(1, since=0.0) is None


def test_one_notice_does_not_count():
    own, other = Rank(**RING), Rank("barrier")
    other.tell(own, times=1)
    assert own.comparison.find_difference(1, since=0.0) is None


def test_a_call_that_this_rank_has_not_made_is_compared_later():
    own, other = Rank(**RING), Rank("barrier")
    other.tell(own)
    assert own.comparison.find_difference(0, since=0.0) is None
    assert own.comparison.find_difference(1, since=0.0) is not None


def test_notices_before_the_wait_of_this_rank_do_not_count():
    """The neighbour may have left its call by an exception that its program caught."""
    own, other = Rank(**RING), Rank("barrier")
    other.tell(own)
    assert own.comparison.find_difference(1, since=FIRST_NOTICE_S) is None
    other.tell(own, times=3)
    assert own.comparison.find_difference(1, since=FIRST_NOTICE_S) is not None


def test_notices_are_sent_every_second_of_each_wait():
    rank, times = Rank(**RING), []
    for waited_s in (0, 0.5, 1, 1.5, 2, 2.5, 3, 0, 0.5, 1):
        before = len(rank.sent)
        rank.comparison.announce(1, waited_s)
        times += [waited_s] * (len(rank.sent) - before)
    assert times == [1, 2, 3, 1]
