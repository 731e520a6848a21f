"""Prints how many loop iterations this node completes in a time window: `count_iterations.py START SECONDS`.

Prints -1 if the node begins after the start of the window.
"""

from __future__ import annotations

import platform
import sys
import time

start, seconds = float(sys.argv[1]), float(sys.argv[2])
is_late = time.time() > start
while time.time() < start:
    time.sleep(0.01)
iterations = 0
while time.time() < start + seconds:
    sum(range(20_000))
    iterations += 1
print(platform.node(), -1 if is_late else iterations)
