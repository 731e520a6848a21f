"""Tests how often, and in which thread, operations with futures are polled."""

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from hpccoll.torch.futures import PAUSE_ACROSS_NODES_S, PAUSE_S, FutureCompleter, get_pause_s


@pytest.mark.parametrize(
    ("node_counts", "pause_s"), [([1], PAUSE_S), ([2, 4], PAUSE_ACROSS_NODES_S), ([4, 1], PAUSE_S)]
)
def test_operations_across_nodes_are_polled_less_often(node_counts, pause_s):
    operations = [SimpleNamespace(comm=SimpleNamespace(node_count=count)) for count in node_counts]
    assert get_pause_s(operations) == pause_s


class CountingOperation:
    """A collective across nodes that is complete at the third poll; `polls` are the threads of the polls."""

    is_message, has_future = False, True

    def __init__(self):
        self.comm, self.polls = SimpleNamespace(node_count=2), []

    def is_completed(self):
        self.polls.append(threading.current_thread())
        return len(self.polls) >= 3

    complete_future = is_completed


def test_the_next_collective_across_nodes_leaves_the_polls_to_the_thread_of_futures():
    completer, operation = FutureCompleter(), CountingOperation()
    completer.add(operation)
    completer.wait_for_collectives(operation.comm)
    assert len(operation.polls) == 3
    assert threading.current_thread() not in operation.polls
