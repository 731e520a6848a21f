"""Simulates every algorithm on 1,048,576 ranks: `python bench/million_ranks.py` prints time and memory of each command.

Each command is `hpccoll simulate OPERATION/ALGORITHM --ranks 1048576` on the default machine model, with `--nodes 1`
for algorithms that use shared memory alone. Names such as `all_reduce/ring` after the script select algorithms.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hpccoll.algorithms import list_algorithms
from hpccoll.units import format_size

RANKS = 2**20


def run_command(*arguments: str) -> tuple[float, float, str]:
    """Return the processor seconds, the peak memory (GiB) and the output of `hpccoll simulate`."""
    command = [str(Path(sys.executable).with_name("hpccoll")), "simulate", *arguments, "--ranks", f"{RANKS}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        output = process.stdout.read() if process.stdout else ""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20, output


def main() -> None:
    """Print a row of a Markdown table per algorithm."""
    print("| algorithm | size | processor time (s) | memory (GiB) | options |\n|---|---|---|---|---|")
    for algorithm in (each for each in list_algorithms() if each.full_name in sys.argv[1:] or not sys.argv[1:]):
        one_node = ["--nodes", "1"] if algorithm.uses_shared_memory and not algorithm.is_two_level else []
        seconds, memory, output = run_command(algorithm.full_name, *one_node, "--json", "-")
        lines = output.strip().splitlines()
        records = [json.loads(line) for line in lines if '"kind": "plan"' in line]
        remark = "`--nodes 1`" * bool(one_node) if records else lines[-1].replace("|", "/")
        size = "".join(format_size(record["nbytes"]) for record in records)
        print(f"| {algorithm.full_name} | {size} | {seconds:.1f} | {memory:.2f} | {remark} |", flush=True)


if __name__ == "__main__":
    main()
