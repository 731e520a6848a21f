"""The machines that come along, from data sheets and with their sources, and those of a user's own TOML file."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.plan import Machine
from hpccoll.plan.simulation import MachineError, build_machine

_FOLDER, _SUFFIX = "machines", ".toml"
_MOST_BYTES = 2**20


def list_machines() -> list[str]:
    """Return the names of the machines that come along."""
    entries = (entry.name for entry in (files(__package__) / _FOLDER).iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in entries if name.endswith(_SUFFIX))


def load_machine(name: str) -> Machine:
    """Return a machine by its name, or as the TOML file of that path describes it.

    Raises:
        UnknownNameError: neither a name nor a path to a TOML file.
        UsageError: the file cannot be read.
        MachineError: it does not describe a machine.
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
        raise MachineError(f"--machine {name}: is no text ({error.reason} at byte {error.start})") from error


def parse_machine(text: str, where: str) -> Machine:
    """Return the machine that a TOML text describes.

    Args:
        text: see `build_machine` for its keys.
        where: what to call it in messages.

    Raises:
        MachineError: it is no TOML, or does not describe a machine.
    """
    if len(text) > _MOST_BYTES:
        raise MachineError(f"{where}: has {len(text)} characters; a description of a machine takes a dozen lines")
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise MachineError(f"{where}: is no TOML ({error})") from error
    except ValueError as error:  # a whole number of more digits than Python takes
        raise MachineError(f"{where}: {error}") from error
    return build_machine(found, where)
