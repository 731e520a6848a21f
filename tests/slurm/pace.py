"""How fast this node works: turns of a loop within the same seconds on all nodes. `pace.py START SECONDS`."""

from __future__ import annotations

import platform
import sys
import time

start, seconds = float(sys.argv[1]), float(sys.argv[2])
while time.time() < start:
    time.sleep(0.01)
turns = 0
while time.time() < start + seconds:
    sum(range(20_000))
    turns += 1
print(platform.node(), turns)
