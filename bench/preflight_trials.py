"""Run `hpccoll preflight` on a lab without a fault, with one link at a quarter of its rate, and with one slow node.

    python bench/preflight_trials.py -n 20 --json preflight_trials.jsonl

Each trial degrades a random node, runs the step of slurm/preflight.sh on the lab, and restores the node. The exit
status is 1 unless every trial reported the degraded node and nothing else. The script writes one JSON object of kind
`preflight_trial` per trial: `condition`, `spoiled` (null on a healthy lab), `named` (faults as `kind node`), `right`,
`seconds`, `load` (of this machine, per core, before the trial).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hpccoll.lab import ClusterSpec, Lab

ROOT = Path(__file__).parents[1]
NODES, RATE, QUARTER = 4, "400M", "100M"
SLOWED_PERCENT = 75
CONDITIONS = {"healthy": None, "link": "slow_node_link", "node": "slow_node"}


def trial(lab: Lab, condition: str, node: str, folder: Path) -> dict[str, Any]:
    """Degrade `node` as `condition` says, run preflight on the lab, restore the node, and return the trial's record."""
    begin, load = time.monotonic(), os.getloadavg()[0] / (os.cpu_count() or 1)
    lab.set_link("all", rate=RATE)
    if condition == "link":
        lab.set_link(node, rate=QUARTER)
    if condition == "node":
        lab.throttle(node, SLOWED_PERCENT)
    records = folder / "preflight.jsonl"
    step = ["srun", "--mpi=pmi2", f"--nodes={NODES}", "--ntasks-per-node=1", "--exclusive", "hpccoll", "preflight"]
    try:
        path = f"{Path(sys.executable).parent}{os.pathsep}{lab.build_environment()['PATH']}"
        done = lab.run([*step, "--json", str(records)], timeout_s=240, env={"PATH": path})
    finally:
        lab.throttle(node, 0)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(step)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    summary = json.loads(records.read_text(encoding="utf-8").splitlines()[-1])
    named = [f"{fault['kind']} {' '.join(fault['nodes'])}" for fault in summary["faults"]]
    spoiled = f"{CONDITIONS[condition]} {node}" if CONDITIONS[condition] else None
    return {
        "kind": "preflight_trial",
        "condition": condition,
        "spoiled": spoiled,
        "named": named,
        "right": named == ([spoiled] if spoiled else []) and done.returncode == bool(spoiled),
        "seconds": round(time.monotonic() - begin, 2),
        "load": round(load, 2),
        "told": [fault["found"] for fault in summary["faults"]],
    }


def main() -> int:
    """Start a lab, run the trials in random order, append records to --json, and print how many were right."""
    parser = argparse.ArgumentParser(description="Trials of hpccoll preflight on a lab.")
    parser.add_argument("-n", "--trials", type=int, default=20, help="of each condition")
    parser.add_argument("--conditions", default=",".join(CONDITIONS), help="of healthy, link, node")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    random.seed(given.seed)
    todo = [condition for condition in given.conditions.split(",") for _ in range(given.trials)]
    random.shuffle(todo)
    right: dict[str, int] = dict.fromkeys(given.conditions.split(","), 0)
    with tempfile.TemporaryDirectory(prefix="hpccoll-trials-") as name:
        shares = (str(ROOT), sys.prefix, name)
        with Lab(ClusterSpec(nodes=NODES, shares=shares)) as lab:
            for number, condition in enumerate(todo, 1):
                found = trial(lab, condition, f"node{random.randint(1, NODES)}", Path(name))  # noqa: S311 - no secret
                right[condition] += found["right"]
                print(
                    f"{number:>3}/{len(todo)} {'right' if found['right'] else 'WRONG'} {json.dumps(found)}", flush=True
                )
                if given.json:
                    with given.json.open("a", encoding="utf-8") as lines:
                        lines.write(json.dumps(found) + "\n")
    for condition, count in right.items():
        print(f"{condition}: {count} of {given.trials} right")
    return 0 if all(count == given.trials for count in right.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
