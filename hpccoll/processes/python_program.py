"""Checks the Python program that a command is to run, before the command connects the ranks of a job."""

from __future__ import annotations

import importlib.util
import warnings
import zipfile
from pathlib import Path

from hpccoll.errors import UsageError

_REMEDY = "give the path of a Python script, or -m and the name of a module"


def require_script(path: str) -> None:
    """Raise UsageError unless `path` is a script that Python can compile, or a directory or archive that it can run.

    Python can run a directory, or a zip archive, that contains a file `__main__.py`. A pipe is not checked.
    """
    file = Path(path)
    try:
        if file.is_dir():
            if not (file / "__main__.py").exists():
                raise UsageError(f"{path}: is a directory without a file __main__.py; {_REMEDY}")
            return
        if file.exists() and not file.is_file():
            return  # a pipe, such as <(command) in a shell, can be read only once
        source = file.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"{path}: there is no such script; {_REMEDY}") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot read this script ({error.strerror or error}); {_REMEDY}") from error
    if source.startswith(importlib.util.MAGIC_NUMBER) or zipfile.is_zipfile(file):
        return
    try:
        with warnings.catch_warnings(action="ignore"):  # Python warns when it runs the program
            compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte, in some versions of Python
        line = getattr(error, "lineno", None)
        where = f" (line {line}: {error.msg})" if isinstance(error, SyntaxError) and line else f" ({error})"
        raise UsageError(f"{path}: is not a Python program{where}; correct it, or {_REMEDY}") from error


def require_module(name: str) -> None:
    """Raise UsageError if Python finds no module or package with the first part of `name`, as in `python -m NAME`.

    Nothing is imported, because the code of a package may use MPI, which the caller has yet to prepare. A package can
    change its own path when it is imported: for a module missing in a package, `python -m NAME` reports the error.
    """
    package, _, rest = name.partition(".")
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # an empty name
        spec = None
    if spec is None or (rest and spec.submodule_search_locations is None):
        raise UsageError(f"-m {name}: Python finds no such module that can be run; give its name without .py")
