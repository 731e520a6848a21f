"""Reads the traces of liballprof, one file per rank, as a profile.

allprof_trace.py reads the lines of a file, allprof_comms.py finds the communicators, and allprof_requests.py the
requests. Source: src/liballprof of spcl/LogGOPSim.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Final

from hpccoll.errors import UsageError
from hpccoll.profile.allprof_comms import CREATIONS, RankComms, list_members, name_comms
from hpccoll.profile.allprof_requests import match_requests
from hpccoll.profile.allprof_trace import AllprofCall, AllprofTrace, read_trace
from hpccoll.profile.foreign_profile import RankCalls, make_foreign_profile
from hpccoll.profile.layout import ANY, ITEMSIZE_SHIFT, NOBODY
from hpccoll.profile.load import JobProfile

_ROUNDING_S: Final = 1e-6  # times are whole microseconds
_FILE_NAME: Final = re.compile(r"(.*?)(\d+)(\D*)")
_COLLECTIVES: Final = {
    "allreduce": "all_reduce", "bcast": "broadcast", "reduce": "reduce", "scan": "scan", "exscan": "exscan",
    "reduce_scatter": "reduce_scatter", "reduce_scatter_block": "reduce_scatter", "barrier": "barrier",
    **dict.fromkeys(("allgather", "allgatherv"), "all_gather"), **dict.fromkeys(("gather", "gatherv"), "gather"),
    **dict.fromkeys(("scatter", "scatterv"), "scatter"),
    **dict.fromkeys(("alltoall", "alltoallv", "alltoallw"), "all_to_all"),
}  # fmt: skip
_OUTSIDE: Final = frozenset({"Init", "Init_thread", "Finalize"})
_IN_PLACE: Final = frozenset({str(2**64 - 1), "1"})  # the addresses MPI_IN_PLACE of MPICH and of Open MPI
_MOST_NAMES: Final = 5


def read_allprof(path: Path) -> JobProfile:
    """Return the job of the traces NAME0.txt, NAME1.txt, ... of liballprof as a profile; `path` is one of them.

    Cost: about 50 us per line.

    Raises:
        UsageError: files are missing, cut off, or no traces of liballprof.
    """
    traces = [read_trace(file) for file in _find_files(path)]
    named = [name_comms(trace, rank, len(traces)) for rank, trace in enumerate(traces)]
    for trace, (_, comms) in zip(traces, named, strict=True):
        _require_world(trace, comms)
    used = {
        name
        for trace, (names, _) in zip(traces, named, strict=True)
        for call, name in zip(trace.calls, names, strict=True)
        if find_operation(call)
    }
    members = list_members([comms for _, comms in named], used)
    zero_s = min(trace.start_s for trace in traces)
    readers = [_CallReader(trace, names, members, zero_s) for trace, (names, _) in zip(traces, named, strict=True)]
    for reader in readers:
        reader.read()
    ends_s = [trace.calls[-1].begin_s - zero_s for trace in traces]
    notes = _list_notes(readers, sum(comms.guesses for _, comms in named))
    hosts = [trace.host or "unknown host" for trace in traces]
    calls = [reader.calls for reader in readers]
    error_s = _ROUNDING_S + 2 * max(trace.clock_drift_s for trace in traces)
    return make_foreign_profile(path, calls, ends_s, tuple(members.values()), notes, hosts, error_s)


def _find_files(path: Path) -> list[Path]:
    """Return the traces of all ranks in the order of the ranks, whose names differ from that of `path` in the rank."""
    match = _FILE_NAME.fullmatch(path.name)
    if match is None:
        raise UsageError(f"{path}: has no rank in its name; name the traces of liballprof NAME0.txt, NAME1.txt, ...")
    candidates = path.parent.glob(f"{escape(match[1])}*{escape(match[3])}")
    matches = [(file, _FILE_NAME.fullmatch(file.name)) for file in candidates]
    files = {int(own[2]): file for file, own in matches if own and (own[1], own[3]) == (match[1], match[3])}
    missing = sorted(set(range(max(files) + 1)) - set(files))
    if missing:
        raise UsageError(f"{path}: the trace of rank {missing[0]} is missing; copy the traces of all ranks there")
    return [files[rank] for rank in range(len(files))]


def _require_world(trace: AllprofTrace, comms: RankComms) -> None:
    """Raise UsageError if the communicators of a rank are not those of a job with as many ranks as traces."""
    most = max((size for _, size in comms.places.values()), default=0)
    if most > comms.size or (most and "world" not in comms.places):
        reason = f"has no communicator in which it is rank {comms.rank} of {comms.size}"
        raise UsageError(
            f"{trace.calls[0].where}: {reason}, but one with {most} ranks; copy the traces of all ranks of one job "
            "without changing their numbers"
        )


@dataclass(slots=True)
class _CallReader:
    """Turns the calls of a rank's trace into calls of a profile.

    Args:
        trace: the trace of the rank.
        comm_names: for each call, the name of its communicator; empty for none.
        members: the ranks in the world of each communicator, by name.
        zero_s: the time at which the job begins.
        calls: the calls of the profile.
        requests: the number of each request, by the index of the call that started it and its address.
        made: the operation and the fields of the latest request that was made at each address.
        left_out: the seconds of each call that the profile lacks, by the name of the function.
        unknown: the calls on communicators whose ranks are unknown.
        copies: the number of calls with copies of requests.
    """

    trace: AllprofTrace
    comm_names: list[str]
    members: dict[str, tuple[int, ...]]
    zero_s: float
    calls: RankCalls = field(default_factory=RankCalls)
    requests: dict[tuple[int, int], int] = field(default_factory=dict)
    made: dict[int, tuple[str, dict[str, int]]] = field(default_factory=dict)
    left_out: dict[str, list[float]] = field(default_factory=dict)
    unknown: list[AllprofCall] = field(default_factory=list)
    copies: int = 0

    def read(self) -> None:
        """Add all calls of the trace to `calls`."""
        matches, comms = match_requests(self.trace), list(self.members)
        self.copies = matches.copies
        for index, call in enumerate(self.trace.calls):
            operation, comm = find_operation(call), self.comm_names[index]
            times = call.begin_s - self.zero_s, call.end_s - self.zero_s
            if operation and comm not in self.members:
                self.unknown.append(call)
                self.made.pop(call.get_int("q"), None)  # the request at this address is that of no known call
            elif operation:
                ranks, is_of_mpich = len(self.members[comm]), self.trace.is_of_mpich
                fields = describe_call(call, operation, ranks, is_of_mpich=is_of_mpich) | {"comm": comms.index(comm)}
                if "q" not in call.arguments:
                    self.calls.add(operation, *times, **fields)
                else:
                    self.made[call.get_int("q")] = operation, fields
            elif "q" not in call.arguments and call.name not in _OUTSIDE:
                self.left_out.setdefault(call.name, []).append(call.end_s - call.begin_s)
            for address in matches.started[index]:
                if address in self.made:
                    operation, fields = self.made[address]
                    self.requests[index, address] = self.calls.start(operation, *times, **fields)
            own = [self.requests[key] for key in matches.completed[index] if key in self.requests]
            for request in own:
                self.calls.complete(request, *times, is_more=request != own[0])
            if call.is_wait and not own:
                self.calls.add("wait", *times, comm=-1)


def find_operation(call: AllprofCall) -> str:
    """Return the operation of a call by hpccoll's name; empty for calls that wait, test or do not communicate."""
    name = call.name.lower().removesuffix("_init")
    if "q" in call.arguments and name.startswith("i"):
        name = name[1:]
    if call.name in CREATIONS:
        return "new_group"
    if not call.arguments:
        return ""
    if name in _COLLECTIVES:
        return _COLLECTIVES[name]
    if name.startswith("sendrecv"):
        return "sendrecv"
    return "send" if name.endswith("send") else "recv" if name == "recv" else ""


