"""Reads the recorder files that the ranks of a job left in a directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from hpccoll.errors import RecordingError
from hpccoll.private_files import is_open_to_others
from hpccoll.recordings.layout import FILE_PREFIX
from hpccoll.recordings.recording import Recording, read_recording


@dataclass(frozen=True, slots=True)
class JobRecordings:
    """The recordings of one job, in the order of their ranks, and the reasons why other files are left out."""

    recordings: tuple[Recording, ...]
    problems: tuple[str, ...]

    @property
    def size(self) -> int:
        """The number of ranks of the job."""
        return self.recordings[0].size

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks of the job without a recording."""
        present = {recording.rank for recording in self.recordings}
        return tuple(rank for rank in range(self.size) if rank not in present)


def read_recordings(directory: str | os.PathLike[str], communicator: int | None = None) -> JobRecordings:
    """Return the recordings of the latest job in a directory, or of the job to which a communicator belongs.

    Recordings belong to one job if they share a communicator. Files that cannot be read are listed in `problems`. Only
    files of this user are read if `communicator` is given, or if every user can make files in the directory.

    Args:
        directory: the directory of the files.
        communicator: the id of a communicator of the job; None means the latest job.

    Raises:
        RecordingError: the directory cannot be read, or has no readable recorder file, or none of the job.
    """
    recordings, problems = _read_files(directory, only_own=communicator is not None)
    jobs = group_by_job(recordings)
    if communicator is not None:
        jobs = [job for job in jobs if any(communicator in recording.communicators for recording in job)]
        if not jobs:
            raise RecordingError(f"{directory} has no recorder file of this job; its files were removed or moved")
    latest = max(jobs, key=lambda job: max(recording.created_at for recording in job))
    by_rank = {recording.rank: recording for recording in sorted(latest, key=lambda each: each.created_at)}
    if len(jobs) > 1:
        others = len(recordings) - len(latest)
        problems.append(f"{others} recorder files of {len(jobs) - 1} other jobs in {directory} were ignored")
    return JobRecordings(tuple(by_rank[rank] for rank in sorted(by_rank)), tuple(problems))


def _read_files(directory: str | os.PathLike[str], *, only_own: bool) -> tuple[list[Recording], list[str]]:
    """Return a list of a directory's readable recordings, and a list of the reasons why other files cannot be read.

    Files that another user may have written are not read if `only_own` is true, or if every user may make files in
    the directory. Raises RecordingError if no file is readable.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(directory) if entry.name.startswith(FILE_PREFIX))
        own = only_own or is_open_to_others(directory)
    except OSError as error:
        raise RecordingError(
            f"{directory} cannot be read: {error.strerror}; pass the directory that HPCCOLL_RECORDER named, or /dev/shm"
        ) from error
    recordings: list[Recording] = []
    problems: list[str] = []
    for name in names:
        try:
            recordings.append(read_recording(os.path.join(directory, name), own=own))  # noqa: PTH118
        except RecordingError as error:
            problems.append(str(error))
    if not recordings:
        found = "; ".join(problems) or f"no file has a name that begins with {FILE_PREFIX}"
        raise RecordingError(f"{directory} has no readable recorder file: {found}; set HPCCOLL_RECORDER before a job")
    return recordings, problems


def group_by_job(recordings: Sequence[Recording]) -> list[list[Recording]]:
    """Return a list of recordings for each job; recordings that share a communicator belong to the same job."""
    jobs: list[tuple[set[int], list[Recording]]] = []
    for recording in recordings:
        ids, members = set(recording.communicators), [recording]
        others = []
        for job in jobs:
            if job[0] & ids:
                ids |= job[0]
                members = [*job[1], *members]
            else:
                others.append(job)
        jobs = [*others, (ids, members)]
    return [members for _, members in jobs]
