"""Makes the measured times in docs/torch.md from the recorded results of torch_backend.py and torch_cluster.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from claims import RESULTS, format_origin, read_results

from hpccoll.units import KiB, MiB, format_size

Record = Mapping[str, Any]
NODE: Final = "torch_backend-mpich-2"
GLOO, OWN = "gloo", "hpccoll"
ROWS: Final = (  # case, bytes, text of the row
    ("all_reduce", 8, "`all_reduce` of 8 B"),
    ("all_reduce, async", 8, "`all_reduce` of 8 B, `async_op=True` and `wait`"),
    ("reduce_scatter_tensor", 8, "`reduce_scatter_tensor` of 8 B"),
    ("isend and irecv", 8, "`isend` and `irecv` of 8 B"),
    ("all_reduce", 16 * KiB, "`all_reduce` of 16 KiB"),
    ("all_reduce", MiB, "`all_reduce` of 1 MiB, the same tensor again"),
    ("all_reduce, fresh", MiB, "`all_reduce` of 1 MiB, new tensors"),
    ("all_reduce, bucket", MiB, "`all_reduce` of 1 MiB, a gradient bucket"),
    ("scatter", MiB, "`scatter` of 1 MiB"),
    ("all_reduce", 16 * MiB, "`all_reduce` of 16 MiB, the same tensor again"),
    ("all_reduce, fresh", 16 * MiB, "`all_reduce` of 16 MiB, new tensors"),
    ("all_reduce, bucket", 16 * MiB, "`all_reduce` of 16 MiB, a gradient bucket"),
    ("reduce_scatter_tensor", 16 * MiB, "`reduce_scatter_tensor` of 16 MiB"),
    ("all_reduce", 64 * MiB, "`all_reduce` of 64 MiB, the same tensor again"),
    ("all_reduce, fresh", 64 * MiB, "`all_reduce` of 64 MiB, new tensors"),
    ("all_reduce, bucket", 64 * MiB, "`all_reduce` of 64 MiB, a gradient bucket"),
    ("DDP step", 64 * MiB, "a step of `DistributedDataParallel` with 64 MiB of gradients"),
    ("FSDP2 step", 64 * MiB, "a step of `fully_shard` (FSDP2) with 64 MiB of gradients"),
)
HEAD: Final = "| | gloo | hpccoll | gloo's time / hpccoll's |\n|---|---|---|---|"


def format_speed() -> Iterator[str]:
    """Yield the Markdown lines about the ranks of one node: circumstances, table, and the slowest operations."""
    run, *records = read_results(NODE)
    times = find_times(records)
    yield f"{format_origin(run)} [All measured operations and sizes](../bench/tables/{NODE}.md).\n"
    yield HEAD
    for case, nbytes, text in ROWS:
        yield format_row(text, *times[case, nbytes])
    (added,) = (record for record in records if record["kind"] == "communication")
    ratio = added["musts"][0]["ratio"]
    yield (
        f"| communication in the step of `DistributedDataParallel` (beyond a step without it) | "
        f"{format_time(added['gloo_us'])} | {format_time(added['hpccoll_us'])} | {format_ratio(ratio)} |\n"
    )
    slower = [(key, own) for key, (_, own) in times.items() if own["ratio"]["value"] < 1]
    listed = ", ".join(
        f"{case} of {format_size(nbytes)} ({own['ratio']['value']:.2f})" for (case, nbytes), own in slower
    )
    yield (
        f"Of all {len(times)} measured operations and sizes, hpccoll took longer than gloo in {len(slower)} (gloo's "
        f"time / hpccoll's in parentheses): {listed}.\n"
    )


def find_times(records: Sequence[Record]) -> dict[tuple[str, int], tuple[Record, Record]]:
    """Return the records of gloo and of hpccoll by case and number of bytes."""
    sides = {(r["case"], r["nbytes"], r["side"]): r for r in records if r["kind"] == "comparison"}
    return {(case, size): (sides[case, size, GLOO], own) for (case, size, side), own in sides.items() if side == OWN}


def format_row(text: str, gloo: Record, own: Record) -> str:
    """Return a row of a table with the times of both backends and their ratio."""
    times = (format_time(record["time_us"]["p50"]) for record in (gloo, own))
    return f"| {text} | {' | '.join(times)} | {format_ratio(own['ratio'])} |"


def format_time(microseconds: float) -> str:
    """Return a time with three significant digits and its unit."""
    value, unit = (microseconds / 1e3, "ms") if microseconds >= 1e3 else (microseconds, "us")
    return f"{value:.{max(0, 2 - (value >= 10) - (value >= 100))}f} {unit}"


def format_ratio(ratio: Record) -> str:
    """Return a ratio with its 95 % interval."""
    return f"{ratio['value']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def format_clusters() -> Iterator[str]:
    """Yield the Markdown lines of the table about several nodes, from all results of torch_cluster.py."""
    yield HEAD
    for path in sorted(RESULTS.glob("torch_cluster*.jsonl")):
        for (case, nbytes), (gloo, own) in find_times(read_results(path.stem)).items():
            operation, _, placement = case.partition(", ")
            yield format_row(f"`{operation}` of {format_size(nbytes)}, {placement}", gloo, own)
