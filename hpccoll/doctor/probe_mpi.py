"""Start MPI on one rank in a process of its own, and print a description of the MPI library as a JSON object."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from hpccoll.runtime import job


def list_loaded_libraries() -> list[str]:
    """Return the paths of all MPI libraries mapped into this process, with links resolved."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return sorted(set(re.findall(r"\s(/\S*/libmpi(?:ch)?(?:_cray\w*|_abi)?\.so\S*)", maps)))


def main() -> None:
    """Start MPI in this process and print a description of the MPI library as JSON."""
    mpi = job.load_mpi()
    levels = {getattr(mpi, f"THREAD_{name}"): name for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")}
    description = {
        "library": job.get_mpi_library(),
        "version": mpi.Get_library_version().strip("\0\n "),
        "standard": mpi.Get_version(),
        "compiled": (mpi.VERSION, mpi.SUBVERSION),
        "threads": levels[mpi.Query_thread()].lower(),
        "extension": mpi.__file__,
        "files": list_loaded_libraries(),
        "versions": job.collect_versions(),
    }
    sys.stdout.write(json.dumps(description) + "\n")


if __name__ == "__main__":
    main()
