"""Recordings in the format that the analyser of PyTorch's flight recorder reads (`torchfrtrace`), a file per rank.

The analyser knows only the operations of torch.distributed. In the files, scans are called `_reduce_oop`, collectives
of Python objects are collectives of arrays without elements, and other calls of all ranks, such as `prepare`, are
called `barrier`. The analyser compares process groups as a whole, so the messages from one rank to another with one
tag form a process group.

The files leave out waits, calls of communicators whose members are unknown, and calls whose counterparts on other ranks
were overwritten. The files also leave out the messages to and from a rank with overwritten entries, and all messages on
a communicator to and from a rank that receives from any source there.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from hpccoll.recordings.layout import CallKind
from hpccoll.recordings.recording import RecordedCall, Recording

_VERSION: Final = "2.10"  # of the format, not of torch
_PREFIX: Final = "rank_"  # the analyser reads the rank at the end of the file's name
_BACKEND: Final = "gloo"  # the analyser accepts only names of backends of torch
_OPERATIONS: Final = {
    "scan": "_reduce_oop",
    "exscan": "_reduce_oop",
    "broadcast_object": "broadcast",
    "all_gather_object": "all_gather",
    "gather_object": "gather",
    "scatter_object": "scatter",
    **{name: name for name in ("all_reduce", "reduce", "broadcast", "gather", "scatter", "barrier", "split")},
    **{name: name for name in ("all_gather", "reduce_scatter", "all_to_all")},
}
_UNEVEN: Final = {"all_gather": "all_gather_v", "reduce_scatter": "reduce_scatter_v", "all_to_all": "all_to_all_single"}
_BLOCKS_SENT: Final = ("reduce_scatter", "scatter", "all_to_all")
_BLOCKS_RECEIVED: Final = ("all_gather", "gather", "all_to_all")
_DTYPES: Final = {
    "float16": "Half", "bfloat16": "BFloat16", "float32": "Float", "float64": "Double", "int8": "Char",
    "int16": "Short", "int32": "Int", "int64": "Long", "uint8": "Byte", "bool": "Bool",
}  # fmt: skip
_STATES: Final = {"ended": "completed", "scheduled": "scheduled"}  # all others: started


def write_torch_traces(recordings: Sequence[Recording], directory: Path) -> None:
    """Write the recordings of a job as one file per rank in `directory`, which is made if it does not exist."""
    directory.mkdir(parents=True, exist_ok=True)
    job = JobContext.find(recordings)
    for recording in recordings:
        (directory / f"{_PREFIX}{recording.rank}").write_bytes(pickle.dumps(make_torch_trace(recording, job)))


@dataclass(frozen=True, slots=True)
class JobContext:
    """Facts about the recordings of all ranks that are needed to translate the recording of one rank.

    Attributes:
        members: for each communicator id, the communicator's ranks as ranks of MPI.COMM_WORLD; absent if they are
            unknown.
        names: for each communicator id, the communicator's name; the id if it has no name, and name and id if several
            communicators have the same name.
        first: for each communicator id, the lowest number of a collective whose entry and all later ones are in the
            recordings of all ranks; absent if no entry was overwritten.
        uncertain: pairs of a communicator id and a rank of this communicator. Some messages of a rank in `uncertain`
            cannot be matched with messages of other ranks: entries were overwritten, or a receive took a message from
            any source.
    """

    members: Mapping[int, tuple[int, ...]]
    names: Mapping[int, str]
    first: Mapping[int, int]
    uncertain: AbstractSet[tuple[int, int]]

    @classmethod
    def find(cls, recordings: Sequence[Recording]) -> JobContext:
        """Return the `JobContext` of a job, made from the recordings of all its ranks."""
        members: dict[int, tuple[int, ...]] = {}
        names: dict[int, str] = {}
        first: dict[int, int] = {}
        uncertain: set[tuple[int, int]] = set()
        for recording in recordings:
            receives = [call for call in recording.calls if call.kind is CallKind.RECEIVE]
            wild = {call.communicator for call in receives if call.peer is None}
            for own in recording.communicators.values():
                names[own.id] = own.name or str(own.id)
                if own.members is not None:
                    members[own.id] = own.members
                if recording.lost or own.id in wild:
                    uncertain.add((own.id, own.rank))
            seen: dict[int, int] = {}
            for call in recording.calls if recording.lost else ():
                if call.kind is CallKind.COLLECTIVE:
                    seen.setdefault(call.communicator, call.number)
            for communicator, number in seen.items():
                first[communicator] = max(first.get(communicator, 0), number)
        uses = Counter(names.values())
        unique = {key: name if uses[name] == 1 else f"{name} ({key})" for key, name in names.items()}
        return cls(members, unique, first, uncertain)


def make_torch_trace(recording: Recording, job: JobContext) -> dict[str, Any]:
    """Return the contents of one rank's file as a dict: its calls in the format of torch's analyser."""
    groups: dict[str, Any] = {}
    entries = []
    for call, name, ranks, number, translated in (*_collectives(recording, job), *_messages(recording, job)):
        description = "messages" if call.kind is not CallKind.COLLECTIVE else f"communicator of {len(ranks)} ranks"
        groups[name] = {"name": name, "desc": description, "ranks": str(list(ranks))}
        entries.append(_make_entry(recording, call, (name, description), number, *translated))
    entries.sort(key=lambda entry: entry["time_created_ns"])
    numbered = [{"record_id": number, **entry} for number, entry in enumerate(entries)]
    return {"version": _VERSION, "pg_config": groups, "entries": numbered}


# Call, name of its process group, ranks of the group, number of the call in the group, and the result of `_translate`.
_Translated: TypeAlias = tuple[RecordedCall, str, Sequence[int], int, tuple[str, int, int]]


def _collectives(recording: Recording, job: JobContext) -> Iterator[_Translated]:
    """Yield the collectives of a recording that every rank's recording still has, as `_Translated` tuples."""
    for call in recording.calls:
        ranks = job.members.get(call.communicator)
        is_complete = call.number >= job.first.get(call.communicator, 0)
        if call.kind is CallKind.COLLECTIVE and ranks is not None and is_complete:
            yield call, job.names[call.communicator], ranks, call.number, _translate(call, len(ranks))


