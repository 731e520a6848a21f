"""One of several ranks that find the same fault reports it, however long a rank is delayed between two steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hpccoll.failures import report_claim, watchdog
from hpccoll.failures.report_claim import ReportClaim
from hpccoll.failures.watchdog import Watchdog
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.flight_recorder import FlightRecorder

COMM = 0xABC


def make_watchdog(directory: Path, rank: int, ranks: int, operation: str = "all_reduce") -> Watchdog:
    """Return the watchdog of a rank whose only call, `operation`, has not ended."""
    recorder = FlightRecorder(str(directory), rank, ranks, entries=64)
    made = CallRecorder(recorder)
    made.open(COMM, rank, ranks, tuple(range(ranks)))
    made.begin(operation, made.describe(operation, algorithm="ring", count=8, dtype="float32"))
    return Watchdog(recorder, f"rank {rank}", None, lambda: None)


def report(each: Watchdog) -> str | None:
    return each.report()


def explain(each: Watchdog) -> str | None:
    return each.explain_mismatch()


@pytest.mark.parametrize("find", [report, explain])
@pytest.mark.parametrize("delayed", [0, 1])
def test_a_rank_delayed_while_it_claims_and_a_rank_that_claims_meanwhile_report_once(
    tmp_path, monkeypatch, delayed, find
):
    calls = ("barrier", "scan", "scan")
    ranks = [make_watchdog(tmp_path, rank, 3, operation) for rank, operation in enumerate(calls)]
    texts: list[str | None] = []
    write = ranks[delayed].recorder.write_end_of_job

    def write_later(now_ns: int) -> None:
        """Let the other rank claim and report between this rank's look at claims and its own claim."""
        texts.append(find(ranks[1 - delayed]))
        write(now_ns)

    monkeypatch.setattr(ranks[delayed].recorder, "write_end_of_job", write_later)
    texts.append(find(ranks[delayed]))
    assert [text is not None for text in texts].count(True) == 1


class Network:
    """Carries the notices of watchdogs, each of which has a node of its own, when a receiver polls."""

    def __init__(self, directory: Path, ranks: int) -> None:
        self.ranks = [make_watchdog(directory / f"node{rank}", rank, ranks) for rank in range(ranks)]
        self.sent: list[list[object]] = [[] for _ in range(ranks)]
        for rank in self.ranks:
            rank.ask = self.send

    def send(self, rank: int, notice: object) -> None:
        self.sent[rank].append(notice)

    def poll(self, rank: int) -> None:
        notices, self.sent[rank] = self.sent[rank], []
        for notice in notices:
            self.ranks[rank].receive(notice)

    def report(self, rank: int, poll: Callable[[], None] | None = None) -> str | None:
        self.ranks[rank].poll = poll or partial(self.poll, rank)
        return self.ranks[rank].report()


class JobEnded(Exception):
    """The report of another rank has ended the job."""


@pytest.fixture
def net(tmp_path, monkeypatch) -> Network:
    """Two nodes of one rank each; a rank waits for answers in vain only briefly."""
    monkeypatch.setattr(watchdog, "COLLECT_S", 0.05)
    return Network(tmp_path, 2)


def test_the_lower_of_two_nodes_ranks_reports_if_both_claim_at_once(net):
    texts: list[str | None] = []

    def poll_when_asked() -> None:
        if net.sent[0]:
            net.poll(1)

    def poll_when_both_ask() -> None:
        if net.sent[1] and not texts:
            texts.append(net.report(1, poll_when_asked))
        net.poll(0)

    texts.append(net.report(0, poll_when_both_ask))
    assert texts[0] is None
    assert "rank 0 ends the job" in (texts[1] or "")


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_delayed_rank_leaves_the_report_to_the_higher_rank_of_another_node_unless_that_is_stopped(
    net, monkeypatch, is_stopped
):
    """Rank 1, which reports, no longer answers notices; then it ends the job, or is stopped."""
    if is_stopped:
        monkeypatch.setattr(watchdog, "CLAIM_S", 0.05)
    polls, write = [0], net.ranks[0].recorder.write_end_of_job

    def write_after_other_report(now_ns: int) -> None:
        assert "rank 1 ends the job" in (net.report(1) or "")
        write(now_ns)

    def poll() -> None:
        net.poll(0)
        polls[0] += 1
        if polls[0] == 12 and not is_stopped:  # longer than rank 0 waits for an answer to collect recordings
            raise JobEnded

    monkeypatch.setattr(net.ranks[0].recorder, "write_end_of_job", write_after_other_report)
    if is_stopped:
        assert "rank 0 ends the job" in (net.report(0, poll) or "")
    else:
        with pytest.raises(JobEnded):
            net.report(0, poll)


def test_a_claim_is_held_until_it_is_released_or_too_old(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.touch()
    first, second, third = ReportClaim(), ReportClaim(), ReportClaim()
    assert [first.take(str(path)), first.take(str(path)), second.take(str(path))] == [True, True, False]
    first.release()
    assert [second.take(str(path)), first.take(str(path)), third.take(str(path))] == [True, False, False]
    monkeypatch.setattr(report_claim, "CLAIM_S", 0.0)
    assert [first.take(str(path)), third.take(str(path))] == [True, False]
    monkeypatch.setattr(report_claim, "CLAIM_S", 0.02)
    late = ReportClaim()
    assert late.take(str(tmp_path / "removed")) is False
    time.sleep(0.03)
    assert late.take(str(tmp_path / "removed"))


def test_a_rank_that_ends_the_job_leaves_the_recordings_of_another_job(tmp_path, monkeypatch):
    monkeypatch.delenv("HPCCOLL_RECORDER", raising=False)
    other = FlightRecorder(str(tmp_path), 0, 2, entries=64)
    other.add_communicator(COMM + 1, 0, 2, (0, 1))
    own = make_watchdog(tmp_path, 0, 2)
    (own_path,) = [path for path in tmp_path.iterdir() if str(path) != other.path]
    own_path.unlink()  # as `rm /dev/shm/*` does
    own.end_job()
    assert [str(path) for path in tmp_path.iterdir()] == [other.path]