def describe_call(call: AllprofCall, operation: str, ranks: int, *, is_of_mpich: bool) -> dict[str, int]:
    """Return the bytes, peers, tag and element size of a call as fields of `layout.ENTRY`.

    Args:
        call: the call.
        operation: its operation by hpccoll's name.
        ranks: the number of ranks of its communicator.
        is_of_mpich: whether the trace has the constants of MPICH.
    """
    constants = {-1: NOBODY, -2: ANY} if is_of_mpich else {-1: ANY, -2: NOBODY}
    fields = {"nbytes": _count_bytes(call, operation, ranks)}
    if "t" in call.arguments:
        size = call.get_size("t")
        is_power = 0 < size <= 64 and size & (size - 1) == 0
        fields["flags"] = size.bit_length() << ITEMSIZE_SHIFT if is_power else 0
    for letter, name in (("r", "peer"), ("s", "peer"), ("d", "peer"), ("g", "tag")):
        if letter in call.arguments:
            value = call.get_int(letter)
            fields[name] = constants.get(value, value) if letter in "sd" else value
    if operation == "sendrecv":
        source = call.get_int("s")
        fields["request"] = constants.get(source, source)
    return fields


def _count_bytes(call: AllprofCall, operation: str, ranks: int) -> int:
    """Return the bytes of the rank's send buffer, or receive buffer if it has no other; -1 if they are unknown."""
    own = call.get_own_rank()
    if operation in {"barrier", "new_group"}:
        return 0
    if "t" not in call.arguments:
        return -1
    is_receive = operation == "scatter" and own != call.get_int("r")
    if is_receive or ("T" in call.arguments and call.arguments["b"] in _IN_PLACE):
        blocks = ranks if operation == "all_to_all" else 1
        counts = call.list_counts("V") if "V" in call.arguments else [call.get_int("N")] * blocks
        if operation in {"all_gather", "gather"} and "V" in call.arguments:
            counts = counts[own : own + 1]
        return call.get_size("T") * sum(counts)
    if "v" in call.arguments:
        return call.get_size("t") * sum(call.list_counts("v"))
    blocks = ranks if operation in {"all_to_all", "scatter", "reduce_scatter"} else 1
    return call.get_size("t") * call.get_int("n") * blocks


