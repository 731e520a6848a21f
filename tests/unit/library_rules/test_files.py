"""The files of rules for Open MPI, MPICH and NCCL, read back as each library reads them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpccoll.errors import UnavailableError
from hpccoll.library_rules import LibraryAlgorithm, LibraryRule, LibraryRules, mpich, nccl, open_mpi
from hpccoll.plan import Operation

RANKS = 6
ORIGIN = ("Written by `hpccoll tune --export` on 2026-11-28.",)


def make_rules(*rules: LibraryRule, nodes: int = 1) -> LibraryRules:
    """Return rules for RANKS ranks."""
    return LibraryRules(ORIGIN, RANKS, nodes, rules)


def rule(operation: Operation, first: int, last: int | None, algorithm: LibraryAlgorithm) -> LibraryRule:
    """Return a rule that was measured at one size."""
    return LibraryRule(operation, first, last, algorithm, (1.5,))


OPEN_MPI_RULES = (
    rule(Operation.ALL_REDUCE, 0, 512, LibraryAlgorithm("basic_linear", 1, "tuned")),
    rule(Operation.ALL_REDUCE, 8193, None, LibraryAlgorithm("ring", 4, "tuned")),
    rule(Operation.REDUCE_SCATTER, 33, 512, LibraryAlgorithm("butterfly", 4, "tuned")),
)


def read_classic(text: str) -> dict[int, dict[int, list[tuple[int, int]]]]:
    """Return (first byte, algorithm) by collective and ranks, read as Open MPI 5 does: numbers outside comments."""
    assert not text.startswith("rule-file-version"), "version 1, which has no fourth parameter"
    numbers = iter(int(each) for line in text.splitlines() for each in line.partition("#")[0].split())
    found: dict[int, dict[int, list[tuple[int, int]]]] = {}
    for _ in range(next(numbers)):
        by_ranks = found.setdefault(next(numbers), {})
        for _ in range(next(numbers)):
            sizes = by_ranks.setdefault(next(numbers), [])
            for _ in range(next(numbers)):
                sizes.append((next(numbers), next(numbers)))
                assert (next(numbers), next(numbers)) == (0, 0), "fan-out and segment"
            assert sizes[0][0] == 0, "Open MPI requires a first rule for size 0"
    assert next(numbers, None) is None
    return found


def select_classic(found: dict[int, dict[int, list[tuple[int, int]]]], collective: int, ranks: int, size: int) -> int:
    """Return the algorithm that Open MPI 5 takes: the last entry whose ranks and first byte are not larger."""
    by_ranks = found[collective]
    chosen = next(iter(by_ranks.values()))
    for least, sizes in by_ranks.items():
        if least <= ranks:
            chosen = sizes
    return [algorithm for first, algorithm in chosen if first <= size][-1]


def test_open_mpi_takes_the_algorithms_of_the_classic_file_for_these_ranks_only() -> None:
    found = read_classic(open_mpi.format_rules_file(make_rules(*OPEN_MPI_RULES)))
    expected = {0: 1, 512: 1, 513: 0, 8192: 0, 8193: 4, 2**30: 4}
    for size, algorithm in expected.items():
        assert select_classic(found, 2, RANKS, size) == algorithm
        for others in (2, RANKS - 1, RANKS + 1, 100):
            assert select_classic(found, 2, others, size) == 0
    assert [select_classic(found, 13, RANKS, size) for size in (0, 32, 33, 512, 513)] == [0, 0, 4, 4, 0]


def test_the_classic_file_says_what_it_is_from() -> None:
    text = open_mpi.format_rules_file(make_rules(*OPEN_MPI_RULES))
    assert text.startswith(f"# {ORIGIN[0]}\n")
    assert "# all_reduce 0 B to 512 B: tuned/basic_linear, 1.50x as fast as the default" in text


def test_the_json_file_has_the_fields_of_version_3() -> None:
    data = json.loads(open_mpi.format_rules_json(make_rules(*OPEN_MPI_RULES)))
    assert set(data) == {"rule_file_version", "module", "collectives"}
    assert (data["rule_file_version"], data["module"]) == (3, "tuned")
    assert set(data["collectives"]) == {"allreduce", "reducescatterblock"}
    (only,) = data["collectives"]["allreduce"]
    assert (only["comm_size_min"], only["comm_size_max"]) == (RANKS, RANKS)
    assert only["rules"] == [
        {"msg_size_min": 0, "msg_size_max": 512, "alg": 1},
        {"msg_size_min": 8193, "msg_size_max": "inf", "alg": 4},
    ]


def test_han_passes_messages_with_a_rule_to_tuned() -> None:
    assert open_mpi.format_han_file(make_rules(*OPEN_MPI_RULES)) == "", "on one node han does not run"
    text = open_mpi.format_han_file(make_rules(*OPEN_MPI_RULES, nodes=2))
    words = [word for line in text.splitlines() for word in line.partition("#")[0].split()]
    # One collective (allreduce; han leaves reduce_scatter to tuned), at the global level, for three numbers of ranks.
    assert words[:5] == ["1", "2", "1", "2", "3"]
    assert words[5:9] == ["1", "1", "0", "han"]
    assert words[9:17] == [str(RANKS), "3", "0", "tuned", "513", "han", "8193", "tuned"]
    assert words[17:] == [str(RANKS + 1), "1", "0", "han"]


def test_han_counts_the_bytes_of_one_rank_in_an_all_gather() -> None:
    algorithm = LibraryAlgorithm("ring", 4, "tuned")
    text = open_mpi.format_han_file(make_rules(rule(Operation.ALL_GATHER, 6001, None, algorithm), nodes=2))
    assert "\n0 han\n1001 tuned\n" in text


def test_nccl_reads_ten_fields_a_line() -> None:
    algorithm = LibraryAlgorithm("tree", 0, "ll128")
    text = nccl.format_tuner_csv(make_rules(rule(Operation.ALL_REDUCE, 0, None, algorithm), nodes=2))
    lines = text.splitlines()
    assert all(len(line) < 255 for line in lines), "the plugin's buffer"
    (row,) = csv.reader(line for line in lines if not line.startswith("#"))
    assert row == ["allreduce", "0", str(2**63 - 1), "tree", "ll128", "-1", "2", str(RANKS), "-1", "-1"]


# A small tree of each kind, as an MPICH library contains them between other bytes.
ALGORITHMS: dict[str, Any] = {
    "collective=allreduce": {
        "comm_type=intra": {"algorithm=MPIR_Allreduce_intra_recursive_doubling": {}},
        "comm_type=inter": {"algorithm=MPIR_Allreduce_inter_reduce_exchange_bcast": {}},
    },
    "collective=barrier": {"comm_type=intra": {"algorithm=MPIR_Barrier_intra_smp": {}}},
}
COMPOSITIONS: dict[str, Any] = {
    "collective=allreduce": {"comm_type=intra": {"composition=MPIDI_Allreduce_intra_composition_alpha": {}}},
    "collective=barrier": {"comm_type=intra": {"composition=MPIDI_Barrier_intra_composition_alpha": {}}},
}


def decide(tree: dict[str, Any], call: dict[str, Any]) -> str:
    """Return the algorithm or composition that MPICH takes for a call: the first condition that holds, at each level.

    `call` has the value of each condition with `=` and of each size.
    """
    while True:
        for key, below in tree.items():
            if key.startswith(("algorithm=", "composition=")):
                return key
            if holds(key, call):
                tree = below
                break
        else:
            raise AssertionError(f"no condition of {list(tree)} holds, so MPICH would have no algorithm")


def holds(condition: str, call: dict[str, Any]) -> bool:
    """Whether a condition of MPICH's trees holds for a call."""
    name, operator, value = re.findall(r"^(\w+)(<=|=|<)(\w+)$", condition)[0]
    if value == "any":
        return True
    if condition == "comm_size=node_comm_size":
        return bool(call["nodes"] == 1)
    if condition == "count<pow2":
        return bool(call["count"] < 4)  # the largest power of two within RANKS
    return bool(call[name] <= int(value) if operator == "<=" else call[name] == value)


