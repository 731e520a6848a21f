"""Reads the recordings of all ranks of a job as one profile.

Call sites and communicators, which each rank numbers in its own order, get numbers that hold for the whole job.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import UsageError
from hpccoll.private_files import read_limited
from hpccoll.profile import layout
from hpccoll.profile.replay_times import EngineTime, read_replays
from hpccoll.recordings.clock_model import ClockModel
from hpccoll.records import ProfileSite
from hpccoll.selection.tuning_table import TuningSite

_MOST_BYTES: Final = 2**30


@dataclass(frozen=True, slots=True)
class RecordedRank:
    """The recorded calls of one rank; times are seconds of the job's common clock.

    Args:
        rank: the rank in the job.
        host: the host name of the rank's node.
        entries: the calls, of the type `layout.ENTRY`; `site` and `comm` are indices of the profile's lists.
        begin_s, end_s: the begin and the end of each call, shape (calls,).
        program_begin_s, program_end_s: the begin and the end of the recording; the end of the last call if the program
            was killed.
        has_ended: whether the program ended; false if it was killed or still runs.
        folded: statistics of older calls, a row per line and operation: site, op, calls, nanoseconds, bytes.
    """

    rank: int
    host: str
    entries: NDArray[Any]
    begin_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    program_begin_s: float
    program_end_s: float
    has_ended: bool
    folded: tuple[tuple[int, int, int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class JobProfile:
    """The recorded calls of all ranks of a job.

    Args:
        ranks: the calls of each rank.
        sites: the lines of the program that communicate.
        comms: the ranks, in the world, of each communicator; an empty tuple if they are unknown.
        names, operations: the name of the method, such as `Allreduce`, and of the operation, such as `all_reduce`, for
            each value of the field `op` of entries.
        argv: the command line of the program.
        clock_error_s: the largest possible error, in seconds, of a time difference between two ranks.
        problems: sentences about data that the recording lacks.
        algorithms: the algorithms that the user has chosen for the drop-in, in the form of HPCCOLL_MPI4PY_ALGORITHMS;
            None if the job ran without the drop-in.
        tuning_site: the MPI library, host and layout of ranks for which a tuning table is valid; None if unknown.
        is_oversubscribed: whether a node has more ranks than cores.
        library: the library that carries out the collectives of all recorded communicators, such as `gloo`; empty if it
            was not recorded, or if there are several.
        replays: the run times of `hpccoll replay --save`, one per engine; empty if the job was not replayed.
        pickles: whether mpi4py pickles the objects of the method, for each value of the field `op` of entries; empty if
            the recording does not state it.
    """

    ranks: tuple[RecordedRank, ...]
    sites: tuple[ProfileSite, ...]
    comms: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    operations: tuple[str, ...]
    argv: tuple[str, ...]
    clock_error_s: float
    problems: tuple[str, ...] = ()
    algorithms: str | None = None
    tuning_site: TuningSite | None = None
    is_oversubscribed: bool = False
    library: str = ""
    replays: tuple[EngineTime, ...] = ()
    pickles: tuple[bool, ...] = ()

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @property
    def calls(self) -> int:
        """The number of recorded calls of all ranks, without older calls of which only statistics were kept."""
        return sum(len(rank.entries) for rank in self.ranks)

    @property
    def folded_calls(self) -> int:
        """The number of older calls of all ranks, of which only statistics were kept."""
        return sum(calls for rank in self.ranks for _, _, calls, _, _ in rank.folded)


def read_profile(directory: str) -> JobProfile:
    """Return the job that `hpccoll profile -o DIRECTORY` recorded, also while it runs and after it was killed.

    Raises:
        UsageError: the directory has no recording, or lacks the files of some ranks.
    """
    path = Path(directory)
    files = {int(file.stem.removeprefix("rank-")): file for file in path.glob(f"rank-*{layout.NAMES_SUFFIX}")}
    if not files:
        raise UsageError(
            f"{directory}: is no profile; make one by mpirun -n 4 hpccoll profile -o {directory} script.py"
        )
    tables = {rank: _RankTables.read(file) for rank, file in sorted(files.items())}
    first = next(iter(tables.values()))
    size = int(first.program["size"])
    missing = sorted(set(range(size)) - set(tables))
    if missing:
        raise UsageError(f"{directory}: lacks the files of ranks {missing[:8]} of {size}; copy them from their nodes")
    numbering = _Numbering()
    ranks = _cut_to_common_time([_make_rank(tables[rank], path, numbering) for rank in range(size)])
    problems = [f"rank {rank.rank} has not ended its program" for rank in ranks if not rank.has_ended]
    return JobProfile(
        ranks, tuple(numbering.sites), tuple(members for members, _ in numbering.comms), tuple(first.program["names"]),
        tuple(first.program["operations"]), tuple(first.program["argv"]),
        max(table.clock_error_s for table in tables.values()), tuple(problems),
        first.program.get("algorithms", ""), first.tuning_site, first.is_oversubscribed, _find_library(tables.values()),
        read_replays(path), tuple(first.program.get("pickles", ())),
    )  # fmt: skip


def _find_library(tables: Iterable[_RankTables]) -> str:
    """Return the library of the communicators of all ranks; empty if there are several libraries, or none is known."""
    found = {library for table in tables for library in table.libraries}
    return found.pop() if len(found) == 1 else ""


@dataclass(slots=True)
class _RankTables:
    """The contents of one rank's file of names: program, call sites, communicators, clock and statistics.

    Args:
        program: the fields of the line about the program.
        sites: the call sites by their numbers on this rank.
        comms: the ranks in the world of each communicator.
        libraries: the libraries that carry out the collectives of the communicators; "" for unknown ones.
        clock: the model that converts times of this rank's clock to times of rank 0's clock.
        clock_error_s: the largest possible error of the converted times in seconds.
        constants: the MPI library's numbers for any source, any tag and no rank.
        folded: statistics of older calls, a row per line and operation.
        tuning_site: the circumstances for which a tuning table is valid; None if they were not recorded.
        is_oversubscribed: whether a node has more ranks than cores.
    """

    program: dict[str, Any]
    sites: dict[int, ProfileSite] = field(default_factory=dict)
    comms: list[tuple[int, ...]] = field(default_factory=list)
    libraries: set[str] = field(default_factory=set)
    clock: ClockModel = field(default_factory=ClockModel)
    clock_error_s: float = 0.0
    constants: tuple[int, int, int] = (layout.NOT_GIVEN, layout.NOT_GIVEN, layout.NOBODY)
    folded: list[list[int]] = field(default_factory=list)
    tuning_site: TuningSite | None = None
    is_oversubscribed: bool = False

    @classmethod
    def read(cls, path: Path) -> _RankTables:
        """Return the contents of the file `path`, without a last line that is cut off."""
        tables = None
        for number, line in enumerate(read_limited(path, _MOST_BYTES).split(b"\n")):
            try:
                fields = json.loads(line) if line else {}
                if number == 0:
                    tables = cls(fields)
                    int(fields["size"])
                elif tables is not None and fields:
                    tables.add(fields)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                if number == 0:
                    raise UsageError(f"{path}: is no file of a profile; record the job again") from error
                break
        if tables is None:
            raise UsageError(f"{path}: is empty; record the job again")
        return tables

    def add(self, fields: dict[str, Any]) -> None:
        """Add the contents of one line of the file, a JSON object with the fields `fields`."""
        match fields["kind"]:
            case "site":
                self.sites[fields["id"]] = ProfileSite(fields["file"], fields["line"], fields["function"])
            case "comm":
                self.comms.append(tuple(fields["members"]))
                self.libraries.add(fields.get("library", ""))
            case "clock":
                self.clock, self.clock_error_s = ClockModel(*fields["model"]), fields["error_s"]
            case "constants":
                self.constants = fields["any_source"], fields["any_tag"], fields["no_rank"]
            case "tuning_site":
                self.tuning_site = TuningSite(fields["mpi"], fields["host"], fields["layout"])
                self.is_oversubscribed = bool(fields["oversubscribed"])
            case "folded":
                self.folded += fields["sites"]


@dataclass(slots=True)
class _Numbering:
    """Assigns numbers to the call sites and communicators of all ranks of a job.

    The k-th communicator of a group of ranks is the same on all these ranks, because its creation is collective.

    Args:
        sites: the number of each call site so far.
        comms: the number of each communicator so far. The keys have the communicator's ranks in the world, and how many
            communicators of the same ranks were made before.
    """

    sites: dict[ProfileSite, int] = field(default_factory=dict)
    comms: dict[tuple[tuple[int, ...], int], int] = field(default_factory=dict)

    def number_sites(self, sites: list[ProfileSite]) -> NDArray[np.int32]:
        """Return the job's numbers for the call sites of one rank; new call sites get the next numbers."""
        return np.array([self.sites.setdefault(site, len(self.sites)) for site in sites], np.int32)

    def number_comms(self, comms: list[tuple[int, ...]]) -> NDArray[np.int32]:
        """Return the job's numbers for the communicators of one rank, given by their ranks in the world."""
        counts: dict[tuple[int, ...], int] = defaultdict(int)
        numbers = []
        for members in comms:
            numbers.append(self.comms.setdefault((members, counts[members]), len(self.comms)))
            counts[members] += 1
        return np.array(numbers, np.int32)