def _messages(recording: Recording, job: JobContext) -> Iterator[_Translated]:
    """Yield the sends and receives of a recording that can be matched with other ranks', as `_Translated` tuples."""
    counts: Counter[str] = Counter()
    for call in recording.calls:
        own, ranks = recording.communicators.get(call.communicator), job.members.get(call.communicator)
        if call.peer is None or own is None or ranks is None or call.peer == own.rank:
            continue
        if {(own.id, own.rank), (own.id, call.peer)} & job.uncertain:
            continue
        source, dest = (own.rank, call.peer) if call.kind is CallKind.SEND else (call.peer, own.rank)
        name = f"{job.names[own.id]}:{source}->{dest}:{call.tag}"
        counts[name] += 1
        pair = sorted((ranks[source], ranks[dest]))
        first, second = pair.index(ranks[source]), pair.index(ranks[dest])
        operation = f"send {first}->{second}" if call.kind is CallKind.SEND else f"recv {second}<-{first}"
        yield call, name, pair, counts[name], (operation, call.count, call.count)


def _translate(call: RecordedCall, ranks: int) -> tuple[str, int, int]:
    """Return three values: the analyser's name of a collective, and the elements of a rank's input and output."""
    name = _OPERATIONS.get(call.operation, "barrier")
    sent = call.count * (ranks if name in _BLOCKS_SENT and not call.uneven else 1)
    received = call.count * (ranks if name in _BLOCKS_RECEIVED and not call.uneven else 1)
    return _UNEVEN.get(name, name) if call.uneven else name, sent, received


def _make_entry(
    recording: Recording, call: RecordedCall, group: tuple[str, str], number: int, name: str, sent: int, received: int
) -> dict[str, Any]:
    """Return a call as a dict, an entry of the file that torch's analyser reads, without the field `record_id`."""
    is_message, dtype = call.kind is not CallKind.COLLECTIVE, _DTYPES.get(call.dtype, call.dtype)
    begun, started, ended = (
        None if time is None else round(recording.to_global(time) * 1e9)
        for time in (call.begun_ns, call.started_ns if call.asynchronous else call.begun_ns, call.ended_ns)
    )
    return {
        "process_group": group,
        "pg_id": 0,
        "collective_seq_id": number,
        "p2p_seq_id": number if is_message else 0,
        "op_id": number,
        "profiling_name": f"{_BACKEND}:{name}",
        "is_p2p": is_message,
        "input_sizes": [[sent]],
        "output_sizes": [[received]],
        "input_dtypes": [dtype],
        "output_dtypes": [dtype],
        "state": _STATES.get(call.state, "started"),
        "time_created_ns": begun,
        "time_discovered_started_ns": started,
        "time_discovered_completed_ns": ended,
        "retired": call.ended_ns is not None,
        "timeout_ms": 0,
        "frames": [],
    }
