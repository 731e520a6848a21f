"""Reads a schedule file of MSCCL, MSCCL++, TE-CCL, TACCL or SCCL; the content tells which format it has."""

from __future__ import annotations

import json

from hpccoll.errors import HpccollError, UsageError
from hpccoll.plan.published.block_program import BlockProgram
from hpccoll.plan.published.flow_reader import is_taccl, is_teccl, parse_taccl, parse_teccl
from hpccoll.plan.published.msccl_reader import parse_msccl
from hpccoll.plan.published.mscclpp_reader import parse_mscclpp


def parse_published(text: str, name: str) -> BlockProgram:
    """Return the program of a schedule of MSCCL, MSCCL++, TE-CCL, TACCL or SCCL, without proving it.

    `name` is the name of the file in error messages.

    Raises:
        UsageError: the text is in none of the formats, or a value is missing or unknown.
        PlanError: a step names a rank, chunk or step that does not exist, or a chunk is sent before it arrives.
    """
    try:
        return _parse(text, name)
    except HpccollError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, ArithmeticError, RecursionError) as error:
        raise UsageError(f"{name} has a missing or wrong value: {type(error).__name__}: {error}") from error


def _parse(text: str, name: str) -> BlockProgram:
    """Return the program of a file; a missing or wrong value may raise any exception of its conversion."""
    if text.lstrip().startswith("<"):
        return parse_msccl(text, name)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is neither XML nor JSON: {error}") from error
    if isinstance(document, dict):
        if is_teccl(document):
            return parse_teccl(document, name)
        if is_taccl(document):
            return parse_taccl(document, name)
        if "gpus" in document and "collective" in document:
            return parse_mscclpp(document, name)
    raise UsageError(
        f"{name} is no schedule of MSCCL, MSCCL++, TE-CCL, TACCL or SCCL: it lacks the keys of all of them"
    )
