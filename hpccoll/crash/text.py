"""Formats the cause of a hang or crash as lines: the guilty ranks, the ranks in the call, and all last operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from hpccoll.crash.analysis import CrashAnalysis, Reason
from hpccoll.crash.disagreement import OPERATION, Disagreement
from hpccoll.crash.evidence import CallRecord, JobEvidence, ProcessState, RankEvidence
from hpccoll.units import format_ranges

MOST_LINES: Final = 16  # at most this many ranks, or groups of ranks with the same last call, are listed
_UNTOLD: Final = ("", "blocking")  # values that are not printed; most calls are blocking
PEERS: Final = {"send": "to", "recv": "from"}


def format_analysis(job: JobEvidence, analysis: CrashAnalysis) -> str:
    """Return the cause of a job's hang or crash, and all ranks' last operations, as a string of several lines."""
    lines = [_format_guilty(job, analysis)]
    if analysis.call is not None and not analysis.call.is_message:
        arrived, absent = format_ranks(analysis.arrived), format_ranks(analysis.absent)
        lines.append(f"Waiting in {_place(job, analysis.call)}: arrived {arrived}; not arrived {absent}.")
    if analysis.disagreement is not None:
        lines.append(format_disagreement(job, analysis.disagreement))
    if job.missing:
        lines.append(f"No recording of {format_ranks(job.missing)}: the other recordings alone were analyzed.")
    lines.append("The last operation of each rank:")
    lines += [f"  {line}" for line in _list_last_operations(job)]
    return "\n".join(lines)


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as a string with ranges, such as `ranks 0-2, 5`; `no rank` if there are none."""
    if not ranks:
        return "no rank"
    return f"rank{'s' * (len(ranks) > 1)} {format_ranges(sorted(ranks), comma=', ')}"


def format_call(call: CallRecord) -> str:
    """Return a call as a string, such as `call 4 (all_reduce, algorithm ring, count 1000)` or `recv from rank 1`."""
    details = ", ".join(f"{name} {value}" for name, value in call.details if value not in _UNTOLD)
    if call.is_message:
        word = PEERS.get(call.operation, "with")
        peer = "any rank" if call.peer is None else f"rank {call.peer}"
        return f"{call.operation} {word} {peer}" + (f" ({details})" if details else "")
    return f"call {call.number} ({call.operation}{', ' if details else ''}{details})"


def format_last_operations(job: JobEvidence, ranks: Sequence[int]) -> str:
    """Return the last operations of some ranks, such as `rank 1 after call 3 (barrier) [at train.py:9 in step]`."""
    told = []
    for rank in ranks[:MOST_LINES]:
        own = job.ranks.get(rank)
        told.append(f"rank {rank} {'has no recording' if own is None else _format_last(job, own) + _format_state(own)}")
    more = [f"and {len(ranks) - MOST_LINES} more ranks"] if len(ranks) > MOST_LINES else []
    return "; ".join([*told, *more])


def _place(job: JobEvidence, call: CallRecord) -> str:
    """Return a call as a string, with its communicator if the job uses several communicators."""
    return format_call(call) + _format_communicator(job, call)


def _format_communicator(job: JobEvidence, call: CallRecord) -> str:
    """Return a call's communicator as a string; empty if all recorded calls of the job use the same communicator."""
    used = {call.communicator for rank in job.ranks.values() for call in rank.calls}
    if len(used) < 2:
        return ""
    return f" on communicator {call.communicator} of {format_ranks(job.list_members(call.communicator))}"


def _format_guilty(job: JobEvidence, analysis: CrashAnalysis) -> str:
    """Return a sentence on the ranks that caused the hang or crash, and why."""
    if analysis.guilty:
        culprits = (f"rank {rank} {_explain(job, rank, analysis)}" for rank in analysis.guilty[:MOST_LINES])
        more = len(analysis.guilty) - MOST_LINES
        return f"Guilty: {'; '.join(culprits)}{f'; and {more} more ranks' if more > 0 else ''}."
    if analysis.reason is Reason.MISMATCH:
        return f"Guilty: one of {format_ranks(analysis.suspects)}; the calls are a tie, so none is in the majority."
    if analysis.reason is Reason.CYCLE:
        return (
            f"Guilty: one of {format_ranks(analysis.suspects)}, which wait for each other in a cycle; the recordings "
            "are a tie. Make the calls in the same order on every rank."
        )
    if analysis.reason is Reason.INSIDE:
        return "Guilty: unknown. All ranks have arrived in the same call, and no process is dead or stopped."
    if analysis.suspects:
        return (
            f"Guilty: unknown. {format_ranks(analysis.suspects)} had not arrived when the job ended, but less than a "
            "second after the first rank had."
        )
    return "Guilty: unknown. No recorded call is unfinished, and no process is known to have failed."


