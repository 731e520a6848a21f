"""JSON Schema of the records, draft 2020-12: one object a line, told apart by `kind`.

Readers should accept keys that they do not know: later versions of schema hpccoll/1 may add some, never take one away.
"""

from __future__ import annotations

from dataclasses import fields

from hpccoll.measure.bandwidth import SEND_RECV
from hpccoll.measure.record import SCHEMA, SLURM, VERSIONS
from hpccoll.measure.schema_nodes import kinds_of_nodes
from hpccoll.measure.schema_parts import FLAG as _FLAG
from hpccoll.measure.schema_parts import TEXT as _TEXT
from hpccoll.measure.schema_parts import TEXT_OR_NULL as _TEXT_OR_NULL
from hpccoll.measure.schema_parts import TIME as _TIME
from hpccoll.measure.schema_parts import TIME_OR_NULL as _TIME_OR_NULL
from hpccoll.measure.schema_parts import Schema
from hpccoll.measure.schema_parts import array as _list
from hpccoll.measure.schema_parts import record as _object
from hpccoll.measure.schema_parts import whole as _whole
from hpccoll.measure.schema_train import kinds_of_training
from hpccoll.measure.statistics import FEWEST_FOR_P99, TimeSummary
from hpccoll.measure.stopping import StopReason
from hpccoll.plan import Operation


def schema() -> Schema:
    """Return the JSON Schema that every line of a result file fulfils."""
    kinds = {"run": _run(), "collective": _collective(), "plan": _plan(), "demo": _demo(), "finding": _finding()}
    kinds |= kinds_of_nodes() | kinds_of_training()
    kinds["lab"] = _lab()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"records of {SCHEMA}",
        "description": "One JSON object a line. _us: microseconds; _GBps: bandwidth in 1e9 bytes per second.",
        "type": "object",
        "required": ["schema", "kind"],
        "properties": {"schema": {"const": SCHEMA}, "kind": {"enum": list(kinds)}},
        "allOf": [
            *(_when(kind) for kind in kinds if kind != "plan"),
            _when("plan", "simulate", "simulated"),
            _when("plan", "verify"),
        ],
        "$defs": kinds | {"simulated": _simulated()},
    }


def _when(kind: str, command: str | None = None, name: str | None = None) -> Schema:
    told = {"kind": {"const": kind}} | ({"command": {"const": command}} if command else {})
    return {
        "if": {"properties": told, "required": list(told)},
        "then": {"$ref": f"#/$defs/{name or kind}"},
    }


def _run() -> Schema:
    versions: dict[str, Schema] = dict.fromkeys(VERSIONS, _TEXT_OR_NULL)
    slurm: dict[str, Schema] = dict.fromkeys(SLURM, _TEXT_OR_NULL)
    return _object(
        "What a run was and where; precedes its measurements. A resumed file holds one for each run.",
        {
            "command": _TEXT,
            "versions": _object("null where a package is not installed.", versions) | {"additionalProperties": False},
            "hosts": _list(_TEXT, "Host name of each rank."),
            "cores": _list(_whole(1), "Cores that each rank may run on."),
            "ranks": _whole(1),
            "nodes": _whole(1, "Sets of ranks that can share memory."),
            "devices": _list(_TEXT, "Names of the accelerators in use."),
            "oversubscribed": _FLAG,
            "clock_residual_us": _TIME_OR_NULL | {"description": "null where clocks were not aligned."},
            "slurm": {"type": ["object", "null"], "properties": slurm, "description": "null outside SLURM."},
            "commit": _TEXT_OR_NULL,
            "start_time": {"type": "string", "format": "date-time"},
        },
        optional=("slurm",),  # files written before there was one
    )


def _collective() -> Schema:
    operations = [*(operation.value for operation in Operation), SEND_RECV]
    return _object(
        "One measured row.",
        {
            "op": {"enum": operations},
            "engine": _TEXT,
            "algorithm": _TEXT_OR_NULL | {"description": "null where the engine does not say."},
            "buffer": _TEXT,
            "in_place": _FLAG,
            "nbytes": _whole(0, "nccl-tests' S."),
            "count": _whole(0, "Elements a rank: of its vector, or of one block where the message is n blocks."),
            "dtype": _TEXT,
            "redop": _TEXT_OR_NULL | {"description": "null where nothing is reduced."},
            "root": _whole(0, "null where there is none.", null=True),
            "ranks": _whole(1),
            "nodes": _whole(1),
            "iterations": _whole(1),
            "stop": {"enum": [stop.value for stop in StopReason]},
            "time_us": _summary(),
            "algbw_GBps": _TIME | {"description": "nbytes over the median time."},
            "busbw_GBps": _TIME | {"description": "algbw_GBps times nccl-tests' factor of the operation."},
            "wrong": _whole(0, "Elements found wrong; null where the results were not checked.", null=True),
            "bound_us": _TIME_OR_NULL | {"description": "The model's lower bound."},
            "samples_us": _list(_TIME, "Each iteration's maximum over ranks, in the order measured.") | {"minItems": 1},
            "staging": {"enum": ["direct", "pinned", None], "description": "How device memory reached MPI."},
            "stream_us": _list(_TIME, "As samples_us, by CUDA events on the current stream; empty for host memory."),
        },
        optional=("staging", "stream_us"),
    )


