"""Measure the error of the global clock on ranks of one machine, which read the same clock, so the true time is known.

Each run synchronizes the clocks twice: as they are, and with an offset of 10 ms per rank and a drift of 50 ppm added
to the clocks of all ranks but 0. Then the ranks sleep, and the largest error of any rank's clock is computed at the
beginning and at the end of the sleep. The nodes of `hpccoll lab` are also on one machine, so the script works there.

    mpirun -n 2 python bench/clock_error.py --runs 100 --seconds 10 --json clock_error.jsonl
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
from script import make_run_record

from hpccoll.measure.clock import CLOCK_NAMES, GlobalClock, SkewedClock, measure_residual, synchronize
from hpccoll.measure.results.result_file import RecordWriter
from hpccoll.runtime import job

OFFSET_S, DRIFT = 0.01, 5e-5
MOST_US = 1.0  # of one node, at the 95th percentile; between nodes half the fastest round trip
WITHIN = 0.95  # the share of runs in which the error is at most the clock's own bound
INTERESTING = ("error_us", "stated_us", "residual_us", "round_trip_us", "sync_s")


def main() -> int:
    """Run as often as asked; rank 0 prints a line per run and a summary; return 1 if a requirement is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a run; default %(default)s")
    parser.add_argument("--clock", default="hca3", help=f"one of {', '.join(CLOCK_NAMES)}; default %(default)s")
    parser.add_argument("--json", metavar="FILE", help="write JSON Lines as runs finish")
    parser.add_argument("--require", action="store_true", help="exit with status 1 if a requirement is missed")
    options = parser.parse_args()
    world = job.get_world()
    run_record = make_run_record(world, f"mpirun -n {world.size} python bench/clock_error.py {' '.join(sys.argv[1:])}")
    found: list[dict[str, Any]] = []
    with RecordWriter(options.json if world.rank == 0 else None) as writer:
        writer.write(run_record)
        for number in range(options.runs):
            for record in measure_run(world, options.clock, options.seconds):
                found.append(record)
                writer.write(record)
                if world.rank == 0:
                    values = " ".join(f"{name} {record[name]:.3f}" for name in INTERESTING)
                    print(f"{number + 1:>4} {'skewed' if record['skewed'] else 'plain ':<6} {values}", flush=True)
        missed = [line for skewed in (False, True) for line in summarize(found, skewed, writer, world.rank == 0)]
    return 1 if missed and options.require else 0


def measure_run(world: Any, scheme: str, seconds: float) -> list[dict[str, Any]]:
    """Return the records of one run, for the machine's clocks and for the skewed clocks; collective."""
    started_s = world.bcast(time.perf_counter())
    skewed = SkewedClock(OFFSET_S * world.rank, DRIFT * bool(world.rank) * (-1) ** world.rank, started_s=started_s)
    plain = SkewedClock(0.0, 0.0, started_s=started_s)
    clocks = [synchronize(world, scheme, local=local) for local in (plain, skewed)]
    before = [true_error_us(world, clock) for clock in clocks]
    time.sleep(seconds)
    records = []
    for clock, first in zip(clocks, before, strict=True):
        last = true_error_us(world, clock)
        residual = measure_residual(world, clock)
        errors, stated = (np.array(world.allgather(max(pair))) for pair in ((first[0], last[0]), (first[1], last[1])))
        trips_s = float("inf") if clock.measured is None else float(clock.measured.round_trips_s.min())
        records.append(
            {
                "schema": "hpccoll/1",
                "kind": "clock_error",
                "scheme": scheme,
                "skewed": clock.local is skewed,
                "ranks": world.size,
                "seconds": seconds,
                "error_us": float(errors.max()),
                "stated_us": float(stated[errors.argmax()]),
                "within": bool((errors <= stated).all()),
                "residual_us": residual.offset_us,
                "residual_bound_us": residual.bound_us,
                "round_trip_us": 1e6 * min(world.allgather(trips_s)),
                "sync_s": max(world.allgather(clock.cost_s)),
            }
        )
    return records


def true_error_us(world: Any, clock: GlobalClock) -> tuple[float, float]:
    """Return the true error of this rank's clock now, and the bound that the clock states for it; collective."""
    now_s = world.bcast(time.perf_counter())  # on one machine, one moment has the same time on every rank
    local = clock.local
    shown_s = local.skew(now_s) if isinstance(local, SkewedClock) else now_s
    return abs(clock.to_global(shown_s) - now_s) * 1e6, clock.model.compute_error_s(shown_s) * 1e6


def summarize(records: list[dict[str, Any]], skewed: bool, writer: RecordWriter, prints: bool) -> list[str]:
    """Write and print a summary of the runs with or without skewed clocks; return the missed requirements."""
    chosen = [record for record in records if record["skewed"] is skewed]
    p95 = float(np.quantile([record["error_us"] for record in chosen], 0.95, method="inverted_cdf"))
    most_us = MOST_US if job.detect_layout(job.get_world()).nodes == 1 else min(r["round_trip_us"] for r in chosen) / 2
    share = sum(record["within"] for record in chosen) / len(chosen)
    missed = [f"the error is {p95:.2f} us, more than {most_us:.2f} us"] if p95 > most_us else []
    missed += [f"{share:.0%} of the errors are within the stated bound"] if share < WITHIN else []
    summary = {"runs": len(chosen), "error_p95_us": p95, "most_us": most_us, "within_share": share, "missed": missed}
    writer.write({"schema": "hpccoll/1", "kind": "clock_error_summary", "skewed": skewed} | summary)
    if prints:
        print(f"# {'skewed' if skewed else 'plain'} clocks: {summary}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
