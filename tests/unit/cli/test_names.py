"""Misspelled names on the command line, and the mesh syntax that train, estimate and parity share."""

from __future__ import annotations

import json

import pytest

from hpccoll.cli.main import main
from hpccoll.errors import UsageError
from hpccoll.parallel.mesh import Mesh, split_strategy_words


@pytest.mark.parametrize(
    ("words", "question"),
    [
        ("verify 1fb1", "did you mean 1f1b?"),
        ("verify ring", "the algorithm ring is all_gather/ring or all_reduce/ring or reduce_scatter/ring"),
        ("draw all_reduce/rign", "did you mean ring?"),
        ("simulate allreduc", "did you mean all_reduce or reduce?"),
        ("estimate llama3-8b", "did you mean llama-3-8b? or give --layers"),
        ("bnech", "did you mean bench?"),
    ],
)
def test_misspelled_names_are_answered_with_similar_ones(words, question, capsys):
    assert main(words.split()) == 2
    assert question in " ".join(capsys.readouterr().err.split())


def test_axes_are_written_with_or_without_an_equals_sign():
    assert Mesh.parse("dp2,tp=2") == Mesh.parse("dp=2,tp=2") == Mesh(dp=2, tp=2)
    assert Mesh.parse("dp,tp2", 8) == Mesh(dp=4, tp=2)
    with pytest.raises(UsageError, match="unknown strategy 'zz2'"):
        Mesh.parse("zz2")


def test_words_of_a_strategy_are_split_from_the_axes():
    assert split_strategy_words("tp=2, zero3,sp") == ("tp=2", ["zero3"], True)
    assert split_strategy_words("zero1") == ("dp", ["zero1"], False)


def test_estimate_takes_the_meshes_of_train(tmp_path):
    file = tmp_path / "estimate.jsonl"
    assert main(["estimate", "gpt2", "--mesh", "tp=2,dp,zero1,sp", "--ranks", "8", "--json", str(file)]) == 0
    record = json.loads(file.read_text().splitlines()[1])
    assert (record["strategy"], record["zero"], record["sequence_parallel"]) == ("dp=4,tp=2", 1, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--mesh dp=2,tp=2 --ranks 8", "--mesh dp=2,tp=2 has 4 ranks, not --ranks 8"),
        ("--mesh dp=2,zero1 --zero 2", "zero1 sets --zero 1, not --zero 2"),
    ],
)
def test_estimate_refuses_contradictions(words, message, capsys):
    assert main(["estimate", "gpt2", *words.split()]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
