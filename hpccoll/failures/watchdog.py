"""Ends the job with one report if a call of a rank does not finish within HPCCOLL_TIMEOUT seconds.

The report is made from the recordings of all ranks. A rank reads the recorder files of its node itself, so that stopped
and dead ranks need not answer. A rank asks the ranks whose files it cannot read, such as those of other nodes, by
notices; a rank that answers also reads the files of its node for ranks that do not answer. Every rank whose call has
not finished may report. A rank first claims the report, by a lock that one rank per node can hold (report_claim.py) and
by its notices. If ranks of several nodes claim the report, the lowest rank among them reports: a rank that receives the
notice of a lower rank before it reports withdraws its claim and answers. Before a rank reports, it waits for the answer
of each higher rank that has claimed the report; a rank that has begun to report does not answer.

Without MPI_THREAD_MULTIPLE no notices are sent: the report then rests on the recorder files that the rank can read, and
the process exits with status 4, upon which launchers end the job.

Modules that analyze recordings are imported for a report only, because imports take most of the time in which a job of
many ranks starts.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hpccoll.errors import RecordingError
from hpccoll.failures.report_claim import CLAIM_S, ReportClaim
from hpccoll.failures.time_limit import TIMEOUT, read_timeout
from hpccoll.private_files import read_private
from hpccoll.recordings.layout import MOST_FILE_BYTES
from hpccoll.recordings.process_notes import ObservedState, read_end_of_job
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.flight_recorder import DIRECTORY, FlightRecorder

if TYPE_CHECKING:
    from hpccoll.crash import CrashAnalysis, JobEvidence, ProcessState
    from hpccoll.recordings import Recording

STAGGER_S: Final = 0.03  # per rank, before a rank claims the report, so that mostly the lowest rank does
MOST_STAGGERED: Final = 20
LATE_S: Final = 1.0  # of ranks that make their call after another rank has failed in it
COLLECT_S: Final = 1.2  # for answers to a request, which a thread reads twice per second
POLL_S: Final = 0.02
LOOK_S: Final = 0.5  # between two checks for stopped ranks


@dataclass(frozen=True, slots=True)
class RecordingRequest:
    """The notice that rank `claimant` reports a call that does not finish, and needs the recorder files of `ranks`."""

    claimant: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordingAnswer:
    """The answer of rank `sender` to a `RecordingRequest`.

    `contents` has compressed recorder files by rank, and `states` has the states of the processes by rank. `readable`
    lists the ranks whose files the sender can read.
    """

    sender: int
    contents: Mapping[int, bytes]
    states: Mapping[int, ProcessState]
    readable: tuple[int, ...]


@dataclass(slots=True)
class _Collection:
    """The recordings (contents of recorder files) and process states that a rank has collected, by rank.

    `elsewhere` has recordings of other hosts in a shared directory, which may be older than the entries of
    `recordings`. `answered` has the ranks from which an answer has arrived, and `readable` has the ranks whose files
    each of these ranks can read.
    """

    recordings: dict[int, Recording]
    elsewhere: dict[int, Recording]
    states: dict[int, ProcessState]
    readable: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by the rank that answered
    answered: set[int] = field(default_factory=set)

    @property
    def stopped(self) -> tuple[int, ...]:
        """The ranks whose processes are stopped."""
        from hpccoll.crash import ProcessState

        return tuple(sorted(rank for rank, state in self.states.items() if state is ProcessState.STOPPED))


class Watchdog:
    """Collects the recordings (recorder files) of all ranks, and explains from them why a call does not finish.

    Args:
        recorder: the recorder of this process.
        where: the name of this rank for messages.
        ask: sends a notice to a rank of MPI.COMM_WORLD; None if notices cannot be sent.
        poll: receives notices, and passes them to `receive`.
    """

    def __init__(
        self,
        recorder: FlightRecorder,
        where: str,
        ask: Callable[[int, object], None] | None,
        poll: Callable[[], None],
    ) -> None:
        self.recorder, self._where, self.ask, self.poll = recorder, where, ask, poll
        self._collection: _Collection | None = None
        self._claim = ReportClaim()
        # The time of the next check for stopped ranks, and the number of checks in a row that found stopped ranks.
        self._next_look, self._looks_with_stopped = 0.0, 0
        self._rivals: dict[int, float] = {}  # ranks of other nodes that have claimed the report, and when

    def receive(self, notice: object) -> None:
        """Handle a notice of another rank's watchdog."""
        match notice:
            case RecordingRequest(claimant, ranks) if self.ask is not None:
                self._rivals[claimant] = time.monotonic()
                self.ask(claimant, self._make_answer(ranks))
            case RecordingAnswer() if self._collection is not None:
                from hpccoll.recordings.recording import parse_recording

                self._collection.answered.add(notice.sender)
                for rank, contents in notice.contents.items():
                    with suppress(RecordingError, zlib.error):
                        recording = parse_recording(zlib.decompress(contents), "message")
                        self._collection.recordings[rank] = recording
                        self._collection.readable[rank] = notice.readable
                self._collection.states.update(notice.states)

    def find_stopped(self) -> tuple[int, ...]:
        """Return the ranks of this node whose processes are stopped."""
        return self._read_node().stopped

    def describe_stopped(self) -> str:
        """Return why this rank, whose program has ended, ends the job: a rank has been stopped for HPCCOLL_TIMEOUT.

        The string is empty if no rank of this node is stopped for so long. To be called often; checks the ranks twice
        per second.
        """
        limit_s, now = read_timeout(), time.monotonic()
        if limit_s is None or now < self._next_look:
            return ""
        self._next_look = now + LOOK_S
        self._looks_with_stopped = self._looks_with_stopped + 1 if self.find_stopped() else 0
        if self._looks_with_stopped * LOOK_S <= limit_s:
            return ""
        return (
            "its program has ended, but that of another rank, which is stopped, has not ended within "
            f"{TIMEOUT}={limit_s:g} s"
        )

    def report(self, reason: str = "") -> str | None:
        """Claim the report on a call that does not finish, and return its text; None if another rank reports.

        `reason` states why this rank ends the job; by default, because its latest call has not finished in time.
        """
        rank = self.recorder.rank
        time.sleep(min(rank, MOST_STAGGERED) * STAGGER_S)
        self.poll()
        collection = self._collection = self._read_node()
        if not self._take_claim(collection):
            return None
        if self.ask is not None:
            self._ask_others(self.ask)
            self._poll_until(lambda: collection.answered.issuperset(self._list_rivals(above=rank)), CLAIM_S)
        if self._list_rivals(below=rank):
            self.recorder.write_end_of_job(0)
            self._claim.release()
            return None
        for other in collection.stopped:
            self.recorder.observe(time.monotonic_ns(), other, ObservedState.STOPPED)
        return self._explain(collection, reason)

    def _explain(self, collection: _Collection, reason: str) -> str:
        """Return the report on the collected recordings; `reason` is that of `report`."""
        from hpccoll.crash import format_analysis, format_call

        evidence, analysis = _analyze(collection)
        own = evidence.ranks[self.recorder.rank].last_call
        call = "call" if own is None else format_call(own)
        reason = reason or f"its {call} has not finished within {TIMEOUT}={read_timeout() or 0:g} s"
        return f"Error: {self._where} ends the job: {reason}.\n{format_analysis(evidence, analysis)}\n{_advise()}"

    def explain_mismatch(self) -> str | None:
        """Return a text that names the ranks that made different calls; None if another rank prints a report.

        The text is empty if the recordings show no difference. Waits up to a second while the recordings do not show
        which ranks differ from a majority, because late ranks may not yet have made their calls.
        """
        from hpccoll.crash import format_analysis

        if not self._take_claim(self._read_node()):
            return None
        end = time.monotonic() + LATE_S
        while True:
            evidence, analysis = _analyze(self._collect())
            if analysis.guilty or time.monotonic() > end:
                return f"{format_analysis(evidence, analysis)}\n" if analysis.disagreement is not None else ""
            time.sleep(POLL_S)

    def explain_wait(self, state: CallRecorder, awaited: tuple[int, tuple[int, ...]]) -> str:
        """Return a text that names the ranks that this rank waits for, with their last operations.

        Args:
            state: the recorder of this rank's calls on the communicator of the operation.
            awaited: a pair: the number of the awaited collective call, or 0 for messages; and the peers of the
                messages.
        """
        from hpccoll.crash import format_disagreement, format_last_operations, format_ranks
        from hpccoll.recordings.job_evidence import name_communicator

        evidence, analysis = _analyze(self._collect())
        (number, peers), communicator = awaited, name_communicator(state.communicator)
        members = evidence.list_members(communicator)
        if not number:
            ranks = [members[peer] for peer in peers] or [rank for rank in members if rank != state.recorder.rank]
            return f"the other end of the message: {format_last_operations(evidence, ranks)}"
        began = {rank for rank, each in evidence.ranks.items() if each.progress.get(communicator, 0) >= number}
        late = [rank for rank in members if rank not in began]
        if late:
            verb = "has" if len(late) == 1 else "have"
            return f"{format_ranks(late)} {verb} not called it: {format_last_operations(evidence, late)}"
        if analysis.disagreement is not None:
            return format_disagreement(evidence, analysis.disagreement)
        return "every rank has called it"

    def find_unnoticed_mismatch(self) -> str:
        """Return the report on calls that differed between ranks but have finished; empty if there are none.

        To be called when the programs of all ranks have ended. Only the lowest rank of each node compares the calls.
        """
        from hpccoll.crash import format_analysis

        found = self._read_node()
        if min(found.recordings) < self.recorder.rank:
            return ""
        evidence, analysis = _analyze(found)
        if analysis.disagreement is None:
            return ""
        begin = f"Error: {self._where} ends the job: ranks made different calls, which have finished nevertheless"
        return f"{begin}, so their results may be wrong.\n{format_analysis(evidence, analysis)}\n{_advise()}"

    def find_guilty(self, dead: frozenset[int]) -> tuple[tuple[int, ...], str]:
        """Return the ranks, other than the ranks `dead`, for which other ranks wait, and the report on their calls."""
        from hpccoll.crash import format_analysis

        collection = self._collect()
        for rank in dead:
            for each in (collection.recordings, collection.elsewhere, collection.states):
                each.pop(rank, None)
        evidence, analysis = _analyze(collection)
        return analysis.guilty, format_analysis(evidence, analysis)

    def end_job(self) -> None:
        """Record that this rank ends the job; remove the node's recorder files unless HPCCOLL_RECORDER keeps them."""
        self.recorder.write_end_of_job(time.monotonic_ns())
        if not os.environ.get(DIRECTORY):
            for recording in self._read_node().recordings.values():
                with suppress(OSError):
                    os.unlink(recording.path)  # noqa: PTH108 - `pathlib` takes 5 ms to import

    def _take_claim(self, collection: _Collection) -> bool:
        """Claim the report on the recordings of this node; return False if another rank has claimed it recently."""
        own, now = self.recorder.rank, time.monotonic()
        claims = [read_end_of_job(each.path) for rank, each in collection.recordings.items() if rank != own]
        if self._list_rivals() or any(claimed_ns and now - claimed_ns * 1e-9 < CLAIM_S for claimed_ns in claims):
            return False
        path = collection.recordings[min(collection.recordings)].path
        if self.recorder.path is not None and not self._claim.take(path):
            return False
        self.recorder.write_end_of_job(time.monotonic_ns())
        return True

    def _list_rivals(self, above: int = -1, below: int | None = None) -> list[int]:
        """Return the ranks of other nodes that claimed the report in the last CLAIM_S seconds.

        The ranks are greater than `above` and less than `below`.
        """
        now = time.monotonic()
        recent = [rank for rank, since in self._rivals.items() if now - since < CLAIM_S]
        return [rank for rank in recent if rank > above and (below is None or rank < below)]

    def _read_node(self) -> _Collection:
        """Return a `_Collection` of this job's recordings in the directory of this rank's recorder file."""
        from hpccoll.recordings import read_recordings
        from hpccoll.recordings.job_evidence import observe_processes

        recorder, own = self.recorder, self.recorder.read()
        found: dict[int, Recording] = {recorder.rank: own}
        elsewhere: dict[int, Recording] = {}
        communicator = next(iter(own.communicators), None)
        if recorder.path is not None and communicator is not None:
            with suppress(RecordingError):
                directory = os.path.dirname(recorder.path)  # noqa: PTH120
                for each in read_recordings(directory, communicator).recordings:
                    (found if each.host == own.host else elsewhere)[each.rank] = each
        return _Collection(found, elsewhere, observe_processes(found.values()) or {})

    def _collect(self) -> _Collection:
        """Return a `_Collection` of the recordings of all ranks, as far as they can be read."""
        collection = self._collection = self._read_node()
        if self.ask is not None:
            self._ask_others(self.ask)
        return collection

    def _make_answer(self, ranks: tuple[int, ...]) -> RecordingAnswer:
        """Return a `RecordingAnswer` with recorder files of ranks of this node, compressed to a few kilobytes each."""
        found = self._read_node()
        contents = {
            rank: zlib.compress(self._read_contents(found.recordings[rank]), 1)
            for rank in ranks
            if rank in found.recordings
        }
        states = {rank: state for rank, state in found.states.items() if rank in contents}
        return RecordingAnswer(self.recorder.rank, contents, states, tuple(found.recordings))

    def _read_contents(self, recording: Recording) -> bytes:
        """Return the contents of a recorder file; empty if the file was removed."""
        if recording.rank == self.recorder.rank:
            return bytes(self.recorder.memory)
        try:
            return read_private(recording.path, MOST_FILE_BYTES)
        except OSError:  # the file was removed after it had been read
            return b""

    def _ask_others(self, ask: Callable[[int, object], None]) -> None:
        """Ask each rank whose recorder file was not found for the file, then other ranks for files still missing."""
        assert self._collection is not None  # noqa: S101 - `report` has set it
        found, own = self._collection.recordings, self.recorder.rank
        missing = [rank for rank in range(found[own].size) if rank not in found]
        for rank in missing:
            ask(rank, RecordingRequest(own, (rank,)))
        self._poll_until(lambda: all(rank in found for rank in missing))
        by_delegate: dict[int, list[int]] = {}
        for rank in missing:
            delegates = [each for each, readable in self._collection.readable.items() if rank in readable]
            if rank not in found and delegates:
                by_delegate.setdefault(delegates[0], []).append(rank)
        for delegate, ranks in by_delegate.items():
            ask(delegate, RecordingRequest(own, tuple(ranks)))
        wanted = [rank for ranks in by_delegate.values() for rank in ranks]
        self._poll_until(lambda: all(rank in found for rank in wanted))

    def _poll_until(self, done: Callable[[], bool], limit_s: float | None = None) -> None:
        """Receive notices until `done` returns true, for at most `limit_s` seconds (COLLECT_S if `limit_s` is None)."""
        end = time.monotonic() + (COLLECT_S if limit_s is None else limit_s)
        while not done() and time.monotonic() < end:
            time.sleep(POLL_S)
            self.poll()


def _analyze(collection: _Collection) -> tuple[JobEvidence, CrashAnalysis]:
    """Return the evidence in the collected recordings, and its analysis, as a pair."""
    from hpccoll.crash import analyze
    from hpccoll.recordings.job_evidence import make_evidence

    recordings = {**collection.elsewhere, **collection.recordings}
    evidence = make_evidence(recordings.values(), collection.states)
    return evidence, analyze(evidence)


def _advise() -> str:
    """Return a sentence that names the directory of the recordings, or the way to keep recordings."""
    directory = os.environ.get(DIRECTORY)
    if directory:
        return f"The recordings are in {directory}; `hpccoll report --crash {directory}` explains them again.\n"
    return f"Set {DIRECTORY}=DIR to keep the recordings, which `hpccoll report --crash DIR` explains.\n"
