"""A clock that all ranks share: each rank maps its local clock to rank 0's by a linear model (drift and offset).

`synchronize` exchanges messages between pairs of ranks and returns a `GlobalClock`; `measure_residual` measures later
how far the ranks' global clocks are apart. If all ranks run on one host, `JobClock` reads the host's clock. Start
reading in `synchronization`.
"""

from hpccoll.measure.clock.global_clock import GlobalClock
from hpccoll.measure.clock.job_clock import JobClock
from hpccoll.measure.clock.local_clock import SkewedClock
from hpccoll.measure.clock.residual import Residual, measure_residual
from hpccoll.measure.clock.schemes import CLOCK_NAMES, get_clock_scheme
from hpccoll.measure.clock.sync_budget import SyncBudget
from hpccoll.measure.clock.synchronization import count_waves, resynchronize, synchronize

__all__ = [
    "CLOCK_NAMES",
    "GlobalClock",
    "JobClock",
    "Residual",
    "SkewedClock",
    "SyncBudget",
    "count_waves",
    "get_clock_scheme",
    "measure_residual",
    "resynchronize",
    "synchronize",
]
