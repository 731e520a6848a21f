"""Encodes the calls of a rank as a Chakra execution trace, which ASTRA-sim reads.

A trace is a sequence of protobuf messages, each preceded by its length: one GlobalMetadata, then one Node per
computation, collective, send or receive. Each node depends on the previous node. The numbers of fields and types are
those of et_def.proto in mlcommons/chakra, schema version 1.1.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hpccoll.plan import IntArray
from hpccoll.profile.dependencies import CallGraph

_VERSION: Final = "1.1.0-chakra.0.0.4"
COMPUTATION, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7  # node types
COLLECTIVE_TYPES: Final = {
    "all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5, "all_to_all": 6,
    "reduce_scatter": 7, "barrier": 9,
}  # fmt: skip
# Numbers of fields of the protobuf message AttributeProto.
_INT32, _INT64, _BOOL, _STRING = 7, 9, 27, 29


def encode_execution_trace(graph: CallGraph, rank: int) -> bytes:
    """Return the Chakra execution trace of rank `rank` of a recorded job, as the bytes of a file `.et`."""
    messages = [_encode_bytes(1, _VERSION.encode())]
    origin, number, senders = float(graph.start_s.min()), 0, graph.matches.find_senders()
    for call in np.flatnonzero(graph.rank == rank).tolist():
        begin_us, gap_us = 1e6 * (float(graph.begin_s[call]) - origin), 1e6 * float(graph.gap_s[call])
        if gap_us > 0:
            number += 1
            messages.append(_encode_node(number, "computation", COMPUTATION, begin_us - gap_us, gap_us, b""))
        duration_us = 1e6 * float(graph.end_s[call] - graph.begin_s[call])
        for name, kind, attributes in _describe_call(graph, call, senders):
            number += 1
            messages.append(_encode_node(number, name, kind, begin_us, duration_us, attributes))
    return b"".join(_encode_varint(len(message)) + message for message in messages)


def _describe_call(graph: CallGraph, call: int, senders: IntArray) -> list[tuple[str, int, bytes]]:
    """Return the nodes of a trace for a recorded call: the name, type and encoded attributes of each.

    A collective is one node and a sendrecv two nodes. The node of a receive stands for the call that
    completes the receive; a call that only starts a receive has no node.

    Args:
        graph: the recorded calls.
        call: index of the call in the arrays of `graph`.
        senders: the index of the call that sends each message, by the number of the message.
    """
    name = graph.operations[graph.op[call]]
    if name in COLLECTIVE_TYPES:
        collective = _encode_attribute("comm_type", _INT64, COLLECTIVE_TYPES[name])
        size = _encode_attribute("comm_size", _INT64, max(int(graph.nbytes[call]), 0))
        group = _encode_attribute("pg_name", _STRING, str(int(graph.comm[call])))
        root = _encode_attribute("root", _INT64, int(graph.root[call])) if graph.root[call] >= 0 else b""
        return [(name, COLLECTIVE, collective + size + group + root)] if graph.matches.instance[call] >= 0 else []
    nodes = []
    for verb, kind, message in (
        ("send", SEND, int(graph.matches.sent[call])), ("recv", RECEIVE, int(graph.matches.received[call])),
    ):  # fmt: skip
        if message >= 0:
            send = senders[message]
            values = {
                "comm_src": (_INT32, graph.rank[send]), "comm_dst": (_INT32, graph.dest[send]),
                "comm_tag": (_INT32, message), "comm_size": (_INT64, max(graph.nbytes[send], 0)),
            }  # fmt: skip
            encoded = (_encode_attribute(key, field, int(value)) for key, (field, value) in values.items())
            nodes.append((verb, kind, b"".join(encoded)))
    return nodes


def _encode_node(number: int, name: str, kind: int, begin_us: float, duration_us: float, attributes: bytes) -> bytes:
    """Return an encoded protobuf message of type Node, which depends on the node `number` - 1.

    Args:
        number: the id of the node, from 1.
        kind: the type of the node, such as `COLLECTIVE`.
        begin_us: the start time of the node in microseconds.
        duration_us: the duration of the node in microseconds.
        attributes: the encoded attributes of the node.
    """
    fields = [_encode_number(1, number), _encode_bytes(2, name.encode()), _encode_number(3, kind)]
    if number > 1:
        fields.append(_encode_bytes(5, _encode_varint(number - 1)))  # data_deps, a packed list
    fields += [_encode_number(6, max(round(begin_us), 0)), _encode_number(7, round(duration_us)), attributes]
    fields.append(_encode_attribute("is_cpu_op", _BOOL, int(kind == COMPUTATION)))
    return b"".join(fields)


def _encode_attribute(name: str, field: int, value: int | str) -> bytes:
    """Return the attribute `name` of a Node, encoded; `field` is the number of AttributeProto's field for its type."""
    encoded = _encode_bytes(field, value.encode()) if isinstance(value, str) else _encode_number(field, value)
    return _encode_bytes(10, _encode_bytes(1, name.encode()) + encoded)


def _encode_number(field: int, value: int) -> bytes:
    """Return the encoded protobuf field with number `field` and the value `value`, a whole number of at least 0."""
    return _encode_varint(field << 3) + _encode_varint(value)


def _encode_bytes(field: int, value: bytes) -> bytes:
    """Return the encoded protobuf field with number `field` and the bytes `value`: a string or an encoded message."""
    return _encode_varint(field << 3 | 2) + _encode_varint(len(value)) + value


def _encode_varint(value: int) -> bytes:
    """Return a whole number of at least 0 as a protobuf varint: groups of 7 bits, the lowest first."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
