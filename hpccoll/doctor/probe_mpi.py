"""Run as a process of its own: starts MPI on one rank and prints, as a JSON object, which library it is."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from hpccoll.runtime import job


def loaded() -> list[str]:
    """Return the files of all MPI libraries that this process has mapped, links followed."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return sorted(set(re.findall(r"\s(/\S*/libmpi(?:ch)?(?:_cray\w*|_abi)?\.so\S*)", maps)))


def main() -> None:
    """Start MPI and say what it is."""
    mpi = job.load_mpi()
    levels = {getattr(mpi, f"THREAD_{name}"): name for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")}
    told = {
        "library": job.get_mpi_library(),
        "version": mpi.Get_library_version().strip("\0\n "),
        "standard": mpi.Get_version(),
        "compiled": (mpi.VERSION, mpi.SUBVERSION),
        "threads": levels[mpi.Query_thread()].lower(),
        "extension": mpi.__file__,
        "files": loaded(),
        "versions": job.collect_versions(),
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