def _summary() -> Schema:
    properties = {field.name: _TIME for field in fields(TimeSummary)}
    properties["p99"] = _TIME_OR_NULL | {"description": f"null below {FEWEST_FOR_P99} iterations."}
    return _object(
        "Of samples_us. p50_low and p50_high enclose the median with 95 %; below 6 iterations no interval does, and "
        "they are the smallest and the largest sample, which do with 1 - 2**(1 - iterations).",
        properties,
    )


def _simulated() -> Schema:
    path = {
        "last_rank": _whole(),
        "waits": _whole(),
        "waits_between": _whole(),
        "ends": _list(_wait(), "First and last."),
    }
    fit = {"fitted": _TIME, "left_out": _TIME}
    return _object(
        "What was predicted of one algorithm on one number of ranks (`hpccoll simulate`).",
        {
            "command": {"const": "simulate"},
            "op": {"enum": [operation.value for operation in Operation]},
            "algorithm": _TEXT,
            "ranks": _whole(1),
            "nodes": _whole(1),
            "machine": _TEXT,
            "nbytes": _whole(0, "nccl-tests' S."),
            "chunks": _whole(1),
            "root": _whole(0, "null where there is none.", null=True),
            "simulated_ranks": _whole(1, "How many ranks stood for all."),
            "rounds": _whole(),
            "steps": _whole(),
            "messages": _whole(),
            "time_us": _TIME,
            "latency_bound_us": _TIME,
            "bandwidth_bound_us": _TIME,
            "sent_mean": _TIME | {"description": "Bytes that a rank sends, on average."},
            "sent_most": _TIME | {"description": "Bytes that the busiest rank sends."},
            "within": _TIME | {"description": "Bytes sent inside nodes, by all ranks."},
            "between": _TIME | {"description": "Bytes sent across nodes, by all ranks."},
            "critical_path": {"anyOf": [_object("What the last rank was held up by.", path), {"type": "null"}]},
            "fit": {"anyOf": [_object("Median errors of --machine fit:FILE.", fit), {"type": "null"}]},
        },
    )


def _wait() -> Schema:
    whole = {name: _whole() for name in ("round", "rank", "source", "nbytes")}
    between = _FLAG | {"description": "Whether the message crossed nodes."}
    return _object("`rank` waited for a message of `source`.", {**whole, "between": between, "entered_us": _TIME})


def _plan() -> Schema:
    share: Schema = {"type": ["number", "null"], "minimum": 0}
    return _object(
        "What was proven of one algorithm on one number of ranks (`hpccoll verify`).",
        {
            "command": {"const": "verify"},
            "op": {"enum": [operation.value for operation in Operation]},
            "algorithm": _TEXT,
            "ranks": _whole(1),
            "plans": _whole(1, "Variants: roots times chunk counts."),
            "proven": _FLAG,
            "failures": _list(_TEXT, "One message a variant that is not proven."),
            "rounds": _whole(null=True),
            "steps": _whole(null=True),
            "messages": _whole(null=True),
            "sent_mean": share | {"description": "What a rank sends, in multiples of S, on average over ranks."},
            "sent_most": share | {"description": "What the busiest rank sends, in multiples of S."},
            "seconds": _TIME,
        },
    )


def _demo() -> Schema:
    columns: Schema = {"type": "object", "additionalProperties": {"type": "array", "description": "By rank."}}
    return _object(
        "What the ranks of an example held (`hpccoll demo`).",
        {
            "name": _TEXT,
            "ranks": _whole(1),
            "op": _TEXT_OR_NULL | {"description": "null where several calls play together."},
            "algorithm": _TEXT_OR_NULL,
            "before": columns,
            "after": columns,
        },
    )


def _finding() -> Schema:
    return _object(
        "One thing that was looked at (`hpccoll doctor`), or that results say (`hpccoll report`).",
        {
            "area": _TEXT | {"description": "What it belongs to, such as mpi, binding, link or noise."},
            "severity": {"enum": ["ok", "note", "warning", "problem"]},
            "found": _TEXT,
            "evidence": _TEXT,
            "remedy": _TEXT_OR_NULL | {"description": "null where there is nothing to mend."},
            "provides": _list(_TEXT, "What of --require it shows to work."),
            "hosts": _list(_TEXT, "Where it was found; empty for the job as a whole, or where there is one host."),
        },
    )


def _lab() -> Schema:
    rate: Schema = {"type": ["number", "null"], "minimum": 0, "description": "null where there is no limit."}
    node = {
        "name": _TEXT,
        "address": _TEXT,
        "power": _FLAG | {"description": "Whether it is on."},
        "link_up": _FLAG,
        "bytes_per_s": rate,
        "slow_percent": _TIME,
        "state": _TEXT | {"description": "What SLURM says of it."},
    }
    shape = {
        "nodes": _whole(1),
        "cpus": _whole(1),
        "bytes_per_s": rate,
        "latency_s": _TIME,
        "shares": _list(_TEXT, "Paths beneath /tmp that nodes see."),
        "subnet": _TEXT,
    }
    return _object(
        "A throw-away SLURM cluster (`hpccoll lab status`).",
        {
            "dir": _TEXT,
            "isolation": {"enum": ["root", "user", "flat"], "description": "How nodes are kept apart."},
            "why": _TEXT | {"description": "Why they are not better apart; empty where they are as they should be."},
            "shape": _object("As it was started.", shape),
            "nodes": _list(_object("A node as it is.", node), "All of them."),
        },
    )
