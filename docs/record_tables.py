"""A Sphinx directive that lists the fields of all records, from the JSON Schema that `hpccoll schema` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sphinx.util.docutils import SphinxDirective

from hpccoll.records import make_json_schema

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

Schema = dict[str, Any]


class RecordTables(SphinxDirective):  # type: ignore[misc]  # mypy runs without Sphinx
    """The directive `record-tables`: one section with a table of fields per kind of record."""

    def run(self) -> list[nodes.Node]:
        definitions = make_json_schema()["$defs"]
        lines = [line for name, definition in definitions.items() for line in format_section(name, definition)]
        sections: list[nodes.Node] = self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)
        return sections


def format_section(name: str, definition: Schema) -> Iterator[str]:
    """Yield the Markdown lines of the section of one kind of record."""
    yield f"## `{name}`\n\n{definition['description']}\n"
    yield "| field | type | meaning |\n|---|---|---|"
    for field, schema in list_fields(definition):
        yield f"| `{field}` | {format_type(schema)} | {schema.get('description', '')} |"
    yield ""


def list_fields(definition: Schema, prefix: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield the path and the schema of each field, and of the fields of objects and of lists of objects."""
    for name, schema in definition.get("properties", {}).items():
        yield prefix + name, schema
        yield from list_fields(schema, f"{prefix}{name}.")
        if "properties" in schema.get("items", {}):
            yield from list_fields(schema["items"], f"{prefix}{name}[].")


def format_type(schema: Schema) -> str:
    """Return the type of a field in words, such as `integer or null`, or its possible values."""
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join("null" if value is None else f"`{value}`" for value in schema["enum"])
    kinds = schema.get("type", "any")
    text = kinds if isinstance(kinds, str) else " or ".join(kinds)
    return f"{text} of {format_type(schema['items'])}" if isinstance(schema.get("items"), dict) else text


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("record-tables", RecordTables)
    return {"parallel_read_safe": True}
