"""Files of plans: hpccoll's own (JSON), and published schedules (MSCCL, MSCCL++, TE-CCL, TACCL), which become plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from hpccoll.errors import DeadlockError, PlanError, UsageError
from hpccoll.plan import Plan, Proof, check
from hpccoll.plan.interchange.json_plans import FORMAT, from_json
from hpccoll.plan.published import (
    BlockProgram,
    PublishedProof,
    convert_to_plan,
    parse_published,
    prove_program,
    refuse_deadlock,
)
from hpccoll.private_files import read_limited

SUFFIXES: Final = (".json", ".xml")
MOST_BYTES: Final = 2**28  # of a file
_NAME = str.maketrans(dict.fromkeys(" /:()[]{}'\"\\,;", "_"))


@dataclass(frozen=True, slots=True)
class PublishedVerdict:
    """The result of reading, proving and converting the file of a published schedule.

    `program` is set if every step of the file is possible, and `proof` if the schedule is right. `failure` states why
    `program` or `proof` is not set, or that the schedule deadlocks with the given number of buffers. `plan` and
    `plan_proof` are set if a plan can express the proven schedule; `no_plan` states why none can. A field that is not
    set is None.
    """

    path: str
    program: BlockProgram | None
    proof: PublishedProof | None
    failure: str | None
    plan: Plan | None
    plan_proof: Proof | None
    no_plan: str | None


def is_published_file(name: str) -> bool:
    """Whether the file `name` has the suffix .xml or .json, and does not begin as hpccoll's own files of plans do."""
    return has_plan_suffix(name) and not _begins_as_plan(name)


def has_plan_suffix(name: str) -> bool:
    """Whether `name` has the suffix of a file that contains a plan or a published schedule."""
    return name.lower().endswith(SUFFIXES)


def _begins_as_plan(name: str) -> bool:
    """Whether the file `name` can be read and begins as hpccoll's JSON files of plans do, in any version."""
    try:
        with open(name, "rb") as file:  # noqa: PTH123 - `name` may be any string
            return FORMAT.rpartition("/")[0].encode() in file.read(4096)
    except (OSError, ValueError):
        return False


def _read_text(path: str) -> str:
    """Return the text of a file; raise UsageError if it cannot be read."""
    try:
        return read_limited(path, MOST_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read: {reason}; name a file of a plan or a published schedule") from error


def _get_stem(path: str) -> str:
    """Return the name of the file `path` without its folder and suffix."""
    return path.replace("\\", "/").rpartition("/")[2].rpartition(".")[0]


def read_plan(path: str) -> Plan:
    """Return the plan in a JSON file, without proving it; raise UsageError or PlanError if the file is wrong."""
    return from_json(_read_text(path), path)


def read_published(path: str) -> BlockProgram:
    """Return the program of a published schedule, named after its file, without proving it.

    Raises:
        UsageError: the file cannot be read, or has an unknown format.
        PlanError: a step names a rank, chunk or step that does not exist.
    """
    program = parse_published(_read_text(path), path.rpartition("/")[2])
    return replace(program, name=_get_stem(path).translate(_NAME))


def judge_published(path: str, buffered: int | None = None) -> PublishedVerdict:
    """Read a published schedule, prove it and convert it to a plan; return the results, or the reason of a failure.

    `buffered` is a number of buffered messages per link with which the schedule must not deadlock; None sets no limit.

    Raises UsageError if the file cannot be read or has an unknown format.
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


def load_plan(path: str) -> Plan:
    """Return the plan in a file, named after the file; a published schedule is proven and converted.

    Raises:
        UsageError: the file cannot be read, or contains neither a plan nor a published schedule.
        PlanError: the schedule is wrong, or no plan can express it; the message says which.
    """
    if is_published_file(path):
        return _load_published_plan(path)
    return replace(read_plan(path), algorithm=_get_stem(path))


def _load_published_plan(path: str) -> Plan:
    """Return the plan of a published schedule in the file `path`, after proving the schedule.

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
