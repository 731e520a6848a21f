"""Turns the analysis of a recorded job, and predictions, into records for `hpccoll profile --json`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpccoll.profile.explanation import Explanation
from hpccoll.profile.findings import list_findings
from hpccoll.profile.placement import Placement
from hpccoll.profile.what_if import Prediction
from hpccoll.records import ProfilePredictionRecord, ProfileRecord, RankTimes, Record


def make_records(explanation: Explanation, predictions: Sequence[Prediction] = ()) -> Iterator[Record]:
    """Yield the record of a recorded job, then those of its findings, of its call sites and of `predictions`."""
    yield _make_profile_record(explanation)
    yield from list_findings(explanation)
    yield from explanation.sites
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