def make_call(**more: Any) -> dict[str, Any]:
    """Return a call of all_reduce of 1 KiB on RANKS ranks of one node."""
    call = {"collective": "allreduce", "comm_type": "intra", "comm_size": RANKS, "nodes": 1, "comm_hierarchy": "parent"}
    call |= {"avg_msg_size": 1024, "count": 256, "is_commutative": "yes", "is_op_built_in": "yes"}
    return call | more


HALVING = LibraryAlgorithm("reduce_scatter_allgather", 0, "beta")
MPICH_RULES = (rule(Operation.ALL_REDUCE, 513, 8192, HALVING),)
CHOSEN = "algorithm=MPIR_Allreduce_intra_reduce_scatter_allgather"
OTHERS = "algorithm=MPIR_Allreduce_intra_recursive_doubling"


@pytest.mark.parametrize("nodes", [1, 2])
def test_mpich_takes_the_rules_where_they_were_measured_and_its_default_elsewhere(nodes: int) -> None:
    trees = mpich.add_rules(mpich.DecisionTrees(ALGORITHMS, COMPOSITIONS), make_rules(*MPICH_RULES, nodes=nodes))
    assert decide(trees.algorithms, make_call(nodes=nodes)) == CHOSEN
    assert decide(trees.compositions, make_call(nodes=nodes)).endswith("composition_beta")
    different: list[dict[str, Any]] = [
        {"comm_size": RANKS - 1},
        {"comm_size": RANKS + 1},
        {"nodes": 3 - nodes},
        {"avg_msg_size": 512},
        {"avg_msg_size": 8193},
        {"count": 3},
        {"is_commutative": "no"},
        {"is_op_built_in": "no"},
    ]
    for change in different:
        call = make_call(nodes=nodes) | change
        assert decide(trees.algorithms, call) == OTHERS, change
        assert decide(trees.compositions, call).endswith("composition_alpha"), change
    inter = make_call(comm_type="inter")
    assert decide(trees.algorithms, inter) == decide(ALGORITHMS, inter)


