"""Reads Chakra execution traces, one file per rank, as a profile.

In traces with start times, the time between two communication nodes of a rank counts as computing. Traces without start
times, such as those for ASTRA-sim, are simulated (task_graph.py). A rank belongs to a process group if its trace has
collectives with the `pg_name` of this group. Source: et_def.proto of mlcommons/chakra, schema version 1.1.

This module decodes protobuf without the package `protobuf`. A decoder for the three forms of values in traces (whole
numbers, strings, packed lists) takes 70 lines. The package `protobuf` would be a compiled dependency of hpccoll, and
the classes that protoc generates from et_def.proto only work with some versions of this package.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Final

from hpccoll.errors import UsageError
from hpccoll.private_files import read_limited
from hpccoll.profile.chakra import COLLECTIVE, COLLECTIVE_TYPES, COMPUTATION, RECEIVE, SEND
from hpccoll.profile.foreign_profile import RankCalls, make_foreign_profile
from hpccoll.profile.layout import ANY
from hpccoll.profile.load import JobProfile
from hpccoll.profile.task_graph import NOTE, Task, TaskSimulation

_MOST_BYTES: Final = 2**30
_NAMES: Final = {number: name for name, number in COLLECTIVE_TYPES.items()} | {8: "reduce_scatter"}
_ROOTED: Final = ("reduce", "gather", "scatter", "broadcast")
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5  # wire types of protobuf
_TEXT: Final = 29  # the number of the string field of an AttributeProto


@dataclass(slots=True)
class ChakraNode:
    """A node of a Chakra execution trace: a computation, collective, send or receive of one rank.

    Args:
        number: the id of the node in the trace.
        kind: the type of the node, such as `COLLECTIVE`.
        needs: the ids of the nodes that must have ended before this node starts.
        start_us: the start time of the node in microseconds; 0 in traces without times.
        duration_us: the duration of the node in microseconds.
        attributes: the attributes of the node by name, as whole numbers and strings; values of other types are 0.
    """

    number: int = 0
    kind: int = 0
    needs: list[int] = field(default_factory=list)
    start_us: int = 0
    duration_us: int = 0
    attributes: dict[str, int | str] = field(default_factory=dict)

    def get_int(self, name: str) -> int:
        """Return the attribute `name` as a whole number; 0 if it is missing or a string."""
        value = self.attributes.get(name, 0)
        if not isinstance(value, int):
            return 0
        return value - 2**64 if value >= 2**63 else value  # protobuf adds 2**64 to negative numbers

    @property
    def root(self) -> int:
        """The root of a collective, as a rank of its process group; ANY if the operation has no root."""
        return self.get_int("root") if self.operation in _ROOTED else ANY

    @property
    def message(self) -> tuple[str, int]:
        """A pair for a node that sends or receives a message: `send` or `recv`, and the rank at the other end."""
        return ("send", self.get_int("comm_dst")) if self.kind == SEND else ("recv", self.get_int("comm_src"))

    @property
    def group(self) -> str:
        """The name of the process group of a collective; empty for the default group."""
        return str(self.attributes.get("pg_name", ""))

    @property
    def operation(self) -> str:
        """The name in hpccoll of the node's collective, such as `all_reduce`; `barrier` for unknown types."""
        return _NAMES.get(self.get_int("comm_type"), "barrier")


