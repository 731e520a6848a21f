"""Compares simulated times with those of LogGOPSim on exported plans: `python bench/loggopsim.py PATH`.

PATH is the folder with the programs LogGOPSim and txt2bin of https://github.com/spcl/LogGOPSim. Both simulators have
the same costs: a message of B bytes takes 2 us + B ns and keeps the ports of both ends busy for 0.5 us + B ns (L =
2000, g = 500, G = 1, o = 0; LogGOPSim charges B - 1 bytes). LogGOPSim's network has no contention either.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from hpccoll.algorithms import get_algorithm
from hpccoll.plan import Link, Machine, Operation, simulate
from hpccoll.plan.interchange.goal import to_goal

ALPHA_NS, GAP_NS, COUNT = 2000, 500, 16384
PLANS = (
    *("all_reduce/ring", "all_reduce/recursive_doubling", "all_reduce/double_tree", "all_reduce/chain"),
    *("all_gather/bruck", "broadcast/circulant", "broadcast/tree", "reduce/chain", "all_to_all/pairwise"),
)


def time_with_loggopsim(programs: Path, goal: str) -> float:
    """Return the microseconds that LogGOPSim predicts for a GOAL schedule."""
    with tempfile.TemporaryDirectory() as folder:
        text, binary = Path(folder, "plan.goal"), Path(folder, "plan.bin")
        text.write_text(goal, encoding="utf-8")
        subprocess.run([programs / "txt2bin", "-i", text, "-o", binary], check=True, capture_output=True)
        costs = ["-L", f"{ALPHA_NS}", "-g", f"{GAP_NS}", "-G", "1", "-o", "0", "-O", "0", "-S", f"{2**31 - 1}"]
        run = subprocess.run([programs / "LogGOPSim", "-f", binary, *costs], check=True, capture_output=True, text=True)
    ends = [int(line.split(":")[1]) for line in run.stdout.splitlines() if line.startswith("Host ")]
    return max(ends) / 1000


def main() -> None:
    """Print a row of a Markdown table per plan and number of ranks."""
    programs = Path(sys.argv[1])
    link = Link(ALPHA_NS * 1e-9, 1e-9, GAP_NS * 1e-9)
    machine = Machine("flat", 1, link, link, 1, 0.0)
    print("| plan | ranks | hpccoll (us) | LogGOPSim (us) | ratio |\n|---|---|---|---|---|")
    for name in PLANS:
        operation, algorithm = name.split("/")
        for ranks in (7, 16):  # LogGOPSim prints the end of each host for up to 16
            plan = get_algorithm(Operation(operation), algorithm).plan(ranks, chunks=4)
            ours = simulate(plan, machine, COUNT, trace=False).seconds * 1e6
            theirs = time_with_loggopsim(programs, to_goal(plan, COUNT))
            print(f"| {name} | {ranks} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.3f} |")


if __name__ == "__main__":
    main()