def test_a_composition_alone_leaves_the_algorithm_to_mpich() -> None:
    only = rule(Operation.ALL_REDUCE, 0, None, LibraryAlgorithm("", 0, "gamma"))
    trees = mpich.add_rules(mpich.DecisionTrees(ALGORITHMS, COMPOSITIONS), make_rules(only))
    assert decide(trees.algorithms, make_call()) == OTHERS
    assert decide(trees.compositions, make_call()).endswith("composition_gamma")
    assert decide(trees.compositions, make_call(is_commutative="no")).endswith("composition_alpha")


def test_parameters_stand_below_their_algorithm() -> None:
    only = rule(Operation.BARRIER, 0, None, LibraryAlgorithm("k_dissemination", 0, "beta"))
    trees = mpich.add_rules(mpich.DecisionTrees(ALGORITHMS, COMPOSITIONS), make_rules(only))
    text = mpich.format_tree(trees.algorithms)
    assert re.search(r'"algorithm=MPIR_Barrier_intra_k_dissemination": \{\s*"k=2": \{\}', text)
    assert "single_phase_recv" not in text


def test_the_default_trees_are_those_in_the_library(tmp_path: Path) -> None:
    packed = [json.dumps(each, separators=(",", ":")).encode() for each in (COMPOSITIONS, ALGORITHMS)]
    shared = b'{"collective=bcast":{"comm_type=intra":{"algorithm=MPIDI_POSIX_mpi_bcast_release_gather":{}}}}'
    library = tmp_path / "libmpi.so"
    library.write_bytes(b"\x7fELF\0" + b"\0".join((shared, *packed)) + b"\0tail")
    assert mpich.read_default_trees(library) == mpich.DecisionTrees(ALGORITHMS, COMPOSITIONS)
    library.write_bytes(b"\x7fELF\0")
    with pytest.raises(UnavailableError, match=r"use a release of MPICH from 5\.0 on"):
        mpich.read_default_trees(library)


def test_a_file_never_ends_at_the_end_of_a_page() -> None:
    """MPICH maps the file into memory, and reads on to the first zero."""
    for count in range(4060, 4100):
        assert len(mpich.format_tree({"x" * count: {}})) % mpich.PAGE
