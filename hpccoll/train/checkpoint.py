"""Write and read checkpoints, each an atomically renamed directory from which a run on any mesh of ranks can resume.

The checkpoint DIR/step-00000200 has all full parameters and the tensors of the optimizer for each parameter, in the
format of torch.distributed.checkpoint, and `manifest.json`: the step, the number of samples, the options that a resumed
run must share, and size and checksum of every file.

A checkpoint is written under a temporary name, flushed to disk and renamed, so a job that is killed at any moment
leaves the earlier checkpoints intact. Reading verifies sizes and checksums and skips damaged checkpoints. Only the KEPT
newest checkpoints are kept. Only rank 0 reads and writes checkpoints.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
import weakref
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hpccoll.atomic_files import wait_for_lock
from hpccoll.errors import UsageError
from hpccoll.private_files import read_limited

KEPT = 2
LOCK_LIMIT_S = 20.0
MOST_BYTES = 2**24  # of a manifest
SCHEMA = "hpccoll-checkpoint/2"
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{8,})")
_UNFINISHED = ".unfinished"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The contents of a checkpoint: the step, the number of samples, the options, and all tensors by name."""

    step: int  # number of steps done
    samples: int  # number of samples seen
    identity: Mapping[str, Any]  # result of TrainOptions.get_checkpoint_identity
    parameters: Mapping[str, Any]  # full tensors by name, also those of the optimizer's state


class CheckpointFile(msgspec.Struct, frozen=True):
    """The size and the checksum of one file of a checkpoint."""

    nbytes: int
    crc32: int

    @classmethod
    def measure(cls, path: Path) -> CheckpointFile:
        """Return the size and the checksum of a file, read in parts of 1 MiB."""
        nbytes = crc32 = 0
        with path.open("rb") as stream:
            while part := stream.read(1 << 20):
                nbytes, crc32 = nbytes + len(part), zlib.crc32(part, crc32)
        return cls(nbytes, crc32)


class CheckpointManifest(msgspec.Struct, frozen=True):
    """The contents of a checkpoint's `manifest.json`: step, samples, options, and size and checksum of each file."""

    schema: str
    step: int
    samples: int
    identity: dict[str, Any]
    files: dict[str, CheckpointFile]


class DamagedCheckpointError(Exception):
    """Raised for a checkpoint that is incomplete, changed or not written by hpccoll; the message gives the reason."""


class CheckpointDirectory:
    """The directory of the option --checkpoint, which one job at a time uses; `close` releases it.

    The constructor creates the directory. If another job uses the directory, the constructor waits up to `limit_s`
    seconds for the end of that job: after the loss of a node, a requeued job may start before all processes of its
    first run have ended. The constructor raises UsageError if the directory cannot be used.
    """

    def __init__(self, path: str | Path, limit_s: float = LOCK_LIMIT_S) -> None:
        self.path = Path(path)
        probe = self.path / f"probe{_UNFINISHED}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._make_write_error(error) from error
        self.close = weakref.finalize(self, os.close, self._lock)
        if not wait_for_lock(self._lock, limit_s):
            self.close()
            raise UsageError(
                f"--checkpoint {self.path}: another job uses this directory, even after {limit_s:g} s; end that job, "
                "or name another directory"
            )

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, delete unfinished ones and all but the KEPT newest, and return the new directory.

        Raises UsageError if the disk is full or the directory not writable; earlier checkpoints stay intact.
        """
        target = self.path / f"step-{checkpoint.step:08d}"
        unfinished = target.with_suffix(_UNFINISHED)
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            _write_checkpoint(unfinished, checkpoint)
            if target.exists():
                shutil.rmtree(target)  # a damaged checkpoint, which was skipped when this run was resumed
            unfinished.replace(target)
            _sync_directory(self.path)
        except OSError as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise self._make_write_error(error) from error
        for old in [*self._list_checkpoints()[KEPT:], *self.path.glob(f"step-*{_UNFINISHED}")]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def load_newest(self, identity: Mapping[str, Any]) -> tuple[Checkpoint | None, list[str]]:
        """Return the pair of the newest intact checkpoint and a list of warnings, one per damaged checkpoint.

        The checkpoint is None if the directory has none. Raises UsageError if all checkpoints are damaged, or the
        newest intact one was written with options that differ from `identity`.
        """
        damaged: list[str] = []
        for directory in self._list_checkpoints():
            try:
                manifest = _read_manifest(directory)
                _require_identity(directory, manifest.identity, identity)
                tensors = _read_tensors(directory)
            except DamagedCheckpointError as error:
                damaged.append(f"{directory} is damaged and was skipped ({error})")
                continue
            return Checkpoint(manifest.step, manifest.samples, manifest.identity, tensors), damaged
        if damaged:
            raise UsageError(
                f"--checkpoint {self.path} has no intact checkpoint: {'; '.join(damaged)}; restore a copy of a "
                "checkpoint, or name another directory to start from step 0"
            )
        return None, damaged

    def _list_checkpoints(self) -> list[Path]:
        """Return the directories of checkpoints, newest first."""
        named = [(int(match[1]), path) for path in self.path.iterdir() if (match := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(named, reverse=True)]

    def _make_write_error(self, error: OSError) -> UsageError:
        """Return (not raise) the UsageError that reports a failed write."""
        reason = error.strerror or str(error)
        return UsageError(f"--checkpoint {self.path}: cannot write there ({reason}); name a writable directory")


def _write_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Write the files of a checkpoint and then its manifest to a new directory, flushed to disk.

    Raises OSError if a file cannot be written.
    """
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        # Without a process group, torch warns that it saves in a single process, which is intended.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        try:
            dcp.save(dict(checkpoint.parameters), storage_writer=dcp.FileSystemWriter(directory), no_dist=True)
        except dcp.api.CheckpointException as error:
            raise OSError(_get_reason(error)) from error
    files = {path.name: CheckpointFile.measure(path) for path in sorted(directory.iterdir())}
    manifest = CheckpointManifest(SCHEMA, checkpoint.step, checkpoint.samples, dict(checkpoint.identity), files)
    with (directory / MANIFEST).open("wb") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(manifest)))
        stream.flush()
        os.fsync(stream.fileno())
    _sync_directory(directory)


