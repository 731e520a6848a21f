"""Removes what MPI libraries left in /dev/shm during a run of tests, some of which kill ranks on purpose.

python tests/leftovers.py SECONDS    # files no older than that which no process has mapped or open
"""

from __future__ import annotations

import sys
from pathlib import Path

from hpccoll.doctor.stale_shared_memory import list_library_files

SHM = Path("/dev/shm")


def remove(age_s: float) -> list[str]:
    """Remove the files that came in the last `age_s` seconds and that nobody uses; return their names."""
    gone = [
        each.path for each in list_library_files(SHM) if each.is_inspectable and not each.in_use and each.age_s <= age_s
    ]
    for path in gone:
        path.unlink(missing_ok=True)
    return [path.name for path in gone]


if __name__ == "__main__":
    remove(float(sys.argv[1]))