def _make_rank(tables: _RankTables, path: Path, numbering: _Numbering) -> RecordedRank:
    """Return the calls of one rank, in the order in which they began.

    Args:
        tables: the contents of the rank's file of names.
        path: the directory of the recording.
        numbering: the job's numbers of call sites and communicators; the function adds those of this rank.
    """
    rank = int(tables.program["rank"])
    header, entries = _read_calls(find_calls(path, tables.program))
    sites = numbering.number_sites([site for _, site in sorted(tables.sites.items())])
    comms = numbering.number_comms(tables.comms)
    # A running job may have written new calls after its file of names was read.
    entries = entries[(entries["site"] < len(sites)) & (entries["comm"] < len(comms))]
    entries["site"] = sites[entries["site"]]
    entries["comm"] = np.append(comms, -1)[entries["comm"]]  # -1 stands for no communicator
    _replace_constants(entries, tables)
    begin_s, end_s = (_convert(tables.clock, _skip_gaps(tables, entries[name])) for name in ("begin_ns", "end_ns"))
    program = _convert(tables.clock, _skip_gaps(tables, np.array([header[5], header[6]])))
    last = float(program[1]) if header[6] else float(end_s.max(initial=program[0]))
    folded = tuple((int(sites[row[0]]), row[1], row[2], row[3], row[4]) for row in tables.folded)
    return RecordedRank(
        rank, str(tables.program["host"]), entries, begin_s, end_s, float(program[0]), last, bool(header[6]), folded
    )


