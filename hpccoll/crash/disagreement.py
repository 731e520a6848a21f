"""Finds the first collective in which ranks made different calls.

Calls with the same sequence number on a communicator must have the same operation, and equal values of those arguments
that all ranks must pass alike. If the calls differ, the ranks of the largest group of equal calls are right, and the
others are guilty. Without a unique largest group, as always with two ranks, the recordings alone do not show who is
wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpccoll.crash.evidence import CallRecord, CommunicatorId, JobEvidence

OPERATION = "operation"
_NOT_COMPARED = ("form",)  # ranks of a communicator may mix blocking and asynchronous calls


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A collective of which ranks made different calls, such as different operations or element counts.

    Attributes:
        communicator: the communicator of the collective.
        number: the number of the collective among those of the communicator, from 1.
        groups: pairs of the ranks that made equal calls and the call of one of these ranks; the largest group is first.
        differing: the names of the arguments that differ; `operation` alone if the operations differ.
        guilty: the ranks outside the largest group; empty if there is no unique largest group.
    """

    communicator: CommunicatorId
    number: int
    groups: tuple[tuple[tuple[int, ...], CallRecord], ...]
    differing: tuple[str, ...]
    guilty: tuple[int, ...]

    @property
    def began(self) -> float:
        """The time at which the first rank began this collective, in seconds on the clock of the recordings."""
        return min(call.began for _, call in self.groups)


def find_first_disagreement(job: JobEvidence) -> Disagreement | None:
    """Return the first collective, over all communicators, in which ranks made different calls; None if all agree."""
    first = [difference for calls in _align(job).values() if (difference := _find_in_communicator(calls)) is not None]
    return min(first, key=lambda call: call.began, default=None)


def _align(job: JobEvidence) -> Mapping[CommunicatorId, Mapping[int, Mapping[int, CallRecord]]]:
    """Return nested dicts of all ranks' recorded collectives: by communicator, by ascending number, and by rank."""
    aligned: dict[CommunicatorId, dict[int, dict[int, CallRecord]]] = {}
    for rank, evidence in sorted(job.ranks.items()):
        for (communicator, number), call in evidence.collectives.items():
            aligned.setdefault(communicator, {}).setdefault(number, {})[rank] = call
    return {communicator: dict(sorted(calls.items())) for communicator, calls in aligned.items()}


def _find_in_communicator(calls: Mapping[int, Mapping[int, CallRecord]]) -> Disagreement | None:
    """Return the first disagreement among the collectives of one communicator; None if all calls agree.

    `calls` maps the number of each collective, in ascending order, to the call of each rank.
    """
    for number, by_rank in calls.items():
        differing = _compare(list(by_rank.values()))
        if differing:
            return _describe(number, by_rank, differing)
    return None


def _compare(calls: Sequence[CallRecord]) -> tuple[str, ...]:
    """Return the names of the arguments in which the ranks' calls differ; `operation` alone if operations differ."""
    if len({call.operation for call in calls}) > 1:
        return (OPERATION,)
    values: dict[str, set[str]] = {}
    for call in calls:
        for name, value in call.details:
            values.setdefault(name, set()).add(value)
    return tuple(name for name, seen in values.items() if len(seen) > 1 and name not in _NOT_COMPARED)


def _describe(number: int, by_rank: Mapping[int, CallRecord], differing: tuple[str, ...]) -> Disagreement:
    """Return a record of the disagreement between the ranks' calls of one collective, with the guilty ranks.

    Args:
        number: the collective's number.
        by_rank: the call of each rank.
        differing: the names of the arguments that differ, or `operation`.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, call in by_rank.items():
        values = tuple(_choose_values(call, differing))
        if any(values):
            groups.setdefault(values, []).append(rank)
    ordered = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks))
    is_tie = len(ordered[0]) == len(ordered[1])
    guilty = () if is_tie else tuple(sorted(rank for ranks in ordered[1:] for rank in ranks))
    described = tuple((tuple(ranks), by_rank[ranks[0]]) for ranks in ordered)
    return Disagreement(described[0][1].communicator, number, described, differing, guilty)


def _choose_values(call: CallRecord, differing: Sequence[str]) -> Iterator[str]:
    """Yield a call's values of the arguments in `differing`; an empty string for an argument that the call lacks."""
    details = dict(call.details)
    for name in differing:
        yield call.operation if name == OPERATION else details.get(name, "")