def _list_notes(readers: Sequence[_CallReader], guesses: int) -> list[str]:
    """Return sentences about calls that the profile lacks, or that the trace does not determine.

    `guesses` is how many handles may belong to several communicators.
    """
    left_out: dict[str, list[float]] = {}
    for reader in readers:
        for name, seconds in reader.left_out.items():
            left_out.setdefault(name, []).extend(seconds)
    costly = sorted(left_out, key=lambda name: -sum(left_out[name]))
    notes = []
    if costly:
        count, total_s = sum(map(len, left_out.values())), sum(map(sum, left_out.values()))
        names = ", ".join(f"{len(left_out[name])} MPI_{name}" for name in costly[:_MOST_NAMES])
        more = ", ..." * (len(costly) > _MOST_NAMES)
        notes.append(f"{count} calls of other functions ({total_s:.3g} s) count as computing: {names}{more}")
    unknown = [call for reader in readers for call in reader.unknown]
    if unknown:
        reason = "on communicators whose ranks the traces do not state"
        notes.append(f"{len(unknown)} calls {reason} are left out, such as MPI_{unknown[0].name} at {unknown[0].where}")
    if guesses:
        notes.append(
            f"{guesses} handles of communicators are assigned in the order in which communicators were created"
        )
    copies = sum(reader.copies for reader in readers)
    if copies:
        notes.append(f"{copies} calls have copies of requests; each copy is taken for the oldest request that fits")
    return notes
