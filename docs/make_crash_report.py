"""Write a real report on a call that does not finish into docs/crashes.md.

    python docs/make_crash_report.py

The job has four ranks, of which rank 2 calls `barrier` while the others call `all_reduce`. Its time limit is so short
that the report comes before the one on different calls (hpccoll/failures/call_comparison.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).with_name("crashes.md")
BLOCK = re.compile(r"<!-- report -->\n.*?<!-- /report -->", re.DOTALL)
SCRIPT = """
import numpy as np
import hpccoll

comm = hpccoll.Communicator()
loss = np.ones(1000, "float32")
for step in range(5):
    if step == 3 and comm.rank == 2:
        comm.barrier()
    comm.all_reduce(loss, algorithm="ring")
"""
WIDTH = 110


def run_job() -> str:
    """Run the job, and return the report on standard error."""
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "train.py"
        script.write_text(SCRIPT, encoding="utf-8")
        done = subprocess.run(
            [str(Path(sys.executable).parent / "mpirun"), "-n", "4", sys.executable, str(script)],
            env=os.environ | {"HPCCOLL_TIMEOUT": "1", "HPCCOLL_RECORDER": directory},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        report = done.stderr.partition("Abort(")[0].replace(directory, "crash")
    if done.returncode != 4 or "Guilty: rank 2" not in report:
        raise SystemExit(f"the job ended with status {done.returncode} and reported: {done.stderr}")
    return report.rstrip().replace(f" on {os.uname().nodename}", " on node0")


def wrap(line: str) -> str:
    """Return a line of the report, broken at blanks."""
    import textwrap

    indent = len(line) - len(line.lstrip())
    return textwrap.fill(line, WIDTH, initial_indent="", subsequent_indent=" " * (indent + 4), break_on_hyphens=False)


def main() -> None:
    """Write the report into the page."""
    text = "\n".join(wrap(line) for line in run_job().splitlines())
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BLOCK.sub(lambda _: f"<!-- report -->\n```text\n{text}\n```\n<!-- /report -->", page), "utf-8")


if __name__ == "__main__":
    main()
