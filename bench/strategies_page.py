"""Make the tables and the picture of docs/strategies.md from the recorded accounts of `hpccoll train --account`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from claims import RESULTS

from hpccoll.cli.train_account import COLUMNS, format_rows
from hpccoll.measure.results.result_file import read_records
from hpccoll.records import TrainAccountRecord
from hpccoll.report.account_picture import write_account_picture

FOLDER: Final = RESULTS / "strategies"
TIMED, EXPERTS, MIXED = "account-2", "experts-2", ("account-4", "experts-4")


def read_accounts(stem: str) -> list[TrainAccountRecord]:
    """Return the accounts in a file of recorded results."""
    records = read_records(FOLDER / f"{stem}.jsonl", "bench/strategies_page.py").records
    return [TrainAccountRecord.from_dict(each, stem) for each in records if each["kind"] == TrainAccountRecord.kind]


def format_accounts(stem: str) -> Iterator[str]:
    """Yield the Markdown lines of an account of single axes, then a line on the machine of the measurement."""
    yield from _format_table([stem], "")
    run = read_records(FOLDER / f"{stem}.jsonl", "bench/strategies_page.py").records[0]
    day, commit = run["start_time"][:10], run["commit"] or "unknown"
    yield f"\n{run['ranks']} ranks on {max(run['cores'])} cores, {run['versions']['mpi']}, on {day} at commit {commit}."


def format_mixed() -> Iterator[str]:
    """Yield the Markdown lines of the bytes of mixed meshes, whose four ranks shared two cores."""
    yield from _format_table(MIXED, "MB")


def _format_table(stems: Sequence[str], ending: str) -> Iterator[str]:
    """Yield a table of the quantities whose name ends with `ending`."""
    yield f"| {' | '.join(COLUMNS)} |\n|---|---|---|---|---|"
    for row in format_rows([account for stem in stems for account in read_accounts(stem)]):
        if row[1].endswith(ending):
            yield f"| {' | '.join(row)} |"


def write_pictures() -> None:
    """Draw the accounts of single axes."""
    for stem, name in ((TIMED, "account.svg"), (EXPERTS, "experts.svg")):
        write_account_picture(read_accounts(stem), str(FOLDER / name))
