"""Compare the run time on 4 nodes that `hpccoll profile` predicts from a recording on 2 nodes with the measured time.

Each program is recorded on 2 and on 4 nodes of a lab (`hpccoll lab`), with one rank per node, in turns. The prediction
is that of `--what-if ranks=2x:strong` for the programs of docs/programs, whose problem has a fixed size, and of
`--what-if ranks=2x` for training, in which each rank has a batch of its own. The table has the shortest of several runs
on each number of nodes, because other programs of the machine only make times longer.

    python bench/profile_scaling.py --jobs 5 [PROGRAM...]

All nodes share the cores of this machine, so 4 ranks do not compute faster than 2. The problems are therefore so small
that communication takes most of the time, and training sleeps for 10 ms per step in place of a large model. The links
add 20 ms, because ranks that wait for messages of MPI keep a core busy: 4 such ranks delay each other on 2 cores.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Final

from profile_replay import RATE, ROOT, Cluster, read_records, start_torch

from hpccoll.lab import ClusterSpec, Lab, parse_rate
from hpccoll.lab.cluster_spec import parse_latency

FEW, MANY, LATENCY = 2, 4, "20ms"
DOCS: Final = {
    "jacobi": ("64", "40"),
    "conjugate_gradients": ("200",),
    "k_means": ("800", "5"),
}  # the arguments of programs in docs/programs
REPEATS: Final = {"k_means": 10}  # it ends after few calls, of which the first of two ranks connect them
TRAINING: Final = "ddp"
STEPS, COMPUTE_S, WIDTHS = 20, 0.01, (8, 64, 64, 256, 8)


def train() -> None:
    """Train a small model with DistributedDataParallel over Gloo, whose gradients are several buckets."""
    import torch
    import torch._dynamo  # before the recording, because it takes seconds

    start_torch()
    layers = torch.nn.Sequential(*(torch.nn.Linear(*each) for each in pairwise(WIDTHS)))
    model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(STEPS):
        time.sleep(COMPUTE_S)
        model(torch.randn(8, WIDTHS[0])).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.distributed.destroy_process_group()


def run_program(program: str) -> None:
    """Run one rank of a program, several times for programs in REPEATS."""
    if program == TRAINING:
        train()
        return
    path = str(ROOT / "docs" / "programs" / f"{program}.py")
    sys.argv = [path, *DOCS[program]]
    for _ in range(REPEATS.get(program, 1)):
        runpy.run_path(path, run_name="__main__")


def compare(cluster: Cluster, program: str, jobs: int, directory: Path) -> None:
    """Print a row with the recorded, the predicted and the measured time of a program."""
    is_training, words = program == TRAINING, [__file__, "--run", program]
    change = "ranks=2x" if is_training else "ranks=2x:strong"
    predictions, measured, calls = [], [], 0
    for job in range(jobs):
        few, many = (directory / f"{program}-{ranks}-{job}" for ranks in (FEW, MANY))
        cluster.record(few, words, ranks=FEW)
        cluster.record(many, words, ranks=MANY)
        records = read_records(few, change)
        predictions.append(next(record for record in records if record["kind"] == "profile_prediction"))
        calls = next(record["calls"] for record in records if record["kind"] == "profile")
        measured.append(read_records(many, "balance")[-1]["recorded_s"])
    best = min(predictions, key=lambda each: each["recorded_s"])
    predicted = best["predicted_s"]
    cells = [program, change, f"{calls:,}", f"{best['recorded_s']:.3f}", f"{best['replay_error']:.1%}"]
    cells += ["not known" if predicted is None else f"{predicted:.3f}", f"{min(measured):.3f}"]
    cells.append("" if predicted is None else f"{predicted / min(measured) - 1:+.1%}")
    print(f"| {' | '.join(cells)} |", flush=True)
    for each, seconds in zip(predictions, measured, strict=True):
        low_s, high_s = ((1 - each[key]) * each["recorded_s"] for key in ("saving_high", "saving_low"))
        print(f"# {each['recorded_s']:.3f} s, {low_s:.3f} to {high_s:.3f} s predicted, {seconds:.3f} s", flush=True)


def main() -> int:
    """Run one rank of a program, or record jobs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--run", metavar="PROGRAM", help="run one rank of a program")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", default=[*DOCS, TRAINING])
    arguments = parser.parse_args()
    if arguments.run:
        run_program(arguments.run)
        return 0
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shares = (str(ROOT), sys.prefix, str(directory))
        lab = stack.enter_context(Lab(ClusterSpec(MANY, 1, parse_rate(RATE), parse_latency(LATENCY), shares)))
        cluster = Cluster(MANY, lab)
        print(
            "| program | change | calls | 2 nodes (s) | replay error | 4 nodes predicted (s) | measured (s) | error |"
        )
        print("|---|---|---|---|---|---|---|---|", flush=True)
        for program in arguments.programs:
            compare(cluster, program, arguments.jobs, directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
