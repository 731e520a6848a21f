"""Finds the common clock of a job without MPI: ranks compare their clocks with rank 0's through torch's store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from hpccoll.measure.clock.clock_fit import fit_offset_bounds
from hpccoll.measure.clock.ping_pong import PingPongs
from hpccoll.recordings.clock_model import ClockModel

_PREFIX: Final = "hpccoll-profile/clock"
_EXCHANGES: Final = 100


def synchronize_by_store(
    store: Any, rank: int, size: int, host: str, read_clock: Callable[[], float] = time.perf_counter
) -> ClockModel | None:
    """Return the model by which times of this rank's clock become times of rank 0's clock. Collective.

    The result is None if all ranks are on one host, where they share a clock. The function returns on all ranks at
    about the same time, so that their recordings begin together.

    Args:
        store: the key-value store of torch.distributed's default group.
        rank: the rank of this process.
        size: the number of ranks.
        host: the name of the host of this process; processes of one host share a clock.
        read_clock: returns the seconds of this rank's clock.

    Cost: one value in the store per rank; with several hosts, also 100 exchanges per rank, one rank after the other.
    """
    store.set(f"{_PREFIX}/host/{rank}", host)
    if rank:
        if not int(store.get(f"{_PREFIX}/several")):
            return None
        model = _compare(store, rank, read_clock)
        store.get(f"{_PREFIX}/end")  # blocks until the other ranks have compared their clocks, too
        return model
    hosts = {store.get(f"{_PREFIX}/host/{other}") for other in range(size)}
    store.set(f"{_PREFIX}/several", str(int(len(hosts) > 1)))
    if len(hosts) == 1:
        return None
    for other in range(1, size):
        for exchange in range(_EXCHANGES):
            store.get(f"{_PREFIX}/asked/{other}/{exchange}")  # blocks until the other rank has set it
            store.set(f"{_PREFIX}/answer/{other}/{exchange}", repr(read_clock()))
    store.set(f"{_PREFIX}/end", "")
    return ClockModel()


def _compare(store: Any, rank: int, read_clock: Callable[[], float]) -> ClockModel:
    """Return, on a rank other than 0, the model by which times of its clock become times of rank 0's clock.

    The model's offset is fitted to the bounds that each exchange with rank 0 gives. The arguments are those of
    `synchronize_by_store`, in which rank 0 answers the exchanges.
    """
    times = np.empty((_EXCHANGES, 3))
    for exchange, row in enumerate(times):
        row[0] = read_clock()
        store.set(f"{_PREFIX}/asked/{rank}/{exchange}", "")
        row[1] = float(store.get(f"{_PREFIX}/answer/{rank}/{exchange}"))
        row[2] = read_clock()
    return fit_offset_bounds(PingPongs(*times.T[:, np.newaxis]))
