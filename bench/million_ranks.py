"""Simulates every algorithm on 1,048,576 ranks: `python bench/million_ranks.py` prints time and memory of each command.

Each command is `hpccoll simulate OPERATION/ALGORITHM --ranks 1048576` on the default machine model, with `--nodes 1`
for algorithms that use shared memory alone. A command that is refused for its message size is repeated with `--size
4M`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hpccoll.algorithms import list_algorithms

RANKS = 2**20


def run_command(*arguments: str) -> tuple[int, float, float, str]:
    """Return the exit status, processor seconds, peak memory (GiB) and output of `hpccoll simulate`."""
    command = [str(Path(sys.executable).with_name("hpccoll")), "simulate", *arguments, "--ranks", f"{RANKS}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        output = process.stdout.read() if process.stdout else ""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20, output


def main() -> None:
    """Print a row of a Markdown table per algorithm."""
    print("| algorithm | processor time (s) | memory (GiB) | remark |\n|---|---|---|---|")
    for algorithm in list_algorithms():
        one_node = ["--nodes", "1"] if algorithm.uses_shared_memory and not algorithm.is_two_level else []
        remark = " ".join(one_node)
        status, seconds, memory, output = run_command(algorithm.full_name, *one_node)
        if status and "size" in output:
            status, seconds, memory, output = run_command(algorithm.full_name, *one_node, "--size", "4M")
            remark = "--size 4M"
        if status:
            remark = output.strip().splitlines()[-1].replace("|", "/")
        print(f"| {algorithm.full_name} | {seconds:.1f} | {memory:.2f} | {remark} |", flush=True)


if __name__ == "__main__":
    main()
