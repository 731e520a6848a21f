"""Compare the `gloo` engine of `hpccoll bench` with a plain loop of torch.distributed, started by torchrun, in turns.

The loop calls `dist.all_reduce` after `dist.barrier`, and takes the largest time of any rank. The intervals of the
medians must overlap: MPI ranks that poll while Gloo's threads need the cores must not make the engine look slower.

    python bench/gloo_engine.py --ranks 2 --turns 3 --json gloo_engine.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from hpccoll.measure.results.result_file import RecordWriter
from hpccoll.statistics import median_interval
from hpccoll.units import format_size, parse_size

BIN = Path(sys.executable).parent
WARMUP = 3


def run_plain_loop(sizes: list[int], iterations: int, path: str) -> None:
    """Time all-reduces of Gloo on a rank that torchrun started; rank 0 writes the samples in us as JSON."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    samples: dict[int, list[float]] = {}
    for nbytes in sizes:
        data = torch.full((nbytes // 4,), float(dist.get_rank()))
        x, expected = data.clone(), data * 0 + sum(range(dist.get_world_size()))
        times = []
        for _ in range(WARMUP + iterations):
            x.copy_(data)
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(x)
            times.append((time.perf_counter() - begin) * 1e6)
            if not torch.equal(x, expected):  # as `hpccoll bench` does, which also moves `x` out of caches
                raise SystemExit(f"Gloo's result of {nbytes} bytes is wrong")
        slowest = torch.tensor(times[WARMUP:], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        samples[nbytes] = slowest.tolist()
    if dist.get_rank() == 0:
        Path(path).write_text(json.dumps(samples), encoding="utf-8")
    dist.destroy_process_group()


def start_plain_loop(ranks: int, sizes: list[int], iterations: int, folder: str) -> dict[int, list[float]]:
    """Run the plain loop by torchrun and return the samples of each size."""
    out = Path(folder, "loop.json")
    words = [__file__, "--loop", str(out), "--sizes", ",".join(map(str, sizes)), "--iterations", str(iterations)]
    launcher = [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={ranks}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*launcher, *words], check=True, capture_output=True, timeout=300, env=environment)
    return {int(size): samples for size, samples in json.loads(out.read_text(encoding="utf-8")).items()}


def start_engine(ranks: int, sizes: list[int], iterations: int, folder: str) -> dict[int, list[float]]:
    """Run `hpccoll bench --engine gloo` for each size and return the samples of each size."""
    samples = {}
    for nbytes in sizes:
        out = Path(folder, f"{nbytes}.jsonl")
        what = ["-b", str(nbytes), "-e", str(nbytes), "-n", str(iterations), "-w", str(WARMUP), "--engine", "gloo"]
        words = [str(BIN / "mpirun"), "-n", str(ranks), str(BIN / "hpccoll"), "bench", *what]
        subprocess.run([*words, "--json", str(out), "--overwrite"], check=True, capture_output=True, timeout=300)
        records = map(json.loads, out.read_text(encoding="utf-8").splitlines())
        samples[nbytes] = next(record["samples_us"] for record in records if record["kind"] == "collective")
    return samples


def main() -> int:
    """Run both sides in turns; print and write a record per size; return 1 if intervals do not overlap."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="8,4K,256K,4M")
    parser.add_argument("--iterations", type=int, default=40, help="per size and turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--loop", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = [parse_size(size) for size in options.sizes.split(",")]
    if options.loop:
        run_plain_loop(sizes, options.iterations, options.loop)
        return 0
    sides: dict[str, dict[int, list[float]]] = {"loop": {size: [] for size in sizes}, "engine": {s: [] for s in sizes}}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.turns):
            for name, run in (("loop", start_plain_loop), ("engine", start_engine)):
                for size, samples in run(options.ranks, sizes, options.iterations, folder).items():
                    sides[name][size] += samples
    missed = False
    with RecordWriter(options.json) as writer:
        for nbytes in sizes:
            record = compare(sides["loop"][nbytes], sides["engine"][nbytes])
            writer.write(
                {"schema": "hpccoll/1", "kind": "gloo_engine", "ranks": options.ranks, "nbytes": nbytes} | record
            )
            print(f"{format_size(nbytes):>8}  {json.dumps(record)}", flush=True)
            missed |= not record["overlap"]
    return int(missed)


def compare(loop_us: list[float], engine_us: list[float]) -> dict[str, Any]:
    """Return the medians of both sides with their intervals, and whether the intervals overlap."""
    loop, engine = median_interval(np.array(loop_us)), median_interval(np.array(engine_us))
    return {
        "loop_us": [loop.low, loop.value, loop.high],
        "engine_us": [engine.low, engine.value, engine.high],
        "ratio": engine.value / loop.value,
        "overlap": max(loop.low, engine.low) <= min(loop.high, engine.high),
    }


if __name__ == "__main__":
    sys.exit(main())
