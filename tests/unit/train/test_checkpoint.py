"""Checkpoints: restored exactly, written atomically, and refused with a reason if they are damaged or foreign."""

from __future__ import annotations

import json
import resource
import shutil
from dataclasses import replace

import numpy as np
import pytest

from hpccoll.errors import UsageError
from hpccoll.train.checkpoint import MANIFEST, Checkpoint, CheckpointDirectory
from hpccoll.train.options import MlpConfig, TrainOptions

torch = pytest.importorskip("torch")

IDENTITY = TrainOptions(MlpConfig(), 1).get_checkpoint_identity()


def make_checkpoint(step, identity=IDENTITY):
    """Return a checkpoint with random values."""
    rng = np.random.default_rng(step)
    numbers = {"layers.0.weight": rng.random((3, 5)), "exp_avg/layers.0.bias": rng.random(3)}
    return Checkpoint(step, 64 * step, identity, {name: torch.from_numpy(x) for name, x in numbers.items()})


def list_names(path):
    """Return the names of the files in a directory, without the lock."""
    return sorted(each.name for each in path.iterdir() if each.name != ".lock")


def test_a_checkpoint_is_restored_exactly_and_two_are_kept(tmp_path):
    folder = CheckpointDirectory(tmp_path / "new" / "state")
    for step in (1, 2, 3):
        assert folder.save(make_checkpoint(step)).name == f"step-0000000{step}"
    assert list_names(folder.path) == ["step-00000002", "step-00000003"]
    found, damaged = folder.load_newest(IDENTITY)
    assert (found.step, found.samples, damaged) == (3, 192, [])
    assert found.parameters.keys() == make_checkpoint(3).parameters.keys()
    for name, numbers in make_checkpoint(3).parameters.items():
        assert torch.equal(found.parameters[name], numbers)


def test_an_empty_directory_has_no_checkpoint(tmp_path):
    assert CheckpointDirectory(tmp_path).load_newest(IDENTITY) == (None, [])


def test_an_unfinished_checkpoint_is_ignored_and_removed(tmp_path):
    folder = CheckpointDirectory(tmp_path)
    shutil.copytree(folder.save(make_checkpoint(1)), tmp_path / "step-00000002.unfinished")
    assert folder.load_newest(IDENTITY)[0].step == 1
    folder.save(make_checkpoint(3))
    assert list_names(tmp_path) == ["step-00000001", "step-00000003"]


def truncate_file(path):
    """Remove the last 100 bytes of a file."""
    path.write_bytes(path.read_bytes()[:-100])


def change_a_bit(path):
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def write_other_schema(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": "other/1"}))


DAMAGES = [
    ("__0_0.distcp", truncate_file, "__0_0.distcp has "),
    ("__0_0.distcp", change_a_bit, "__0_0.distcp has another checksum"),
    (".metadata", lambda path: path.unlink(), ".metadata: No such file"),
    (MANIFEST, lambda path: path.unlink(), "manifest.json: No such file"),
    (MANIFEST, truncate_file, "manifest.json: Input data was truncated"),
    (MANIFEST, lambda path: path.write_text("{}"), "manifest.json: Object missing required field"),
    (MANIFEST, write_other_schema, "its schema is other/1, not hpccoll-checkpoint/2"),
]


@pytest.mark.parametrize(("file", "damage", "reason"), DAMAGES)
def test_a_damaged_checkpoint_is_skipped_for_an_older_one(tmp_path, file, damage, reason):
    folder = CheckpointDirectory(tmp_path)
    folder.save(make_checkpoint(1))
    newest = folder.save(make_checkpoint(2))
    damage(newest / file)
    found, (warning,) = folder.load_newest(IDENTITY)
    assert found.step == 1
    assert warning.startswith(f"{newest} is damaged and was skipped ({reason}")
    shutil.rmtree(tmp_path / "step-00000001")
    with pytest.raises(UsageError, match=r"no intact checkpoint: .*; restore a copy .*, or name another directory"):
        folder.load_newest(IDENTITY)
    assert folder.save(make_checkpoint(2)) == newest  # replaces the damaged one
    assert folder.load_newest(IDENTITY)[0].step == 2


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (TrainOptions(MlpConfig(width=32), 1), "a run with width 64, but this run has width 32"),
        (
            TrainOptions(MlpConfig(layers=2), 1, dtype="float64"),
            "layers 4, dtype float32, but this run has layers 2, dtype float64",
        ),
        (TrainOptions(MlpConfig(), 1, seed=7), "seed 0, but this run has seed 7"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_with_both_sizes(tmp_path, other, told):
    CheckpointDirectory(tmp_path).save(make_checkpoint(5))
    with pytest.raises(UsageError) as caught:
        CheckpointDirectory(tmp_path).load_newest(other.get_checkpoint_identity())
    assert f"--checkpoint {tmp_path}: step-00000005 is from a run with" in str(caught.value)
    assert told in str(caught.value)


def test_a_directory_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", "/proc/state"):
        with pytest.raises(UsageError, match=r"--checkpoint .*: cannot write there \(.*\); name a writable directory"):
            CheckpointDirectory(path)


def test_a_full_disk_keeps_earlier_checkpoints(tmp_path):
    folder = CheckpointDirectory(tmp_path)
    folder.save(make_checkpoint(1))
    large = replace(make_checkpoint(2), parameters={"layers.0.weight": torch.zeros(100_000)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(UsageError, match=r"cannot write there \(.+\); name a writable directory"):
            folder.save(large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list_names(tmp_path) == ["step-00000001"]
    assert folder.load_newest(IDENTITY)[0].step == 1


def test_a_directory_is_used_by_one_job_at_a_time(tmp_path):
    folder = CheckpointDirectory(tmp_path)
    with pytest.raises(UsageError, match="another job uses this directory"):
        CheckpointDirectory(tmp_path, 0.05)
    folder.close()
    CheckpointDirectory(tmp_path, 0.0).save(make_checkpoint(1))
