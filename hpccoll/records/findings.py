"""Records of kind `finding`: results of checks, and conclusions from measurements."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, ClassVar

from hpccoll.records.record import Record, about


class Severity(Enum):
    """The severity of a finding, the least severe first."""

    OK = "ok"  # no problem
    NOTE = "note"  # worth knowing; nothing to fix
    WARNING = "warning"  # makes programs slow, or makes them fail in some cases
    PROBLEM = "problem"  # something does not work, or results may be wrong

    @property
    def level(self) -> int:
        """A number that is larger for a more severe finding."""
        return list(Severity).index(self)


class Finding(Record, frozen=True):
    """The outcome of one check (`hpccoll doctor`), or a conclusion from results (`hpccoll report`)."""

    kind: ClassVar[str] = "finding"

    area: Annotated[str, about("Its subject, such as mpi, binding, link or noise.")]
    severity: Severity
    found: Annotated[str, about("The observation, in one sentence.")]
    evidence: Annotated[str, about("A value, a file, or a command and how it ended.")]
    remedy: Annotated[str | None, about("Commands and settings; null if nothing needs to be done.")] = None
    provides: Annotated[tuple[str, ...], about("The values of --require that it satisfies.")] = ()
    hosts: Annotated[
        tuple[str, ...], about("Affected host names; empty for the whole job, and if there is only one host.")
    ] = ()
