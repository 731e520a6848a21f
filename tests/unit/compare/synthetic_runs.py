"""Makes runs of a benchmark with the noise of shared machines: drift per run, per workload and row, and in a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from hpccoll.compare.measured_runs import ComparedSide, MeasuredRun
from hpccoll.measure.results.collective_record import make_collective_record
from hpccoll.records import CollectiveCase, CollectiveRecord, StopReason

OPERATIONS = ("all_reduce", "all_gather", "broadcast", "scatter")
CONTENDERS = (("mpi", None), ("hpccoll", "ring"), ("hpccoll", "tree"), ("hpccoll", "auto"))
CASE = CollectiveCase("all_reduce", "mpi", None, "host", True, 1024, 256, "float32", "sum", None, 2, 1)
SIZES = (1024, 16384, 262144)


def make_samples(generator: np.random.Generator, median_us: float, count: int) -> list[float]:
    """Return samples with autocorrelated noise of 5 % and some outliers."""
    noise, steps = np.empty(count), generator.normal(0, 0.02, count)
    level = 0.0
    for at in range(count):
        level = 0.9 * level + steps[at]
        noise[at] = level
    outliers = np.where(generator.random(count) < 0.02, 3.0, 1.0)
    return [float(each) for each in median_us * np.exp(noise) * outliers]


def make_records(
    seed: int,
    slower: dict[tuple[str, str], float] | None = None,
    *,
    contenders: tuple[tuple[str, str | None], ...] = CONTENDERS,
    operations: tuple[str, ...] = OPERATIONS,
    sizes: tuple[int, ...] = SIZES,
    count: int = 100,
    **case: Any,
) -> list[CollectiveRecord]:
    """Return the records of a run; `slower` maps (operation, engine) to factors of their times."""
    generator = np.random.default_rng(seed)
    run_drift, records = generator.normal(0, 0.1), []
    for op in operations:
        for nbytes in sizes:
            workload_drift = generator.normal(0, 0.015)
            for at, (engine, algorithm) in enumerate(contenders):
                us = (2 + nbytes / 5000) * (1 + 0.2 * at) * (slower or {}).get((op, engine), 1.0)
                us *= float(np.exp(run_drift + workload_drift + generator.normal(0, 0.01)))
                redop = "sum" if op == "all_reduce" else None
                row = replace(
                    CASE,
                    op=op,
                    engine=engine,
                    algorithm=algorithm,
                    nbytes=nbytes,
                    count=nbytes // 4,
                    redop=redop,
                    **case,
                )
                samples = make_samples(generator, us, count)
                records.append(make_collective_record(row, samples, StopReason.ITERATIONS, 0))
    return records


def make_run(records: list[CollectiveRecord], **environment: Any) -> MeasuredRun:
    """Return a run with the given records and fields of its record of kind `run`."""
    known = {"hosts": ["vm", "vm"], "ranks": 2, "versions": {"mpi": "MPICH 5.0.2"}}
    return MeasuredRun("run", known | environment, {record.key: record for record in records})


def make_side(name: str, *runs: list[CollectiveRecord], **environment: Any) -> ComparedSide:
    """Return a side with one run per list of records."""
    return ComparedSide(name, [make_run(records, **environment) for records in runs])


def write_run(path: Path, records: list[CollectiveRecord], **environment: Any) -> str:
    """Write a result file and return its path."""
    known = {
        "schema": "hpccoll/1",
        "kind": "run",
        "hosts": ["vm", "vm"],
        "ranks": 2,
        "versions": {"mpi": "MPICH 5.0.2"},
    }
    lines = [known | environment, *(record.as_dict() for record in records)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)
