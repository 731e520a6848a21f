"""Measures by how much `hpccoll profile` lengthens a call: `python bench/profile_cost.py`.

The same loop of 8-byte all-reduces on one rank runs with and without the recording, in turns; the smallest times count,
because other programs on the machine only make times longer.
"""

from __future__ import annotations

import tempfile
import time

import numpy as np
from mpi4py import MPI

from hpccoll.native import replace_attribute
from hpccoll.profile.instrumentation import Instrumentation
from hpccoll.profile.recorder import RecordingOptions

CALLS, ROUNDS = 2000, 100


def time_calls(comm: MPI.Intracomm, x: np.ndarray, y: np.ndarray) -> float:
    """Return the microseconds of a call."""
    begin = time.perf_counter()
    for _ in range(CALLS):
        comm.Allreduce(x, y)
    return (time.perf_counter() - begin) / CALLS * 1e6


def main() -> None:
    """Print the times of a call, and their difference."""
    original = vars(MPI.Comm)["Allreduce"]
    comm, x, y = MPI.COMM_SELF, np.zeros(1), np.zeros(1)
    with tempfile.TemporaryDirectory() as directory:
        instrumentation = Instrumentation(RecordingOptions(directory))
        instrumentation.install()
        recorded = vars(MPI.Comm)["Allreduce"]
        times: dict[str, list[float]] = {"recorded": [], "plain": []}
        for _ in range(ROUNDS):
            for name, method in (("recorded", recorded), ("plain", original)):
                replace_attribute(MPI.Comm, "Allreduce", method)
                times[name].append(time_calls(comm, x, y))
        if instrumentation.recorder is not None:
            instrumentation.recorder.end()
    with_us, plain_us = (min(times[name]) for name in ("recorded", "plain"))
    print(f"recorded {with_us:.3f} us, plain {plain_us:.3f} us, a call is {with_us - plain_us:.3f} us longer")


if __name__ == "__main__":
    main()
