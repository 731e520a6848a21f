"""Files of published schedules (MSCCL, MSCCL++, TE-CCL, TACCL), read, proven and converted to plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from hpccoll.errors import DeadlockError, PlanError, UsageError
from hpccoll.plan import Plan, Proof, check
from hpccoll.plan.interchange.json_plans import FORMAT as PLAN_FORMAT
from hpccoll.plan.published import (
    BlockProgram,
    PublishedProof,
    convert_to_plan,
    parse_published,
    prove_program,
    refuse_deadlock,
)
from hpccoll.private_files import read_limited

MOST_BYTES: Final = 2**28  # of a file
_NAME = str.maketrans(dict.fromkeys(" /:()[]{}'\"\\,;", "_"))


@dataclass(frozen=True, slots=True)
class PublishedVerdict:
    """The verdict on a file: the program and its proof, or the `failure`; its plan and `check`'s proof, or why not."""

    path: str
    program: BlockProgram | None
    proof: PublishedProof | None
    failure: str | None
    plan: Plan | None
    plan_proof: Proof | None
    no_plan: str | None


def is_published_file(name: str) -> bool:
    """Whether `name` has the suffix of a published schedule, .xml or .json, and is not the file of a plan."""
    return name.lower().endswith((".xml", ".json")) and not _is_plan_file(name)


def _is_plan_file(name: str) -> bool:
    """Whether a file that can be read begins as a plan in JSON does (plan/interchange/json_plans.py)."""
    try:
        with open(name, "rb") as file:  # noqa: PTH123 - `name` may be any string
            return PLAN_FORMAT.encode() in file.read(4096)
    except (OSError, ValueError):
        return False


def read_published(path: str) -> BlockProgram:
    """Return the program of a published schedule, named after its file, without proving it.

    Raises:
        UsageError: the file cannot be read, or has an unknown format.
        PlanError: a step names a rank, chunk or step that does not exist.
    """
    try:
        text = read_limited(path, MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; name a file of a published schedule") from error
    name = path.replace("\\", "/").rpartition("/")[2]
    return replace(parse_published(text, name), name=name.rpartition(".")[0].translate(_NAME))


def judge_published(path: str, buffered: int | None = None) -> PublishedVerdict:
    """Return the verdict on a published schedule; raise UsageError if the file cannot be read.

    Args:
        path: the file.
        buffered: a number of buffered messages per link with which the schedule must not deadlock; None for no limit.
    """
    program, proof, failure, plan, plan_proof, no_plan = None, None, None, None, None, None
    try:
        program = read_published(path)
        proof = prove_program(program)
        if buffered is not None:
            refuse_deadlock(program, buffered)
    except PlanError as error:
        failure = str(error)
    if program is not None and proof is not None:
        try:
            plan = convert_to_plan(program, proof.executed)
            plan_proof = check(plan)
        except PlanError as error:
            plan, no_plan = None, str(error)
    return PublishedVerdict(path, program, proof, failure, plan, plan_proof, no_plan)


def load_published_plan(path: str) -> Plan:
    """Return the proven plan of a published schedule.

    Raises:
        UsageError: the file cannot be read.
        DeadlockError, PlanError: the schedule is wrong, or no plan can express it; the message says which.
    """
    program = read_published(path)
    try:
        plan = convert_to_plan(program, prove_program(program).executed)
        check(plan)
    except DeadlockError as error:
        raise DeadlockError(f"{path}: {error}", error.stuck) from error
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error
    return plan
