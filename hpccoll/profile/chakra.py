"""The calls of a rank as a Chakra execution trace, which ASTRA-sim reads.

A trace is a sequence of protobuf messages, each after its length: one GlobalMetadata, then one Node per computation or
call, which depends on the one before. Source of the numbers: et_def.proto of mlcommons/chakra, schema version 1.1.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hpccoll.profile.dependencies import CallGraph

_VERSION: Final = "1.1.0-chakra.0.0.4"
_COMPUTATION, _SEND, _RECEIVE, _COLLECTIVE = 4, 5, 6, 7  # node types
_COLLECTIVES: Final = {
    "all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5, "all_to_all": 6,
    "reduce_scatter": 7, "barrier": 9,
}  # fmt: skip
# Fields of an AttributeProto.
_INT32, _INT64, _BOOL, _STRING = 7, 9, 27, 29


def encode_execution_trace(graph: CallGraph, rank: int) -> bytes:
    """Return the trace of a rank as bytes."""
    messages = [_encode_bytes(1, _VERSION.encode())]
    origin, number = float(graph.start_s.min()), 0
    for call in np.flatnonzero(graph.rank == rank).tolist():
        name = graph.operations[graph.op[call]]
        begin_us, gap_us = 1e6 * (float(graph.begin_s[call]) - origin), 1e6 * float(graph.gap_s[call])
        if gap_us > 0:
            number += 1
            messages.append(_encode_node(number, "computation", _COMPUTATION, begin_us - gap_us, gap_us, b""))
        encoded = _describe_call(graph, call, name)
        if encoded is not None:
            kind, attributes = encoded
            number += 1
            duration_us = 1e6 * float(graph.end_s[call] - graph.begin_s[call])
            messages.append(_encode_node(number, name, kind, begin_us, duration_us, attributes))
    return b"".join(_encode_varint(len(message)) + message for message in messages)


def _describe_call(graph: CallGraph, call: int, name: str) -> tuple[int, bytes] | None:
    """Return the node type and the attributes of a call; None for calls that Chakra does not know, such as waits."""
    size = _encode_attribute("comm_size", _INT64, max(int(graph.nbytes[call]), 0))
    group = _encode_attribute("pg_name", _STRING, str(int(graph.comm[call])))
    if name in _COLLECTIVES:
        kind = _encode_attribute("comm_type", _INT64, _COLLECTIVES[name])
        return _COLLECTIVE, kind + size + group
    if name not in ("send", "recv"):
        return None
    other, own = int(graph.dest[call] if name == "send" else graph.source[call]), int(graph.rank[call])
    if other < 0:
        return None
    source, dest = (own, other) if name == "send" else (other, own)
    ends = _encode_attribute("comm_src", _INT32, source) + _encode_attribute("comm_dst", _INT32, dest)
    tag = _encode_attribute("comm_tag", _INT32, max(int(graph.matches.instance[call]), 0))
    return (_SEND if name == "send" else _RECEIVE), ends + tag + size


def _encode_node(number: int, name: str, kind: int, begin_us: float, duration_us: float, attributes: bytes) -> bytes:
    """Return a Node that depends on the one before."""
    fields = [_encode_number(1, number), _encode_bytes(2, name.encode()), _encode_number(3, kind)]
    if number > 1:
        fields.append(_encode_bytes(5, _encode_varint(number - 1)))  # data_deps, a packed list
    fields += [_encode_number(6, max(round(begin_us), 0)), _encode_number(7, round(duration_us)), attributes]
    fields.append(_encode_attribute("is_cpu_op", _BOOL, int(kind == _COMPUTATION)))
    return b"".join(fields)


def _encode_attribute(name: str, field: int, value: int | str) -> bytes:
    """Return an attribute of a Node."""
    encoded = _encode_bytes(field, value.encode()) if isinstance(value, str) else _encode_number(field, value)
    return _encode_bytes(10, _encode_bytes(1, name.encode()) + encoded)


def _encode_number(field: int, value: int) -> bytes:
    """Return a field with a whole number of at least 0."""
    return _encode_varint(field << 3) + _encode_varint(value)


def _encode_bytes(field: int, value: bytes) -> bytes:
    """Return a field of bytes, a string or a message."""
    return _encode_varint(field << 3 | 2) + _encode_varint(len(value)) + value


def _encode_varint(value: int) -> bytes:
    """Return a whole number in groups of 7 bits, the lowest first."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
