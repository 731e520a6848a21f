"""Reads machine models for simulations: built-in ones from machines/*.toml (with sources), or a user's TOML file."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.plan import Machine
from hpccoll.plan.simulation import MachineError, build_machine

_FOLDER, _SUFFIX = "machines", ".toml"
_MAX_CHARACTERS = 2**20


def list_machines() -> list[str]:
    """Return the names of the built-in machine models, sorted."""
    entries = (entry.name for entry in (files(__package__) / _FOLDER).iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in entries if name.endswith(_SUFFIX))


def load_machine(name: str) -> Machine:
    """Read a machine model; `name` is the name of a built-in machine model or the path of a TOML file.

    Raises:
        UnknownNameError: `name` is neither a built-in machine model nor a path ending in .toml.
        UsageError: the file cannot be read.
        MachineError: the file does not describe a machine model.
    """
    if name in list_machines():
        text = (files(__package__) / _FOLDER / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
        return parse_machine(text, name)
    if not name.endswith(_SUFFIX):
        raise UnknownNameError("machine", name, [*list_machines(), "FILE.toml", "fit:FILE"])
    try:
        data = Path(name).read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--machine {name}: cannot read it ({why}); name a TOML file or one of {list_machines()}"
        ) from error
    try:
        return parse_machine(data.decode(), f"--machine {name}")
    except UnicodeDecodeError as error:
        raise MachineError(f"--machine {name}: is not UTF-8 text ({error.reason} at byte {error.start})") from error


def parse_machine(text: str, source: str) -> Machine:
    """Return the machine model that a TOML string describes.

    `source` is the name of the file or machine model for error messages. `build_machine` documents the valid keys.

    Raises:
        MachineError: `text` is not TOML, or does not describe a machine model.
    """
    if len(text) > _MAX_CHARACTERS:
        raise MachineError(f"{source}: has {len(text)} characters; a description of a machine takes a dozen lines")
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise MachineError(f"{source}: is not TOML ({error})") from error
    except ValueError as error:  # an integer with more digits than Python converts
        raise MachineError(f"{source}: {error}") from error
    return build_machine(data, source)
