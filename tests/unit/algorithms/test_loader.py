"""A user's own algorithm: loaded, registered, and refused with the place of its fault."""

from __future__ import annotations

import textwrap

import pytest

from hpccoll.algorithms import get_algorithm
from hpccoll.algorithms.loader import is_file_reference, is_user_defined, load_algorithm, prove_algorithm
from hpccoll.cli.main import main
from hpccoll.errors import HpccollError, PlanError, UsageError
from hpccoll.plan import Operation

RING = """
from hpccoll.plan.rounds import Rounds
from hpccoll.plan.step import Move, Op, Span


def {name}(rank, n):
    dest, source = (rank + 1) % n, (rank - 1) % n

    def at(t):
        if t < n - 1:
            return [Move(dest, source, Span(rank - t - 1, 1, n), Span(rank - t - 2, 1, n), Op.OWN_FIRST)]
        s = t - n + 1
        return [Move(dest, source, Span(rank - s, 1, n), Span(rank - s - 1, 1, n))]

    return Rounds(2 * (n - 1), n, at)
"""


@pytest.fixture
def write(tmp_path):
    def writing(text: str, name: str = "mine.py") -> str:
        file = tmp_path / name
        file.write_text(textwrap.dedent(text))
        return str(file)

    return writing


def change_ring(old: str, new: str) -> str:
    """Return the source of the ring with `old` replaced by `new`."""
    text = RING.format(name="my_all_reduce")
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("my_all_reduce", Operation.ALL_REDUCE),
        ("all_reduce_of_mine", Operation.ALL_REDUCE),
        ("the_reduce_scatter", Operation.REDUCE_SCATTER),
        ("my_reduce", Operation.REDUCE),
        ("all_to_all2", Operation.ALL_TO_ALL),
    ],
)
def test_the_name_says_the_operation(write, name, operation):
    own = load_algorithm(f"{write(RING.format(name=name))}:{name}")
    assert (own.operation, own.name, own.cost) == (operation, name, None)
    assert is_user_defined(own)
    assert get_algorithm(operation, name) is own
    assert not is_user_defined(get_algorithm(Operation.ALL_REDUCE, "ring"))


def test_the_decorator_says_operation_name_and_cost(write):
    text = RING.format(name="spin").replace(
        "def spin", "@algorithm(Operation.ALL_REDUCE, 'spinning', all_reduce_cost)\ndef spin"
    )
    head = "from hpccoll.algorithms import algorithm\nfrom hpccoll.algorithms.ring import all_reduce_cost\n"
    path = write(head + "from hpccoll.plan.operation import Operation\n" + text)
    own = load_algorithm(f"{path}:spin")
    assert own.full_name == "all_reduce/spinning"
    assert prove_algorithm(own, 5).cost.steps == 8
    assert load_algorithm(f"{path}:spin").full_name == "all_reduce/spinning"  # once more is not a clash


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_a_right_one_is_proven(write, ranks):
    own = load_algorithm(f"{write(RING.format(name='my_all_reduce'))}:my_all_reduce")
    assert prove_algorithm(own, ranks).cost.steps == 2 * (ranks - 1)


def test_an_edited_file_is_read_again(write):
    path = write(RING.format(name="my_all_reduce"))
    prove_algorithm(load_algorithm(f"{path}:my_all_reduce"), 3)
    write(change_ring("OWN_FIRST", "COPY"))
    with pytest.raises(PlanError):
        prove_algorithm(load_algorithm(f"{path}:my_all_reduce"), 3)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("Op.OWN_FIRST", "Op.COPY", ["on 3 ranks", "rank 0 chunk 0", "missing"]),
        (
            "Span(rank - s - 1, 1, n))",
            "Span(rank - s - 1, 1, n), Op.OWN_FIRST)",
            ["rank 0 chunk", "doubled or misplaced"],
        ),
        (
            "rank - t - 2, 1, n)",
            "rank - t - 2, 2, n)",
            ["round 0: rank 0", "expects 2 chunks from rank 2, which sends 1"],
        ),
        (
            "dest, source = (rank + 1) % n, (rank - 1) % n",
            "dest = source = (rank + 1) % n",
            ["round 0", "sends to 1, which receives from 2"],
        ),
        ("Rounds(2 * (n - 1)", "Rounds(2 * (n - 1) - 1", ["chunk", "missing"]),
        ("        s = t - n + 1", "        s = t - n + 1 + [0, 1][t]", ["IndexError", "mine.py, line 12, in at"]),
        (
            "    dest, source =",
            "    if rank == 0: pass\n    dest, source =",
            ["ValueError", "mine.py, line 7, in my_all_reduce"],
        ),
        ("    return Rounds(2 * (n - 1), n, at)", "    at", ["returned NoneType; return Rounds"]),
        (
            "return [Move(dest, source, Span(rank - s",
            "return (Move(dest, source, Span(rank - s",
            ["SyntaxError", "mine.py, line"],
        ),
        ("        s = t", "        return None\n        s = t", ["round 2: at(2) must return a list of Move"]),
        ("    dest, source =", "    import sys; sys.exit(3)\n    dest, source =", ["SystemExit: 3", "line 7"]),
        ("    def at", "    dest = dest if len(rank) > 1 else 0 * dest\n\n    def at", ["round 0: rank 0 alone"]),
        ("from hpccoll.plan.rounds", "from hpccoll.plan.runds", ["ModuleNotFoundError", "mine.py, line 2"]),
    ],
)
def test_a_wrong_one_is_refuted_by_place(write, capsys, old, new, told):
    path = write(change_ring(old, new))
    reference = f"{path}:my_all_reduce"
    with pytest.raises(HpccollError) as caught:
        prove_algorithm(load_algorithm(reference), 3)
    assert caught.value.exit_status == 1
    for words in told:
        assert words in str(caught.value)
    assert main(["verify", reference, "--ranks", "3"]) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    for words in told:
        assert words in error


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("{}:your_all_reduce", "has no function 'your_all_reduce'; it has my_all_reduce, turn"),
        ("{}:Rounds", "has no function 'Rounds'"),
        ("{}:turn", "does not name its operation"),
        ("{}", ":my_all_reduce"),
        ("nowhere.py:my_all_reduce", "nowhere.py cannot be read: No such file"),
    ],
)
def test_what_is_not_there_is_usage(write, capsys, reference, told):
    path = write(RING.format(name="my_all_reduce") + "\n\ndef turn(rank, n):\n    return None\n")
    assert main(["verify", reference.format(path), "--ranks", "2"]) == 2
    assert told in capsys.readouterr().err
    assert main(["export", reference.format(path), "-o", "x.json"]) == 2
    assert told in capsys.readouterr().err


def test_a_built_in_algorithm_is_not_replaced(write):
    text = RING.format(name="ring").replace("def ring", "@algorithm(Operation.ALL_REDUCE, 'ring')\ndef ring")
    head = "from hpccoll.algorithms import algorithm\nfrom hpccoll.plan.operation import Operation\n"
    with pytest.raises(UsageError, match="all_reduce/ring, which is built in"):
        load_algorithm(f"{write(head + text)}:ring")


def test_references_are_told_from_names():
    assert all(map(is_file_reference, ("a.py:f", "/x/a.py:f", "a.py")))
    assert not any(map(is_file_reference, ("all_reduce/ring", "ring", "auto", "a.json")))