def read_chakra(path: Path) -> JobProfile:
    """Return the job of the Chakra traces NAME.RANK.et as a profile; `path` is one of these files, or NAME.et.

    Raises:
        UsageError: files are missing or damaged, or some ranks would wait forever.
    """
    files = find_traces(path)
    nodes = [read_nodes(file) for file in files]
    for file, own in zip(files, nodes, strict=True):
        _require_peers(file, own, len(nodes))
    groups: dict[str, list[int]] = {"": list(range(len(nodes)))}
    for rank, own in enumerate(nodes):
        for name in dict.fromkeys(node.group for node in own if node.kind == COLLECTIVE and node.group):
            groups.setdefault(name, []).append(rank)
    comms = {name: number for number, name in enumerate(groups)}
    members = [tuple(ranks) for ranks in groups.values()]
    if any(node.start_us for own in nodes for node in own):
        calls = [_list_calls(own, comms) for own in nodes]
        ends = [1e-6 * max((node.start_us + node.duration_us for node in own), default=0) for own in nodes]
        return make_foreign_profile(path, calls, ends, members, ())
    simulation = TaskSimulation(
        [_list_tasks(own, comms, file) for own, file in zip(nodes, files, strict=True)], members
    )
    return make_foreign_profile(path, simulation.run(), simulation.list_ends(), members, (NOTE,))


def _require_peers(file: Path, nodes: Sequence[ChakraNode], ranks: int) -> None:
    """Raise UsageError if a node in the trace `file` has a message with a rank that is not among 0 to `ranks` - 1."""
    for node in nodes:
        if node.kind in (SEND, RECEIVE) and not 0 <= node.message[1] < ranks:
            raise UsageError(
                f"{file}: node {node.number} has a message with rank {node.message[1]}, and there are traces of the "
                f"ranks 0 to {ranks - 1}; copy the traces of all ranks there"
            )


def find_traces(path: Path) -> list[Path]:
    """Return the files NAME.RANK.et of all ranks in the order of the ranks; `path` is NAME.et or one of them.

    Raises:
        UsageError: there are no files, or the file of a rank is missing.
    """
    stem = path.with_suffix("").with_suffix("") if path.with_suffix("").suffix[1:].isdecimal() else path.with_suffix("")
    candidates = stem.parent.glob(f"{escape(stem.name)}.*.et")
    files = {int(file.suffixes[-2][1:]): file for file in candidates if _has_rank(file)}
    if not files:
        raise UsageError(f"{path}: there is no trace {stem.name}.0.et; name the traces of ranks NAME.RANK.et")
    missing = sorted(set(range(max(files) + 1)) - set(files))
    if missing:
        raise UsageError(f"{path}: the trace of rank {missing[0]} is missing; copy {stem.name}.{missing[0]}.et there")
    return [files[rank] for rank in range(len(files))]


def _has_rank(file: Path) -> bool:
    """Whether the name of a file has a number before its suffix, as in `job.3.et`."""
    return len(file.suffixes) > 1 and file.suffixes[-2][1:].isdecimal()


def read_nodes(file: Path) -> list[ChakraNode]:
    """Return the nodes of a trace in the order of the file; raise UsageError if the file is no trace."""
    try:
        messages = list(_split_messages(read_limited(file, _MOST_BYTES)))
        return [_decode_node(message) for message in messages[1:]]  # the first message is the GlobalMetadata
    except (OSError, IndexError, UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"{file}: is no Chakra execution trace, or is cut off ({error}); export it again") from error


def _split_messages(data: bytes) -> Iterator[bytes]:
    """Yield the protobuf messages in the bytes of a file, where each message follows its length."""
    place = 0
    while place < len(data):
        length, place = _decode_varint(data, place)
        if place + length > len(data):
            raise ValueError(f"a message of {length} bytes at byte {place} of {len(data)}")
        yield data[place : place + length]
        place += length


def _decode_node(message: bytes) -> ChakraNode:
    """Return the node that a protobuf message of type Node encodes."""
    node = ChakraNode()
    for number, value in _decode_fields(message):
        match number, value:
            case 1, int():
                node.number = value
            case 3, int():
                node.kind = value
            case ((4 | 5), int()):
                node.needs.append(value)
            case ((4 | 5), bytes()):  # a packed list
                node.needs += _decode_packed(value)
            case 6, int():
                node.start_us = value
            case 7, int():
                node.duration_us = value
            case 10, bytes():
                name, attribute = _decode_attribute(value)
                node.attributes[name] = attribute
    return node


