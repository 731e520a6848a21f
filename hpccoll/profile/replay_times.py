"""Keeps the run times of a replayed job beside its recording, to predict what another algorithm would save.

`hpccoll replay RECORDING --engine mpi,all_reduce/ring --save` writes the file `replays.json` in the directory of the
recording. The engines alternate: in each turn, the job runs once with every engine. The load of the machine changes
little within a turn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from hpccoll.atomic_files import write_atomically
from hpccoll.errors import UsageError
from hpccoll.private_files import read_limited
from hpccoll.statistics import is_interval_full, median_ranks

FILE: Final = "replays.json"
SCHEMA: Final = "hpccoll-replays/1"
_MOST_BYTES: Final = 2**24
FEWEST_TURNS: Final = 6  # from which the 95 % interval of a median is bounded


@dataclass(frozen=True, slots=True)
class EngineTime:
    """The run times of a replayed job with one engine.

    Args:
        engine: the name of the engine, such as `mpi` or `all_reduce/ring`.
        seconds: one run time per repetition, each the maximum over the ranks.
    """

    engine: str
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median run time in seconds."""
        return float(np.median(self.seconds))


@dataclass(frozen=True, slots=True)
class ReplayedRatio:
    """The run time of a replay with another engine, divided by that with the engine of the recorded job.

    `median` is the median of the turns' ratios, and `low` and `high` are the bounds of its 95 % interval.
    `recorded_engine_s` is the median run time with the engine of the recorded job.
    """

    median: float
    low: float
    high: float
    recorded_engine_s: float


def write_replays(directory: str, times: Sequence[EngineTime]) -> None:
    """Write the run times of a replayed job to the directory of its recording, in place of earlier run times.

    Raises:
        UsageError: the directory does not exist, or cannot be written.
    """
    content = {"schema": SCHEMA, "engines": {each.engine: list(each.seconds) for each in times}}
    try:
        write_atomically(str(Path(directory) / FILE), json.dumps(content) + "\n")
    except OSError as error:
        reason = f"the times of the replay cannot be written to {directory} ({error.strerror})"
        raise UsageError(f"--save: {reason}; copy the recording to a directory that you may write") from error


def read_replays(directory: Path) -> tuple[EngineTime, ...]:
    """Return the run times that were written beside a recording, an `EngineTime` per engine; empty if there are none.

    Raises:
        UsageError: the file with the run times is damaged.
    """
    path = directory / FILE
    if not path.exists():
        return ()
    try:
        content = json.loads(read_limited(path, _MOST_BYTES))
        if content["schema"] != SCHEMA:
            return ()
        return tuple(EngineTime(str(name), tuple(map(float, each))) for name, each in content["engines"].items())
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: is damaged; remove the file, or repeat hpccoll replay --save") from error


def compare_engines(times: Sequence[EngineTime], recorded: str | None, other: str) -> ReplayedRatio | None:
    """Return the ratio, with its 95 % interval, of run times with the engine `other` and with the recorded engine.

    The result is None if one of the two engines did not run, or in fewer than FEWEST_TURNS turns. The ratio is computed
    from the faster half of the turns, or from the FEWEST_TURNS fastest ones if the half has fewer, because other
    programs on the machine can only make a turn longer.

    Args:
        times: the run times of all engines, which ran in turns.
        recorded: the engine of the recorded job; None if it is unknown.
        other: the engine that is compared with the recorded job's engine.
    """
    seconds = {each.engine: np.array(each.seconds) for each in times}
    if recorded not in seconds or other not in seconds or len(seconds[recorded]) != len(seconds[other]):
        return None
    both = np.array([seconds[recorded], seconds[other]])
    turns = both.shape[1]
    kept = both[:, np.argsort(both.sum(axis=0), kind="stable")[: max(-(-turns // 2), FEWEST_TURNS)]]
    ratios = np.sort(kept[1] / kept[0])
    if not is_interval_full(ratios):
        return None
    rank, _ = median_ranks(len(ratios))
    values = (np.median(ratios), ratios[rank - 1], ratios[-rank], np.median(kept[0]))
    return ReplayedRatio(*map(float, values))
