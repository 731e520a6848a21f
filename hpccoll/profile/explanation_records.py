"""Turns the analysis of a recorded job, and predictions, into records for `hpccoll profile --json`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hpccoll.profile.calls_in_a_row import CallsInARow
from hpccoll.profile.explanation import Explanation
from hpccoll.profile.lateness import Lateness, LateRank
from hpccoll.profile.load import JobProfile
from hpccoll.profile.placement import Placement
from hpccoll.profile.screen import Cause, list_findings
from hpccoll.profile.slow_links import SlowNode
from hpccoll.profile.what_if import Prediction
from hpccoll.records import (
    ProfileFindingRecord,
    ProfilePredictionRecord,
    ProfileRecord,
    ProfileSite,
    ProfileSiteRecord,
    RankTimes,
    Record,
)


def make_records(explanation: Explanation, predictions: Sequence[Prediction] = ()) -> Iterator[Record]:
    """Yield the record of a recorded job, then those of its findings, of its call sites and of `predictions`."""
    profile = explanation.profile
    yield _make_profile_record(explanation)
    for finding in list_findings(explanation):
        saved_s, fields = finding.cause.saved_s, _describe_cause(profile, finding.cause)
        share = saved_s / explanation.efficiencies.run_s
        yield ProfileFindingRecord(found=finding.text, saved_s=saved_s, share=share, **fields)
    for cost in explanation.sites:
        yield ProfileSiteRecord(
            site=_make_site(profile, cost.site), op=cost.operation, calls=cost.calls, nbytes=cost.nbytes,
            wait_s=cost.wait_s, transfer_s=cost.transfer_s,
        )  # fmt: skip
    for prediction in predictions:
        low, high = prediction.saving_bounds or (None, None)
        yield ProfilePredictionRecord(
            change=prediction.change, description=prediction.description, predicted_s=prediction.seconds,
            recorded_s=prediction.recorded_s, saving=prediction.saving, replay_error=prediction.error,
            saving_low=low, saving_high=high, assumption=prediction.assumption,
        )  # fmt: skip


def _make_profile_record(explanation: Explanation) -> ProfileRecord:
    """Return the record of a job's efficiencies and of the times of its ranks."""
    profile, eff = explanation.profile, explanation.efficiencies
    times = zip(eff.useful_s.tolist(), eff.wait_s.tolist(), eff.transfer_s.tolist(), strict=True)
    rows = tuple(
        RankTimes(rank.rank, rank.host, *seconds, len(rank.entries), rank.has_ended)
        for rank, seconds in zip(profile.ranks, times, strict=True)
    )
    return ProfileRecord(
        program=profile.argv, ranks=profile.size, nodes=Placement.read(profile).count,
        calls=profile.calls, folded_calls=profile.folded_calls,
        run_s=eff.run_s, ideal_s=eff.ideal_s, parallel_efficiency=eff.parallel, load_balance=eff.load_balance,
        serialisation=eff.serialisation, transfer=eff.transfer, rank_times=rows,
        clock_error_us=profile.clock_error_s * 1e6, problems=profile.problems,
    )  # fmt: skip


def _describe_cause(profile: JobProfile, cause: Cause) -> dict[str, Any]:
    """Return the fields of a finding's record that depend on `cause`, such as the late rank, by name."""
    if isinstance(cause, Lateness):
        fields = (
            {"cause": "late_rank", "rank": cause.rank} if isinstance(cause, LateRank)
            else {"cause": "late_node", "node_ranks": cause.ranks}
        )  # fmt: skip
        return fields | {
            "node": cause.host, "lateness": cause.kind.name.lower(), "last_share": cause.last_share,
            "calls": cause.calls, "op": cause.operation,
            "site": None if cause.site < 0 else _make_site(profile, cause.site),
        }  # fmt: skip
    if isinstance(cause, CallsInARow):
        return {
            "cause": "calls_in_a_row", "op": cause.operation, "site": _make_site(profile, cause.site),
            "calls": cause.calls, "nbytes": cause.nbytes,
        }  # fmt: skip
    if isinstance(cause, SlowNode):
        return {
            "cause": "slow_link", "node": cause.host, "node_ranks": cause.ranks, "calls": cause.messages,
            "nbytes": cause.nbytes,
        }  # fmt: skip
    node, dest_node = (profile.ranks[rank].host for rank in (cause.source, cause.dest))
    return {
        "cause": "slow_link", "rank": cause.source, "node": node, "dest": cause.dest, "dest_node": dest_node,
        "calls": cause.messages, "nbytes": cause.nbytes,
    }  # fmt: skip


def _make_site(profile: JobProfile, site: int) -> ProfileSite:
    """Return `profile.sites[site]` (file, line and function) as a `ProfileSite`, which records can contain."""
    found = profile.sites[site]
    return ProfileSite(found.file, found.line, found.function)
