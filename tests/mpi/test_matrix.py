"""Every collective by every algorithm has the bits of replay of the same plan.

The tests combine every two values of algorithm, dtype, reduction, size, place (in or out of place) and way of calling;
`make test-full` runs all combinations of all factors but the size. Hypothesis draws counts and roots.
"""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpccoll
from tests.mpi.calls import check
from tests.mpi.cases import NAMES, OPS, PATHS, Case, legal, variants
from tests.mpi.pairwise import covering, pairs

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 31, 61, 127, 257)
SIZES = ("none", "one", "one fewer", "as many", "one more", "prime", "thousands")
VARIANTS = variants()
LEGAL = [
    (name, dtype, op)
    for name, dtype, op in product(VARIANTS, NAMES, ("none", *OPS))
    if legal(VARIANTS[name].operation, dtype, op)
]
FREE = (SIZES, (False, True), PATHS, (False, True))
SAMPLE = covering(LEGAL, FREE, seed=1)


def counts(size: str, n: int, turn: int) -> st.SearchStrategy[int]:
    """Return a strategy for element counts of the class `size` on n ranks; `turn` varies the counts from row to row."""
    if size == "prime":
        return st.integers(0, 100).map(lambda drawn: PRIMES[(drawn + turn) % len(PRIMES)])
    if size == "thousands":
        return st.integers(0, 2999).map(lambda drawn: 1000 + (drawn + 911 * turn) % 3000)
    return st.just({"none": 0, "one": 1, "one fewer": n - 1, "as many": n, "one more": n + 1}[size])


@pytest.fixture(scope="module")
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


def run(hpc, comm, rows, data):
    """Draw the count and the root of each row of the sample, and check the results of all rows."""
    n, cases = comm.size, []
    for turn, (name, dtype, op, size, in_place, path, special) in enumerate(rows):
        count = data.draw(counts(size, n, turn), label="count")
        root = (data.draw(st.integers(0, n - 1), label="root") + turn) % n
        cases.append(Case(VARIANTS[name], dtype, op, count, root, in_place, path, special, seed=turn))
    check(hpc, comm, cases)


def test_the_sample_covers_every_pair():
    met = set().union(*map(pairs, SAMPLE))
    assert set().union(*map(pairs, LEGAL)) <= met
    for first, second in product(LEGAL, range(len(FREE))):
        for i, value in enumerate(first):
            assert {(i, value, 3 + second, other) for other in FREE[second]} <= met
    for (i, some), (j, others) in product(enumerate(FREE), enumerate(FREE)):
        assert i >= j or {(3 + i, a, 3 + j, b) for a in some for b in others} <= met


# Those of two levels are on one node as the shared ones; test_hierarchical.py runs them on several.
ONE_LEVEL = [name for name, known in VARIANTS.items() if not known.is_two_level]


@pytest.mark.parametrize("name", ONE_LEVEL)
@settings(max_examples=1)
@given(data=st.data())
def test_every_pair_of_choices_is_bit_equal_to_replay(hpc, comm, name, data):
    run(hpc, comm, [row for row in SAMPLE if row[0] == name], data)


@pytest.mark.full
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=1)
@given(data=st.data())
def test_all_choices_are_bit_equal_to_replay(hpc, comm, name, path, data):
    rows = []
    for turn, (row, in_place) in enumerate(product([row for row in LEGAL if row[0] == name], FREE[1])):
        size = SIZES[(data.draw(st.integers(0, 6), label="size") + turn) % 7]
        rows.append((*row, size, in_place, path, data.draw(st.booleans(), label="special") ^ (turn % 4 < 2)))
    run(hpc, comm, rows, data)
