"""Make the Markdown tables of the recorded results from the record files.

python bench/summary.py            prints them
python bench/summary.py --write    puts them into README.md, between its two marks
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpccoll.measure.result_file import read_records
from hpccoll.units import format_size

HERE = Path(__file__).parent
BEGIN, END = "<!-- results: written by summary.py -->", "<!-- end of results -->"
Record = Mapping[str, Any]


def main() -> int:
    """Print the tables, or replace those in README.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into README.md instead of standard output")
    parser.add_argument("files", nargs="*", type=Path, help="default: all of bench/results")
    options = parser.parse_args()
    text = "\n".join(of for path in options.files or sorted(HERE.glob("results/*.jsonl")) for of in section(path))
    if not options.write:
        print(text)
        return 0
    readme = HERE / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    readme.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


def section(path: Path) -> Iterator[str]:
    """Read one result file; yield the Markdown lines of its section."""
    run, *records = read_records(path, "bench/summary.py").records
    versions = run["versions"]
    yield f"### {path.stem}\n"
    yield f"`{run['command']}`\n"
    yield (
        f"{run['processor']}, {max(run['cores'])} cores, {run['ranks']} rank{'s' * (run['ranks'] > 1)}"
        f"{' (oversubscribed)' * run['oversubscribed']}; {versions['mpi']}, mpi4py {versions['mpi4py']}, "
        f"NumPy {versions['numpy']}; {run['start_time']}, commit {run['commit'] or 'unknown'}.\n"
    )
    cases = list(_cases(records))
    for sides in {tuple(record["side"] for record in case): None for case in cases}:
        yield from _table([case for case in cases if tuple(record["side"] for record in case) == sides])
        yield ""
    for record in records:
        if record["kind"] != "comparison":
            yield f"- {' '.join(record['line'].split())}"
    yield ""


def _cases(records: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the comparison records of each case; a record without ratio is a baseline and begins a new case."""
    case: list[dict[str, Any]] = []
    for record in records:
        if record["kind"] != "comparison":
            continue
        if record["ratio"] is None and case:
            yield case
            case = []
        case.append(record)
    if case:
        yield case


def _table(cases: list[list[dict[str, Any]]]) -> Iterator[str]:
    """Yield the lines of a Markdown table of cases that have the same sides."""
    sides = [record["side"] for record in cases[0]]
    yield f"| case | size | calls | {' | '.join(sides)} | holds | others' cores |"
    yield f"|---|---|---|{'---|' * len(sides)}---|---|"
    for case in cases:
        first = case[0]
        musts = [must for record in case for must in record["musts"]]
        holds = "; ".join(f"{must['text']}: {'yes' if must['holds'] else '**no**'}" for must in musts) or "-"
        cells = " | ".join(_cell(record) for record in case)
        size = format_size(first["nbytes"])
        yield f"| {first['case']} | {size} | {first['batch']} | {cells} | {holds} | {first['others_cores']:.2f} |"


def _cell(record: Record) -> str:
    """Return the median in microseconds, and the ratio to the baseline with its interval unless it is the baseline."""
    median, ratio = record["time_us"]["p50"], record["ratio"]
    time = f"{median:,.2f}" if median < 1e3 else f"{median:,.0f}"
    return time if ratio is None else f"{time}: {ratio['value']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}]"


if __name__ == "__main__":
    sys.exit(main())
