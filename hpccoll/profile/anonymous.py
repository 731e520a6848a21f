"""Copies the recording of a job without the names of its program's files, functions, arguments and hosts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from hpccoll.errors import UsageError
from hpccoll.profile import layout
from hpccoll.profile.load import find_calls, read_profile


def write_anonymous(directory: str, copy: str) -> None:
    """Write a copy of a recorded job in which files, functions and hosts have numbers in place of names.

    The copy keeps message sizes, times, line numbers and the ranks of communicators. No recording has message contents.

    Args:
        directory: the recording, as `hpccoll profile -o` wrote it.
        copy: the path of a new directory for the copy.

    Raises:
        UsageError: `directory` is no recording, the copy cannot be written, or the directory `copy` exists.
    """
    source, target = Path(directory), Path(copy)
    ranks = read_profile(directory).size
    try:
        target.mkdir(parents=True)
        numbers: dict[str, int] = {}
        for rank in range(ranks):
            names = source / f"rank-{rank}{layout.NAMES_SUFFIX}"
            whole, _, _ = names.read_text(encoding="utf-8").rpartition("\n")  # a killed job may leave a partial line
            lines = [json.loads(line) for line in whole.splitlines()]
            hidden = [json.dumps(_hide(line, numbers)) for line in lines]
            (target / names.name).write_text("\n".join([*hidden, ""]), encoding="utf-8")
            shutil.copyfile(find_calls(source, lines[0]), target / f"rank-{rank}{layout.CALLS_SUFFIX}")
    except OSError as error:
        raise UsageError(f"--anonymous {copy}: {error.strerror}; name a new directory") from error


def _hide(fields: dict[str, Any], numbers: dict[str, int]) -> dict[str, Any]:
    """Return a line of the recording's file of names, with numbers in place of the names of files, functions and hosts.

    The program's arguments and the names of communicators are left out.

    Args:
        fields: the line, a JSON object.
        numbers: the number that replaces each name, by kind and name; the function adds numbers for new names.
    """

    def number(kind: str, name: str) -> str:
        """Return the replacement of a name, such as `file3`, which is the same for each occurrence of the name."""
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
