"""Copies a profile without the names that identify its program, its user and its machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from hpccoll.errors import UsageError
from hpccoll.profile import layout
from hpccoll.profile.load import find_calls, read_profile


def write_anonymous(directory: str, copy: str) -> None:
    """Write a copy of a profile in which files, functions, arguments and hosts have numbers for names.

    Sizes, times, line numbers and communicators stay. No profile contains data of the user.

    Raises:
        UsageError: `directory` is no profile, the copy cannot be written, or its directory exists.
    """
    source, target = Path(directory), Path(copy)
    ranks = read_profile(directory).size
    try:
        target.mkdir(parents=True)
        numbers: dict[str, int] = {}
        for rank in range(ranks):
            names = source / f"rank-{rank}{layout.NAMES_SUFFIX}"
            whole, _, _ = names.read_text(encoding="utf-8").rpartition("\n")  # a killed job may leave a part of a line
            lines = [json.loads(line) for line in whole.splitlines()]
            hidden = [json.dumps(_hide(line, numbers)) for line in lines]
            (target / names.name).write_text("\n".join([*hidden, ""]), encoding="utf-8")
            shutil.copyfile(find_calls(source, lines[0]), target / f"rank-{rank}{layout.CALLS_SUFFIX}")
    except OSError as error:
        raise UsageError(f"--anonymous {copy}: {error.strerror}; name a new directory") from error


def _hide(fields: dict[str, Any], numbers: dict[str, int]) -> dict[str, Any]:
    """Return the fields of a line with numbers in place of names; `numbers` are those given so far."""

    def number(kind: str, name: str) -> str:
        return f"{kind}{numbers.setdefault(f'{kind} {name}', len(numbers))}"

    match fields["kind"]:
        case "program":
            host = number("host", fields["host"])
            return fields | {"host": host, "argv": ["program"], "pid": 0, "calls": "", "time_ns": 0}
        case "tuning_site":
            return fields | {"host": number("host", fields["host"])}
        case "site":
            return fields | {"file": number("file", fields["file"]), "function": number("function", fields["function"])}
        case "comm":
            return fields | {"name": ""}
    return fields
