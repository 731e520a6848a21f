"""The base class of records, and the types that their fields share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import msgspec
from msgspec import Meta, Struct

from hpccoll.errors import UsageError

SCHEMA = "hpccoll/1"

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]  # a time, a rate or a ratio


def about(description: str) -> Meta:
    """Return an annotation for the type of a record's field: `description` is the field's text in the JSON Schema."""
    return Meta(description=description)


class Record(Struct, frozen=True):
    """Base class of all records. A record is one line of a result file: a JSON object with `schema`, `kind` and fields.

    Each subclass of `Record` declares its fields and sets `kind`, the name of the subclass in files.
    """

    kind: ClassVar[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the record as a dict to write as JSON: `schema` and `kind`, then the fields as declared."""
        return {"schema": SCHEMA, "kind": self.kind, **msgspec.to_builtins(self)}

    @classmethod
    def from_dict(cls, line: Mapping[str, Any], location: str) -> Self:
        """Return the record of one decoded JSON line. Unknown keys are ignored, because later versions may add keys.

        Args:
            line: the decoded line, with its keys `schema` and `kind`, which this method does not check.
            location: file and line number, for the error message.

        Raises:
            UsageError: a field is missing, or has the wrong type or range.
        """
        try:
            return msgspec.convert(line, cls)
        except msgspec.ValidationError as error:
            reason = explain_validation_error(error, line)
            raise UsageError(
                f"{location}: record of kind {cls.kind}: {reason}; correct or remove the line (`hpccoll schema` prints "
                "the valid fields), and measure again what is missing"
            ) from error


def explain_validation_error(error: msgspec.ValidationError, line: Mapping[str, Any]) -> str:
    """Return an error message with the wrong field's path (if known), its value in `line`, and msgspec's reason."""
    reason, _, path = str(error).partition(" - at `$.")
    path = path.rstrip("`")
    value: Any = line
    for key in re.findall(r"\w+", path):
        if isinstance(value, list):
            value = value[int(key)]
        elif isinstance(value, Mapping):
            value = value.get(key)
    return f"{path} is {str(value)[:40]!r}: {reason}" if path else reason
