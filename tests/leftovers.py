"""Removes files that MPI libraries left in /dev/shm during a test run; some tests kill ranks on purpose.

python tests/leftovers.py SECONDS    # removes unused files that are at most so old
"""

from __future__ import annotations

import sys
from pathlib import Path

from hpccoll.doctor.shared_memory import list_library_files

SHM = Path("/dev/shm")


def remove_unused_files(age_s: float) -> list[str]:
    """Remove the files of the last `age_s` seconds that no process uses; return their names."""
    gone = [
        each.path for each in list_library_files(SHM) if each.is_inspectable and not each.in_use and each.age_s <= age_s
    ]
    for path in gone:
        path.unlink(missing_ok=True)
    return [path.name for path in gone]


if __name__ == "__main__":
    remove_unused_files(float(sys.argv[1]))
