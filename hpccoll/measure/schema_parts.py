"""What the JSON Schema of the records is made of: the few types that their fields have."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
FLAG: Schema = {"type": "boolean"}
TIME: Schema = {"type": "number", "minimum": 0}
TIME_OR_NULL: Schema = {"type": ["number", "null"], "minimum": 0}


def record(description: str, properties: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """Return the schema of an object with these properties, all required but the `optional`."""
    required = [name for name in properties if name not in optional]
    return {"description": description, "type": "object", "required": required, "properties": properties}


def whole(minimum: int = 0, description: str = "", *, null: bool = False) -> Schema:
    """Return the schema of a whole number, or null where that is allowed."""
    what: Schema = {"type": ["integer", "null"] if null else "integer", "minimum": minimum}
    return what | ({"description": description} if description else {})


def array(items: Schema, description: str) -> Schema:
    """Return the schema of a list of `items`."""
    return {"type": "array", "items": items, "description": description}
