"""Turns the analysis of a crashed job into a record of kind `crash`."""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.crash import CallRecord, CrashAnalysis, Disagreement, JobEvidence, RankEvidence
from hpccoll.records import CallGroup, CrashRecord, FirstDisagreement, RankState, RecordedOperation


def make_crash_record(job: JobEvidence, analysis: CrashAnalysis, problems: Sequence[str]) -> CrashRecord:
    """Return the record of why a job hung or crashed, to write with `--json`."""
    return CrashRecord(
        ranks=job.size,
        missing=job.missing,
        reason=analysis.reason.value,
        guilty=analysis.guilty,
        suspects=analysis.suspects,
        call=None if analysis.call is None else _describe_call(analysis.call),
        arrived=analysis.arrived,
        absent=analysis.absent,
        disagreement=None if analysis.disagreement is None else _describe_disagreement(analysis.disagreement),
        states=tuple(_describe_rank(job, evidence) for _, evidence in sorted(job.ranks.items())),
        problems=tuple(problems),
    )


def _describe_call(call: CallRecord) -> RecordedOperation:
    """Return a recorded call in the form of a `crash` record."""
    arguments = dict(call.details) | ({} if call.peer is None else {"peer": str(call.peer)})
    return RecordedOperation(call.communicator, call.number, call.operation, arguments, call.ended is not None)


def _describe_disagreement(disagreement: Disagreement) -> FirstDisagreement:
    """Return the ranks' first differing calls in the form of a `crash` record."""
    groups = tuple(CallGroup(ranks, _describe_call(call)) for ranks, call in disagreement.groups)
    return FirstDisagreement(disagreement.communicator, disagreement.number, disagreement.differing, groups)


def _describe_rank(job: JobEvidence, own: RankEvidence) -> RankState:
    """Return a rank's process state and last operation in the form of a `crash` record."""
    last = own.last_call
    return RankState(
        rank=own.rank,
        host=own.host,
        pid=own.pid,
        process=own.process.value,
        ending=own.ending,
        location=own.location,
        last=None if last is None else _describe_call(last),
        since_s=job.find_age(own),
    )