def _read_manifest(directory: Path) -> CheckpointManifest:
    """Return the manifest of the checkpoint in `directory`, after verifying the size and checksum of every file.

    Raises DamagedCheckpointError if the manifest or a file is missing, or does not have the recorded contents.
    """
    try:
        manifest = msgspec.json.decode(read_limited(directory / MANIFEST, MOST_BYTES), type=CheckpointManifest)
        if manifest.schema != SCHEMA:
            raise DamagedCheckpointError(f"its schema is {manifest.schema}, not {SCHEMA}")
        present = {path.name for path in directory.iterdir()} - {MANIFEST}
        if unlisted := present - manifest.files.keys():  # torch unpickles files, so only those with a checksum are read
            raise DamagedCheckpointError(f"{MANIFEST} does not list {', '.join(sorted(unlisted))}")
        for name, expected in manifest.files.items():
            nbytes = (directory / name).stat().st_size
            if nbytes != expected.nbytes:
                raise DamagedCheckpointError(f"{name} has {nbytes} of {expected.nbytes} bytes")
            if CheckpointFile.measure(directory / name) != expected:
                raise DamagedCheckpointError(f"{name} has another checksum than when it was written")
    except OSError as error:
        raise DamagedCheckpointError(f"{Path(error.filename).name}: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"{MANIFEST}: {error}") from error
    return manifest


def _read_tensors(directory: Path) -> dict[str, Any]:
    """Return the tensors of the checkpoint in `directory` by name.

    Raises DamagedCheckpointError if the tensors cannot be read.
    """
    import torch
    import torch.distributed.checkpoint as dcp

    reader = dcp.FileSystemReader(directory)
    stored = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.empty(meta.size, dtype=meta.properties.dtype) for name, meta in stored.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        try:
            dcp.load(tensors, storage_reader=reader, no_dist=True)
        except dcp.api.CheckpointException as error:
            raise DamagedCheckpointError(_get_reason(error)) from error
    return tensors


def _get_reason(error: Any) -> str:
    """Return the first line of the first exception in torch's CheckpointException, as a reason for a message."""
    first = next(iter(error.failures.values()))[0]
    return str(first).partition("\n")[0]


def _sync_directory(path: Path) -> None:
    """Flush a directory to disk, so that a new name in it survives a crash."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _require_identity(file: Path, actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise UsageError, naming the options that differ, if a checkpoint was written with other options.

    `file` is the directory of the checkpoint, `actual` are its options, and `expected` those of this run.
    """
    differing = [name for name in expected if actual.get(name) != expected[name]]
    if differing:
        theirs = ", ".join(f"{name} {actual.get(name)}" for name in differing)
        ours = ", ".join(f"{name} {expected[name]}" for name in differing)
        raise UsageError(
            f"--checkpoint {file.parent}: {file.name} is from a run with {theirs}, but this run has {ours}; "
            "give the same options, or name another directory"
        )