def _skip_gaps(tables: _RankTables, times_ns: NDArray[Any]) -> NDArray[Any]:
    """Return `times_ns` in nanoseconds of a clock that stops while nothing is recorded.

    Nothing is recorded before the time of `--from`, and in the seconds that `--every` leaves out.
    """
    program = tables.program
    from_ns, every = int(program["begin_ns"] + program["from_s"] * 1e9), int(program["every"])
    since_ns = np.maximum(times_ns - from_ns, 0) if program["from_s"] else times_ns - from_ns
    period, rest_ns = np.divmod(since_ns, layout.PERIOD_NS)
    if every == 1:
        return since_ns + from_ns
    recorded_ns = np.where(period % every == 0, rest_ns, layout.PERIOD_NS)
    return period // every * layout.PERIOD_NS + recorded_ns + from_ns


def _cut_to_common_time(ranks: list[RecordedRank]) -> tuple[RecordedRank, ...]:
    """Return the ranks with only the calls from the period for which all ranks have kept their calls.

    A rank keeps its latest calls, and only statistics of older calls. The first kept calls of different ranks begin at
    different times, of which the latest becomes the begin of the job.
    """
    kept = [rank.begin_s[0] for rank in ranks if rank.folded and len(rank.begin_s)]
    if not kept:
        return tuple(ranks)
    begin_s = float(max(kept))
    cut = []
    for rank in ranks:
        later = rank.begin_s >= begin_s
        entries, begins_s, ends_s = rank.entries[later], rank.begin_s[later], rank.end_s[later]
        cut.append(replace(rank, program_begin_s=begin_s, entries=entries, begin_s=begins_s, end_s=ends_s))
    return tuple(cut)


def _replace_constants(entries: NDArray[Any], tables: _RankTables) -> None:
    """Replace the MPI library's numbers for any source, any tag and no rank by ANY and NOBODY in a rank's `entries`."""
    any_source, any_tag, no_rank = tables.constants
    exchanges = np.array([name == "sendrecv" for name in tables.program["operations"]])[entries["op"]]
    for peers in (entries["peer"], entries["request"]):
        chosen = slice(None) if peers.dtype == np.int32 else exchanges
        values = peers[chosen]
        missing = (values == any_source) | (values == layout.NOT_GIVEN)
        peers[chosen] = np.where(missing, layout.ANY, np.where(values == no_rank, layout.NOBODY, values))
    tags = entries["tag"]
    tags[(tags == any_tag) | (tags == layout.NOT_GIVEN)] = layout.ANY


def _convert(clock: ClockModel, times_ns: NDArray[Any]) -> NDArray[np.float64]:
    """Return times of the job's common clock in seconds, for times of this rank's clock in nanoseconds."""
    local = times_ns * 1e-9
    return np.asarray(local + clock.offset_s + clock.drift * (local - clock.reference_s), np.float64)


def find_calls(directory: Path, program: dict[str, Any]) -> Path:
    """Return the path of the file with the calls of a rank: in `directory` or, before its program ends, in /dev/shm.

    `program` has the fields of the rank's line about its program.
    """
    file = directory / f"rank-{program['rank']}{layout.CALLS_SUFFIX}"
    return file if file.exists() or not program["calls"] else Path(program["calls"])


def _read_calls(file: Path) -> tuple[tuple[int, ...], NDArray[Any]]:
    """Return the header and the entries of a file of calls, without entries that were folded into statistics."""
    try:
        data = read_limited(file, _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror}); copy it from the node of this rank") from error
    if len(data) < layout.HEADER.size or layout.HEADER.unpack_from(data)[:2] != (layout.MAGIC, layout.LAYOUT_VERSION):
        raise UsageError(f"{file}: is no recording of this version of hpccoll; record the job again")
    header = layout.HEADER.unpack_from(data)
    capacity, written, folded = header[2:5]
    nbytes = layout.HEADER.size + min(written, capacity) * layout.ENTRY.itemsize
    if capacity < 1 or not 0 <= folded <= written <= folded + capacity or len(data) < nbytes:
        raise UsageError(f"{file}: is damaged or cut off; copy it again, or record the job again")
    stored = np.frombuffer(data, layout.ENTRY, offset=layout.HEADER.size, count=min(written, capacity))
    entries = stored[np.arange(folded, written) % capacity]
    return header, entries[np.argsort(entries["begin_ns"], kind="stable")]