def _explain(job: JobEvidence, rank: int, analysis: CrashAnalysis) -> str:
    """Return the clause, to be printed after `rank N`, on why this rank is guilty, with its last operation."""
    own = job.ranks.get(rank)
    if own is None:
        return "has no recording, and other ranks wait for it"
    last = f"its last operation was {_format_last(job, own)}{f', at {own.location}' if own.location else ''}"
    match analysis.reason:
        case Reason.MISMATCH:
            return f"made another call than the other ranks ({last})"
        case Reason.DEAD:
            return f"ended without notice, as by a signal or os._exit (process {own.pid} on {own.host}; {last})"
        case Reason.STOPPED:
            return f"is stopped, as by SIGSTOP or a debugger (process {own.pid} on {own.host}; {last})"
        case Reason.CYCLE:
            return f"made its calls in another order than the other ranks ({last})"
        case Reason.INSIDE:
            return f"has completed fewer rounds of the call than all other ranks ({last})"
        case _:
            what = f"ended its program {own.ending}".rstrip() if own.ending else "is in no call"
            return f"{what}, and other ranks wait for it ({last})"


def format_disagreement(job: JobEvidence, disagreement: Disagreement) -> str:
    """Return a sentence on the first collective in which ranks made different calls, with the ranks' arguments."""
    call = disagreement.groups[0][1]
    name = f"call {disagreement.number}"
    if disagreement.differing != (OPERATION,):
        name += f" ({call.operation})"
    parts = []
    for ranks, own_call in disagreement.groups:
        details = dict(own_call.details)
        values = ", ".join(
            format_call(own_call).partition(" (")[2][:-1]
            if name == OPERATION
            else f"{name} {details.get(name) or 'none'}"
            for name in disagreement.differing
        )
        parts.append(f"{format_ranks(ranks)}: {values}")
    return f"First disagreement, in {name}{_format_communicator(job, call)}: {'; '.join(parts)}."


def _list_last_operations(job: JobEvidence) -> Iterator[str]:
    """Yield one line per group of ranks with the same last operation, the same location and the same state."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, own in sorted(job.ranks.items()):
        groups.setdefault((_format_last(job, own), _format_state(own)), []).append(rank)
    for (last, own_state), ranks in list(groups.items())[:MOST_LINES]:
        ages = sorted(job.find_age(job.ranks[rank]) for rank in ranks)
        age = f"{ages[0]:.1f} s" if ages[-1] - ages[0] < 0.1 else f"{ages[0]:.1f} to {ages[-1]:.1f} s"
        verb = "for" if job.ranks[ranks[0]].awaited_calls else "which ended" if job.ranks[ranks[0]].calls else ""
        time = f", {verb} {age}{' ago' if verb == 'which ended' else ''}" if verb else ""
        yield f"{format_ranks(ranks)}: {last}{_format_rounds([job.ranks[rank] for rank in ranks])}{time}{own_state}"
    if len(groups) > MOST_LINES:
        yield f"and {len(groups) - MOST_LINES} more groups of ranks"


def _format_rounds(group: Sequence[RankEvidence]) -> str:
    """Return how many rounds of their last collective the ranks have completed, as a clause; empty if unknown."""
    calls = [own.last_call for own in group if own.last_call is not None and own.last_call.rounds is not None]
    rounds = sorted({call.round or 0 for call in calls})
    if not rounds:
        return ""
    completed = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    return f", {completed} of {calls[0].rounds} rounds complete"


def _format_last(job: JobEvidence, own: RankEvidence) -> str:
    """Return a rank's last call in words: `in call 4 (barrier)`, or `after call 4 (barrier)` if it ended; `no call`."""
    call = own.last_call
    if call is None:
        return "no call"
    return f"{'in' if call.ended is None else 'after'} {_place(job, call)}"


def _format_state(own: RankEvidence) -> str:
    """Return the state of a rank's process and its line of the program, in brackets; empty if unknown."""
    words = [f"ended its program {own.ending}".rstrip()] if own.ending else []
    if own.process in (ProcessState.STOPPED, ProcessState.DEAD):
        words.append(f"process {own.process.value}")
    elif own.seen_dead is not None:
        words.append("process dead")
    if own.location:
        words.append(f"at {own.location}")
    return f" [{', '.join(words)}]" if words else ""
