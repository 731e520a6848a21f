"""Open MPI's files of rules: the classic file and the JSON file of its component `tuned`, and the file of `han`.

Every release of Open MPI reads the classic file; 6.0 and later also read the JSON file (version 3). The classic file
and the JSON file select an algorithm of the component `tuned`. On several nodes, the component `han` carries out most
collectives instead of `tuned`, and the file of `han` passes those messages to `tuned` for which there is a rule.

Gather and scatter have no rules: `tuned` finds the size of their messages from arguments that some ranks need not pass,
so that ranks could select different algorithms.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpccoll.library_rules.rules import LibraryRules
from hpccoll.plan import Operation

TUNED, HAN = "tuned", "han"
# For each operation: its number in Open MPI's classic file, and its names in the JSON file and in environment
# variables.
COLLECTIVES = {
    Operation.ALL_GATHER: (0, "allgather", "allgather"),
    Operation.ALL_REDUCE: (2, "allreduce", "allreduce"),
    Operation.ALL_TO_ALL: (3, "alltoall", "alltoall"),
    Operation.BARRIER: (6, "barrier", "barrier"),
    Operation.BROADCAST: (7, "bcast", "bcast"),
    Operation.REDUCE: (11, "reduce", "reduce"),
    Operation.REDUCE_SCATTER: (13, "reducescatterblock", "reduce_scatter_block"),
}
HAN_OPERATIONS = (
    Operation.ALL_GATHER, Operation.ALL_REDUCE, Operation.BARRIER, Operation.BROADCAST, Operation.REDUCE
)  # fmt: skip


def format_rules_file(rules: LibraryRules) -> str:
    """Return the rules as the text of Open MPI's classic file, which every release reads.

    A rule in the classic file holds for its number of ranks and all larger numbers up to the next rule. Each collective
    has two more rules, for fewer and for more ranks than measured, which leave the choice of algorithm to Open MPI.
    """
    lines = [*(f"# {line}" for line in rules.describe()), f"{len(rules.operations)} # collectives"]
    for operation in rules.operations:
        number, name, _ = COLLECTIVES[operation]
        segments = list(rules.list_segments(operation))
        lines += [f"{number} # {name}", "3 # numbers of ranks"]
        lines += ["0 # fewer ranks", "1 # range of sizes", "0 0 0 0"]
        lines += [
            f"{rules.ranks} # ranks",
            f"{len(segments)} # ranges of sizes: first byte, algorithm, fan-out, segment",
        ]
        lines += [f"{first} {rule.algorithm.number if rule else 0} 0 0" for first, rule in segments]
        lines += [f"{rules.ranks + 1} # more ranks", "1 # range of sizes", "0 0 0 0"]
    return "\n".join(lines) + "\n"


def format_rules_json(rules: LibraryRules) -> str:
    """Return the rules as the text of Open MPI's JSON file, version 3, which releases from 6.0 on read.

    JSON has no comments, so the file does not contain the origin of the rules.
    """
    collectives = {COLLECTIVES[operation][1]: [_make_json_set(rules, operation)] for operation in rules.operations}
    return json.dumps({"rule_file_version": 3, "module": TUNED, "collectives": collectives}, indent=1) + "\n"


def _make_json_set(rules: LibraryRules, operation: Operation) -> dict[str, Any]:
    """Return the rules of an operation for the measured number of ranks, as an object of the JSON file."""
    entries = [
        {
            "msg_size_min": rule.first,
            "msg_size_max": "inf" if rule.last is None else rule.last,
            "alg": rule.algorithm.number,
        }
        for rule in rules.list_rules(operation)
    ]
    return {"comm_size_min": rules.ranks, "comm_size_max": rules.ranks, "rules": entries}


def format_han_file(rules: LibraryRules) -> str:
    """Return the text of the file for Open MPI's component `han`, which passes messages with a rule to `tuned`.

    The result is empty if no rule needs the file, as on a single node.
    """
    operations = [operation for operation in rules.operations if operation in HAN_OPERATIONS] if rules.nodes > 1 else []
    if not operations:
        return ""
    lines = [f"{len(operations)} # collectives"]
    for operation in operations:
        lines += [f"{COLLECTIVES[operation][0]} # {COLLECTIVES[operation][2]}", "1 # level", "2 # global communicator"]
        lines += ["3 # numbers of ranks", "1 1", f"0 {HAN}", str(rules.ranks)]
        lines += list(_make_han_sizes(rules, operation))
        lines += [str(rules.ranks + 1), "1", f"0 {HAN}"]
    return "\n".join(lines) + "\n"


def _make_han_sizes(rules: LibraryRules, operation: Operation) -> Iterator[str]:
    """Yield the lines of `han`'s file for one operation: ranges of message sizes, and the component for each range.

    Sizes are in bytes; for an all_gather, `han` counts the bytes of one rank's block.
    """
    segments, blocks = list(rules.list_segments(operation)), rules.ranks if operation is Operation.ALL_GATHER else 1
    yield f"{len(segments)} # ranges of sizes: first byte, component"
    for first, rule in segments:
        yield f"{math.ceil(first / blocks)} {TUNED if rule else HAN}"


def name_han_file(path: Path) -> Path:
    """Return the path of the file for `han`, FILE.han, that belongs to the file of rules `path`."""
    return path.with_suffix(".han")


def list_variables(path: Path, *, has_han_file: bool) -> dict[str, str]:
    """Return the environment variables by which Open MPI reads the file of rules `path`.

    With `has_han_file`, the variables for the file of the component `han` are included.
    """
    variables = {
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_dynamic_rules_filename": str(path.absolute()),
    }
    if has_han_file:
        variables |= {
            "OMPI_MCA_coll_han_use_dynamic_file_rules": "1",
            "OMPI_MCA_coll_han_dynamic_rules_filename": str(name_han_file(path).absolute()),
        }
    return variables
