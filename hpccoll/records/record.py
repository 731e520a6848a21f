"""The base class of records, and the types that their fields share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

import msgspec
from msgspec import Meta, Struct

from hpccoll.errors import UsageError

SCHEMA = "hpccoll/1"

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]  # a time, a rate or a ratio

RecordT = TypeVar("RecordT", bound="Record")


def about(description: str) -> Meta:
    """Return the annotation that describes a field in the JSON Schema."""
    return Meta(description=description)


class Record(Struct, frozen=True):
    """One line of a result file; the fields of a subclass are the keys of the line after `schema` and `kind`."""

    kind: ClassVar[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the record as it is written: `schema` and `kind`, then the fields in order of declaration."""
        return {"schema": SCHEMA, "kind": self.kind, **msgspec.to_builtins(self)}

    @classmethod
    def from_dict(cls, line: Mapping[str, Any], location: str) -> Self:
        """Return the record that `as_dict` wrote; unknown keys are ignored, as later versions may add some.

        Args:
            line: the decoded line.
            location: file and line, for the message.

        Raises:
            UsageError: a field is missing, or has a value of the wrong type or range; names the field and the value.
        """
        try:
            return msgspec.convert(line, cls)
        except msgspec.ValidationError as error:
            raise UsageError(
                f"{location}: record of kind {cls.kind}: {_explain_error(error, line)}; correct or remove the line "
                "(`hpccoll schema` prints the valid fields), and measure again what is missing"
            ) from error


def _explain_error(error: msgspec.ValidationError, line: Mapping[str, Any]) -> str:
    """Return what is wrong with which field, and its value: msgspec names the path of the field but not the value."""
    reason, _, path = str(error).partition(" - at `$.")
    path = path.rstrip("`")
    value: Any = line
    for key in re.findall(r"\w+", path):
        if isinstance(value, list):
            value = value[int(key)]
        elif isinstance(value, Mapping):
            value = value.get(key)
    return f"{path} is {str(value)[:40]!r}: {reason}" if path else reason
