"""The JSON Schema (draft 2020-12) of the records, generated from the record classes.

Each line of a result file is one record; its field `kind` (for plans also `command`) determines which definition of the
schema it must satisfy. Readers should accept unknown keys, because later versions of hpccoll may add keys to schema
hpccoll/1, but never remove one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hpccoll.records.barriers import BarrierRecord, BarrierSummaryRecord
from hpccoll.records.collective import BenchSummaryRecord, CollectiveRecord
from hpccoll.records.common_fields import COMMON_FIELDS
from hpccoll.records.comparisons import (
    ComparedOperationRecord,
    ComparedRowRecord,
    CompareSummaryRecord,
    GuidelineRecord,
)
from hpccoll.records.crash import CrashRecord
from hpccoll.records.estimates import EstimateRecord
from hpccoll.records.nodes import (
    FindingRecord,
    LabRecord,
    PreflightNodeRecord,
    PreflightPairRecord,
    PreflightSummaryRecord,
    ScalingRecord,
)
from hpccoll.records.parity import ParityRecord, ParitySummaryRecord
from hpccoll.records.plans import (
    DemoRecord,
    ProvenPlanRecord,
    PublishedScheduleRecord,
    ScheduleRecord,
    SelectionRecord,
    SimulatedPlanRecord,
)
from hpccoll.records.profiles import ProfileFindingRecord, ProfilePredictionRecord, ProfileRecord, ProfileSiteRecord
from hpccoll.records.record import SCHEMA, Record
from hpccoll.records.run import RunRecord
from hpccoll.records.training import (
    TrainAccountRecord,
    TrainCompareRecord,
    TrainRecoveryRecord,
    TrainStepRecord,
    TrainSummaryRecord,
)

Schema = dict[str, Any]
_RECORDS: tuple[type[Record], ...] = (
    *(RunRecord, CollectiveRecord, BenchSummaryRecord, DemoRecord, FindingRecord),
    *(PreflightPairRecord, PreflightNodeRecord),
    *(PreflightSummaryRecord, ScalingRecord, TrainStepRecord, TrainSummaryRecord, LabRecord),
    *(CrashRecord, ScheduleRecord, SelectionRecord, TrainAccountRecord, TrainCompareRecord),
    TrainRecoveryRecord,
    *(ComparedRowRecord, ComparedOperationRecord, GuidelineRecord, CompareSummaryRecord),
    *(BarrierRecord, BarrierSummaryRecord),
    *(ParityRecord, ParitySummaryRecord),
    *(ProfileRecord, ProfileFindingRecord, ProfileSiteRecord, ProfilePredictionRecord),
    EstimateRecord,
)
DEFINITIONS: dict[str, type[Record]] = {
    **{record.kind: record for record in _RECORDS},
    "simulated": SimulatedPlanRecord,  # of kind `plan`, as ProvenPlanRecord; the field `command` tells them apart
    "plan": ProvenPlanRecord,
    "published_schedule": PublishedScheduleRecord,
}


def make_json_schema() -> Schema:
    """Return the JSON Schema, as a dict, that every line of a result file satisfies."""
    _, components = msgspec.json.schema_components(DEFINITIONS.values())
    definitions = {name: _inline(components[record.__name__], components) for name, record in DEFINITIONS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"records of {SCHEMA}",
        "description": "One JSON object per line. _us: microseconds; _GBps: bandwidth in 1e9 bytes per second.",
        "type": "object",
        "required": ["schema", "kind"],
        "properties": {
            "schema": {"const": SCHEMA},
            "kind": {"enum": list(dict.fromkeys(record.kind for record in DEFINITIONS.values()))},
        },
        "allOf": [_make_rule(name, definition) for name, definition in definitions.items()],
        "$defs": definitions,
    }


def _make_rule(name: str, definition: Schema) -> Schema:
    """Return a JSON Schema if/then rule: a line with the `kind` of the definition `name` must satisfy that definition.

    For definitions with a constant field `command`, the rule also requires that the line has this command.
    """
    selected = {"kind": {"const": DEFINITIONS[name].kind}}
    command = definition["properties"].get("command", {})
    if "const" in command:
        selected["command"] = command
    return {"if": {"properties": selected, "required": list(selected)}, "then": {"$ref": f"#/$defs/{name}"}}


def _inline(schema: Schema, components: dict[str, Schema]) -> Schema:
    """Return a schema of msgspec, simplified, with references to `components` replaced by their content.

    Titles and defaults are removed, and a union of a type with null becomes `{"type": [TYPE, "null"]}`.
    """
    if "$ref" in schema:
        definition = components[schema["$ref"].rpartition("/")[2]]
        described = {key: schema[key] for key in ("description",) if key in schema}  # of the field in this record
        return _inline(definition | described, components)
    plain = {key: value for key, value in schema.items() if key not in ("title", "default", "anyOf")}
    if "anyOf" in schema:
        (value, _) = schema["anyOf"]  # the second type is null, because the only unions in records are with null
        value = _inline(value, components)
        null = {"enum": [*value["enum"], None]} if "enum" in value else {"type": [value["type"], "null"]}
        plain = value | null | plain
    if len(plain.get("enum", ())) == 1:
        plain["const"] = plain.pop("enum")[0]
    if "description" in plain:
        plain["description"] = " ".join(plain["description"].split())
    if not plain.get("required", True):
        del plain["required"]
    if "properties" in plain:
        plain["properties"] = {
            name: _describe(name, _inline(field, components)) for name, field in plain["properties"].items()
        }
    for key in ("items", "additionalProperties"):
        if isinstance(plain.get(key), dict):
            plain[key] = _inline(plain[key], components)
    return plain


def _describe(name: str, field: Schema) -> Schema:
    """Return a field's schema; a missing description is taken from `COMMON_FIELDS`, if the field is there."""
    if "description" in field or name not in COMMON_FIELDS:
        return field
    return field | {"description": COMMON_FIELDS[name]}
