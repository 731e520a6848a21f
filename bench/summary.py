"""Make the claims of README.md and docs/torch.md, and the pages of tables/, from the recorded results.

python bench/summary.py            prints the tables
python bench/summary.py --write    writes tables/, charts/, and both README.md files and docs/torch.md between marks
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from claim_charts import write_charts
from claims import CLAIMS, format_claim, format_prediction
from marked_blocks import replace_block
from peers_page import format_headline, format_tables
from strategies_page import EXPERTS, TIMED, format_accounts, format_mixed, write_pictures
from torch_page import format_clusters, format_speed
from training_page import format_training_steps

from hpccoll.measure.results.result_file import read_records
from hpccoll.units import format_size

HERE = Path(__file__).parent
TORCH_PAGE = HERE.parent / "docs" / "torch.md"
TRAINING_PAGE = HERE.parent / "docs" / "training.md"
STRATEGIES_PAGE = HERE.parent / "docs" / "strategies.md"
Record = Mapping[str, Any]


def main() -> int:
    """Print the tables, or write the pages and charts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write README.md, tables/ and charts/ instead of printing")
    parser.add_argument("files", nargs="*", type=Path, help="default: all of bench/results")
    options = parser.parse_args()
    if not options.write:
        print("\n".join(line for path in options.files or list_result_files() for line in section(path)))
        return 0
    for path, text in make_pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    write_charts(HERE / "charts")
    write_pictures()
    return 0


def list_result_files() -> list[Path]:
    """Return the files of recorded comparisons."""
    return sorted(HERE.glob("results/*.jsonl"))


def make_pages() -> dict[Path, str]:
    """Return the text of every page by its path: the pages with new claims, and the pages of tables/."""
    pages = {HERE / "tables" / f"{path.stem}.md": "\n".join(section(path)) for path in list_result_files()}
    pages[HERE / "tables" / "best_peers.md"] = "\n".join(format_tables())
    pages[HERE / "tables" / "index.md"] = "\n".join(_index_lines())
    missed, total = list_missed()
    pages[HERE / "tables" / "missed.md"] = "\n".join(_missed_lines(missed, total))
    claims = "\n".join([*(line for claim in CLAIMS for line in format_claim(claim)), *format_prediction()])
    claims += f"\n### Missed requirements\n\n[{len(missed)} of {total} requirements](tables/missed.md) of the scripts"
    claims += ', such as "no slower than the MPI library", are missed.\n'
    blocks = (
        (HERE / "README.md", "claims", claims),
        (HERE.parent / "README.md", "claims", "\n".join(format_headline())),
        (TORCH_PAGE, "speed", "\n".join(format_speed())),
        (TRAINING_PAGE, "steps", "\n".join(format_training_steps())),
        (STRATEGIES_PAGE, "account", "\n".join(format_accounts(TIMED))),
    )
    for path, name, text in blocks:
        pages[path] = replace_block(path.read_text(encoding="utf-8"), name, text)
    pages[TORCH_PAGE] = replace_block(pages[TORCH_PAGE], "clusters", "\n".join(format_clusters()))
    for name, lines in (("experts", format_accounts(EXPERTS)), ("mixed", format_mixed())):
        pages[STRATEGIES_PAGE] = replace_block(pages[STRATEGIES_PAGE], name, "\n".join(lines))
    return pages


def _index_lines() -> Iterator[str]:
    """Yield the lines of the page that links to all tables."""
    yield "# All measurements\n"
    yield "Each page lists one file of results. The page [Comparisons](../README.md) explains method and columns.\n"
    yield "| page | ranks | recorded | commit |\n|---|---|---|---|"
    for path in list_result_files():
        run, *_ = read_records(path, "bench/summary.py").records
        commit = run["commit"] or "unknown"
        yield f"| [{path.stem}]({path.stem}.md) | {run['ranks']} | {run['start_time'][:10]} | {commit} |"
    yield "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def list_missed() -> tuple[list[tuple[str, Record, Record]], int]:
    """Return the missed requirements with the name of their file and their record, and the number of requirements."""
    musts = [
        (path.stem, record, must)
        for path in list_result_files()
        for record in read_records(path, "bench/summary.py").records
        for must in record.get("musts", ())
    ]
    return [entry for entry in musts if not entry[2]["holds"] and not _is_faster_than_allowed(entry[2])], len(musts)


def _is_faster_than_allowed(must: Record) -> bool:
    """Whether a side that may be slower than the baseline by some microseconds is faster than the baseline."""
    return "us" in must["text"].split() and must["ratio"]["low"] >= 1


def _missed_lines(missed: list[tuple[str, Record, Record]], total: int) -> Iterator[str]:
    """Yield the lines of the page of missed requirements."""
    yield "# Missed requirements\n"
    yield (
        f"{len(missed)} of {total} requirements of the scripts are missed. The column *measured* is the speed relative "
        "to the baseline's. For `auto within 1.05x of the fastest`, it is the time relative to the fastest; for a "
        "copy's rate, it is the fraction of the rate that was reached.\n"
    )
    yield "| results | case | size | side | requirement | measured |\n|---|---|---|---|---|---|"
    for stem, record, must in missed:
        side = record.get("side", "-" if record["kind"] == "floor" else "auto")
        value = must["ratio"]["value"] if must["ratio"] else record["floor_us"] / record["measured_us"]
        size = format_size(record["nbytes"])
        yield f"| [{stem}]({stem}.md) | {record['case']} | {size} | {side} | {must['text']} | {value:.2f}x |"
    yield ""


def section(path: Path) -> Iterator[str]:
    """Read one result file; yield the Markdown lines of its section."""
    run, *records = read_records(path, "bench/summary.py").records
    versions = run["versions"]
    yield f"# {path.stem}\n"
    yield f"`{run['command']}`\n"
    yield (
        f"{run['processor']}, {max(run['cores'])} cores, {run['ranks']} rank{'s' * (run['ranks'] > 1)}"
        f"{' (oversubscribed)' * run['oversubscribed']}; {versions['mpi']}, mpi4py {versions['mpi4py']}, "
        f"NumPy {versions['numpy']}; {run['start_time']}, commit {run['commit'] or 'unknown'}. "
        "The page [Comparisons](../README.md#method) explains the columns.\n"
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
