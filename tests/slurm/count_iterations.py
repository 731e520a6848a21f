"""Prints how many loop iterations this node completes in a time window: `count_iterations.py START SECONDS`."""

from __future__ import annotations

import platform
import sys
import time

start, seconds = float(sys.argv[1]), float(sys.argv[2])
while time.time() < start:
    time.sleep(0.01)
iterations = 0
while time.time() < start + seconds:
    sum(range(20_000))
    iterations += 1
print(platform.node(), iterations)
