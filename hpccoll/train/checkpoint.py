"""Checkpoints: one file each, whole or not there, that any mesh can go on from.

    DIR/step-00000200.npz    about (JSON: step, samples, and what the model is), and every whole parameter by its name

A file is written under another name, flushed to the disk, and renamed: a job that is killed at any moment leaves the
checkpoints before it. Reading verifies the checksums that the format has for each array, so that one which a disk or a
crash tore is passed over for the one before. The last KEPT stay. Only rank 0 reads and writes.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpccoll.errors import UsageError

KEPT = 2
SCHEMA = "hpccoll-checkpoint/1"
_NAME = re.compile(r"step-(\d{8,})\.npz")
_UNFINISHED = ".unfinished"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state to go on from.

    Args:
        step: steps that were done.
        samples: that were seen.
        identity: of model and seed, as Settings.identity.
        parameters: whole, by name.
    """

    step: int
    samples: int
    identity: Mapping[str, Any]
    parameters: Mapping[str, Any]


class Folder:
    """The directory that --checkpoint names; it is made where there is none.

    Raises:
        UsageError: it cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        probe = self.path / f"probe{_UNFINISHED}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise self._unwritable(error) from error

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, and remove all but the last ones.

        Raises:
            UsageError: there is no room, or the directory has become unwritable; earlier checkpoints stay.
        """
        target = self.path / f"step-{checkpoint.step:08d}.npz"
        unfinished = target.with_suffix(_UNFINISHED)
        about = {"schema": SCHEMA, "step": checkpoint.step, "samples": checkpoint.samples, **checkpoint.identity}
        try:
            with unfinished.open("wb") as stream:
                np.savez(stream, about=np.array(json.dumps(about)), **checkpoint.parameters)
                stream.flush()
                os.fsync(stream.fileno())
            unfinished.replace(target)
            self._flush()
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            raise self._unwritable(error) from error
        for old in [*self._files()[KEPT:], *self.path.glob(f"step-*{_UNFINISHED}")]:
            with suppress(OSError):
                old.unlink()
        return target

    def newest(self, identity: Mapping[str, Any]) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest whole checkpoint, None where there is none, and a word on each that is damaged.

        Raises:
            UsageError: it is of another model or seed; the message names both.
        """
        damaged = []
        for file in self._files():
            try:
                found = _read(file)
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
                damaged.append(f"{file} is damaged and passed over ({error})")
                continue
            _require(file, found.identity, identity)
            return found, damaged
        return None, damaged

    def _files(self) -> list[Path]:
        """The checkpoints, the newest first."""
        named = [(int(match[1]), path) for path in self.path.iterdir() if (match := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(named, reverse=True)]

    def _flush(self) -> None:
        """Have the new name on the disk, too."""
        directory = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _unwritable(self, error: OSError) -> UsageError:
        why = error.strerror or str(error)
        return UsageError(f"--checkpoint {self.path}: cannot write there ({why}); name a directory you may write to")


def _read(file: Path) -> Checkpoint:
    with zipfile.ZipFile(file) as archive:
        torn = archive.testzip()
        if torn is not None:
            raise ValueError(f"the checksum of {torn} does not fit")
    with np.load(file, allow_pickle=False) as arrays:
        about = json.loads(str(arrays["about"]))
        if about.pop("schema") != SCHEMA:
            raise ValueError(f"not of schema {SCHEMA}")
        parameters = {name: arrays[name] for name in arrays.files if name != "about"}
    return Checkpoint(about.pop("step"), about.pop("samples"), about, parameters)


def _require(file: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differing = [name for name in wanted if found.get(name) != wanted[name]]
    if differing:
        theirs = ", ".join(f"{name} {found.get(name)}" for name in differing)
        ours = ", ".join(f"{name} {wanted[name]}" for name in differing)
        raise UsageError(
            f"--checkpoint {file.parent}: {file.name} is of another run ({theirs}), and this one has {ours}; "
            "give the same options, or name another directory"
        )