def _decode_attribute(message: bytes) -> tuple[str, int | str]:
    """Return the name and value of a protobuf message of type AttributeProto; 0 for a value of another type."""
    name, other = "", 0
    text: str | None = None
    for number, value in _decode_fields(message):
        if number == 1 and isinstance(value, bytes):
            name = value.decode()
        elif number == _TEXT and isinstance(value, bytes):
            text = value.decode()
        elif isinstance(value, int):
            other = value
    return name, other if text is None else text


def _decode_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field of a protobuf message."""
    place = 0
    while place < len(message):
        key, place = _decode_varint(message, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _decode_varint(message, place)
            yield key >> 3, value
            continue
        if kind == _LENGTH:
            length, place = _decode_varint(message, place)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise ValueError(f"wire type {kind} at byte {place}")
        if place + length > len(message):
            raise ValueError(f"a field of {length} bytes at byte {place} of {len(message)}")
        yield key >> 3, message[place : place + length]
        place += length


def _decode_packed(data: bytes) -> list[int]:
    """Return the whole numbers in a protobuf field that holds a packed list, whose bytes are `data`."""
    numbers, place = [], 0
    while place < len(data):
        number, place = _decode_varint(data, place)
        numbers.append(number)
    return numbers


def _decode_varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the varint that begins at byte `place` of `data`, and the index of the byte after it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        shift, place = shift + 7, place + 1
        if byte < 0x80:
            return value, place


def _list_calls(nodes: Sequence[ChakraNode], comms: dict[str, int]) -> RankCalls:
    """Return the collectives and messages of a rank as calls at their recorded times.

    A call ends at the latest when the next one begins, because a rank of a profile makes one call at a time.

    Args:
        nodes: the nodes of the rank's trace.
        comms: the index of each process group's communicator, by the name of the group.
    """
    calls = RankCalls()
    own = sorted(
        (node for node in nodes if node.kind in (SEND, RECEIVE, COLLECTIVE)),
        key=lambda node: (node.start_us, node.number),
    )
    for node, following in zip(own, [*own[1:], None], strict=True):
        begin_us, end_us = node.start_us, node.start_us + node.duration_us
        if following is not None:
            end_us = max(min(end_us, following.start_us), begin_us)
        begin_s, end_s, nbytes = 1e-6 * begin_us, 1e-6 * end_us, node.get_int("comm_size")
        if node.kind == COLLECTIVE:
            calls.add(node.operation, begin_s, end_s, nbytes=nbytes, peer=node.root, comm=comms[node.group])
        else:
            kind, peer = node.message
            calls.add(kind, begin_s, end_s, nbytes=nbytes, peer=peer, tag=node.get_int("comm_tag"))
    return calls


def _list_tasks(nodes: Sequence[ChakraNode], comms: dict[str, int], file: Path) -> list[Task]:
    """Return the nodes of a rank as tasks for a simulation; nodes that neither compute nor communicate take no time.

    Args:
        nodes: the nodes of the rank's trace.
        comms: the index of each process group's communicator, by the name of the group.
        file: the path of the trace, for error messages.
    """
    places = {node.number: place for place, node in enumerate(nodes)}
    tasks = []
    for node in nodes:
        unknown = [need for need in node.needs if need not in places]
        if unknown:
            raise UsageError(f"{file}: node {node.number} needs node {unknown[0]}, which is missing; export it again")
        needs, nbytes = tuple(places[need] for need in node.needs), node.get_int("comm_size")
        if node.kind == COLLECTIVE:
            tasks.append(Task(node.operation, nbytes=nbytes, peer=node.root, comm=comms[node.group], needs=needs))
        elif node.kind in (SEND, RECEIVE):
            kind, peer = node.message
            tasks.append(Task(kind, nbytes=nbytes, peer=peer, tag=node.get_int("comm_tag"), needs=needs))
        else:
            seconds = 1e-6 * node.duration_us if node.kind == COMPUTATION else 0.0
            tasks.append(Task("calc", seconds, needs=needs))
    return tasks
