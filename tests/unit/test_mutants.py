"""The mutants of tests/mutation fit this tree: their lines exist, and so do the tests that find them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mutation.mutants import Mutant, draw_mutants, read_mutants

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = read_mutants(ROOT / "tests" / "mutation" / "mutants.jsonl")


def test_mutants_fit_the_tree():
    stale = [mutant for mutant in MUTANTS if not mutant.is_applicable(ROOT) or mutant.old == mutant.new]
    assert not stale, "draw others in their place: python -m tests.mutation --help"
    assert len(MUTANTS) >= 140
    assert len(set(MUTANTS)) == len(MUTANTS)


@pytest.mark.parametrize("test", sorted({re.sub(r"\[.*", "", mutant.test) for mutant in MUTANTS}))
def test_the_test_of_a_mutant_exists(test):
    path, _, name = test.partition("::")
    assert name.rpartition("::")[2] in (ROOT / path).read_text()


def test_drawn_mutants_are_planted_and_refused(tmp_path):
    (tmp_path / "f.py").write_text("def f(x, y):\n    if x < y:\n        return x + 1\n    return 0\n")
    mutants = draw_mutants(tmp_path, 10, 1, "*.py")
    assert {mutant.new.strip() for mutant in mutants} == {
        "if x <= y:",
        "if not (x < y):",
        "return x - 1",
        "return x + 2",
        "return 1",
    }
    for mutant in mutants:
        assert mutant.is_applicable(tmp_path)
    mutants[0].apply(tmp_path)
    assert mutants[0].new in (tmp_path / "f.py").read_text()
    with pytest.raises(LookupError, match="has no line"):
        Mutant("f.py", "return 2", "return 3").apply(tmp_path)
