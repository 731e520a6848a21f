"""Finds out whether the native extension was compiled from the C files as they are now, before it is loaded."""

from __future__ import annotations

import os
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final

_FOLDER: Final = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - `pathlib` takes 5 ms to import
EXTENSION_PATH: Final = f"{_FOLDER}/_extension{EXTENSION_SUFFIXES[0]}"
COMPILE_COMMAND: Final = f"python {_FOLDER}/compiler.py"


def require_extension() -> None:
    """Raise ImportError if the compiled extension is missing, or older than the C files of a source tree.

    The error message has the command that compiles the extension.
    """
    try:
        compiled_ns = os.stat(EXTENSION_PATH).st_mtime_ns  # noqa: PTH116
    except FileNotFoundError:
        raise ImportError(
            f"the native extension of hpccoll was not compiled for this Python ({EXTENSION_PATH} is missing); install "
            f"hpccoll again by pip, or in a source tree: {COMPILE_COMMAND}"
        ) from None
    with os.scandir(_FOLDER) as entries:
        newest_ns = max((entry.stat().st_mtime_ns for entry in entries if entry.name.endswith((".c", ".h"))), default=0)
    if newest_ns > compiled_ns and not _is_of_sources():
        raise ImportError(f"C files in {_FOLDER} have changed since the extension was compiled; run: {COMPILE_COMMAND}")


def _is_of_sources() -> bool:
    """Whether the compiled extension was made from the present C files, that is, contains their hash.

    The extension is read as a file, because an outdated extension must not be loaded.
    """
    from hpccoll.native.compiler import digest_sources

    with open(EXTENSION_PATH, "rb") as file:  # noqa: PTH123
        return digest_sources().encode() in file.read()
