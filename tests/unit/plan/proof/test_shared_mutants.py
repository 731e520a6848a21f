"""Mutation tests of the proof of loads, stores and fences: plans with one fault each, run in random orders of ranks.

A mutant that `check` accepts must be correct in every tested order. A mutant that `check` refuses must be wrong in at
least one order, except for violations of rules that cause no hazard (WORDS), and for harmless races, which HARMLESS
lists.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from hpccoll.algorithms import list_algorithms
from hpccoll.errors import PlanError, UsageError
from hpccoll.plan import Plan, check
from hpccoll.plan.interchange.json_plans import from_json, to_json
from tests.unit.plan.shared_referee import fault_in_some_order

pytestmark = pytest.mark.xdist_group("shared mutants")  # one process makes the mutants, once for all tests of this file
RANKS = (2, 3, 4)
ORDERS, MANY_ORDERS = 12, 100
SHARED = [algorithm for algorithm in list_algorithms() if algorithm.uses_shared_memory]
Document = dict[str, Any]
Round = list[Document]


class NoRoom(Exception):
    """The fault cannot be planted here."""


@dataclass
class Site:
    """The rounds of a plan as JSON records, in which a fault is planted at a random place."""

    rounds: list[Round]
    chance: random.Random
    ranks: int
    chunks: int

    def place(self, kind: str) -> tuple[int, int]:
        """Return a random round and the index of a record of it that has the key `kind`."""
        found = [(t, i) for t, records in enumerate(self.rounds) for i, each in enumerate(records) if kind in each]
        if not found:
            raise NoRoom
        return self.chance.choice(found)

    def transfer(self) -> Document:
        """Return a random load or store."""
        t, i = self.place("via")
        return self.rounds[t][i]


def need(there_is_room: bool) -> None:
    """Raise NoRoom unless the fault can be planted."""
    if not there_is_room:
        raise NoRoom


def first_fence_lost(at: Site) -> None:
    """Leave out the first fence."""
    fences = [t for t, records in enumerate(at.rounds) if "fence" in records[0]]
    need(bool(fences))
    del at.rounds[fences[0]]


def last_fence_lost(at: Site) -> None:
    """Leave out the last fence."""
    fences = [t for t, records in enumerate(at.rounds) if "fence" in records[0]]
    need(bool(fences))
    del at.rounds[fences[-1]]


def rank_left_out_of_a_fence(at: Site) -> None:
    """Leave a rank out of a fence."""
    t, i = at.place("fence")
    at.rounds[t][i]["fence"][0].pop(at.chance.randrange(at.ranks))


def fence_in_two_halves(at: Site) -> None:
    """Replace a fence by two fences of half the ranks each."""
    t, i = at.place("fence")
    ranks = list(range(at.ranks))
    at.rounds[t][i]["fence"] = [ranks[: at.ranks // 2], ranks[at.ranks // 2 :]]


def fence_later(at: Site) -> None:
    """Exchange the first two rounds."""
    need(len(at.rounds) > 2)
    at.rounds[0], at.rounds[1] = at.rounds[1], at.rounds[0]


def fence_earlier(at: Site) -> None:
    """Exchange the last two rounds."""
    need(len(at.rounds) > 2)
    at.rounds[-1], at.rounds[-2] = at.rounds[-2], at.rounds[-1]


def fence_between(at: Site) -> None:
    """Insert a fence before the third round."""
    need(len(at.rounds) > 2)
    at.rounds.insert(2, [{"fence": [list(range(at.ranks))]}])


def wrong_peer(at: Site) -> None:
    """Load from, or store to, another rank."""
    record = at.transfer()
    key = "from" if record["via"] == "load" else "to"
    record[key] = (record[key] + 1) % at.ranks


def wider_region(at: Site) -> None:
    """Add a chunk to a transfer, at both ends."""
    record = at.transfer()
    need(len(record["send"]) < at.chunks)
    for end in ("send", "recv"):
        others = [chunk for chunk in range(at.chunks) if chunk not in record[end]]
        record[end] = [*record[end], others[0]]


def wrong_chunk(at: Site) -> None:
    """Increase the chunk numbers of the written end by one."""
    record = at.transfer()
    need(at.chunks > 1)
    record["recv"] = [(chunk + 1) % at.chunks for chunk in record["recv"]]


def wrong_chunk_at_both_ends(at: Site) -> None:
    """Increase the chunk numbers of both ends by one."""
    record = at.transfer()
    need(len(record["send"]) < at.chunks)
    for end in ("send", "recv"):
        record[end] = [(chunk + 1) % at.chunks for chunk in record[end]]


def swapped_op(at: Site) -> None:
    """Replace a load's copy by a reduction, or its reduction by a copy."""
    record = at.transfer()
    need(record["via"] == "load")
    record["op"] = "copy" if record["op"] != "copy" else "own_first"


def flipped_order(at: Site) -> None:
    """Make the received data the left operand of a reduction."""
    record = at.transfer()
    need(record["op"] != "copy")
    record["op"] = "incoming_first"


def lost_transfer(at: Site) -> None:
    """Leave out a transfer."""
    t, i = at.place("via")
    del at.rounds[t][i]


def doubled_transfer(at: Site) -> None:
    """Repeat a transfer."""
    t, i = at.place("via")
    at.rounds[t].insert(i, dict(at.rounds[t][i]))


def the_other_acts(at: Site) -> None:
    """Replace a load by a store of the other rank, or a store by a load."""
    record = at.transfer()
    need(record["op"] == "copy")
    record["via"] = "load" if record["via"] == "store" else "store"


def transfer_earlier(at: Site) -> None:
    """Move a transfer to the previous round."""
    t, i = at.place("via")
    need(t > 1)
    at.rounds[t - 1].append(at.rounds[t].pop(i))


def transfer_later(at: Site) -> None:
    """Move a transfer to the next round."""
    t, i = at.place("via")
    at.rounds[t + 1].append(at.rounds[t].pop(i))


def rounds_in_one(at: Site) -> None:
    """Join two rounds of transfers in one."""
    need(len(at.rounds) == 4)
    at.rounds[1] += at.rounds.pop(2)


def swapped_rounds(at: Site) -> None:
    """Exchange two rounds of transfers."""
    need(len(at.rounds) == 4)
    at.rounds[1], at.rounds[2] = at.rounds[2], at.rounds[1]


def message_among_loads(at: Site) -> None:
    """Replace a load or store by a message."""
    del at.transfer()["via"]


FAULTS: dict[str, Callable[[Site], None]] = {
    fault.__name__: fault
    for fault in (
        *(first_fence_lost, last_fence_lost, rank_left_out_of_a_fence, fence_in_two_halves, fence_later, fence_earlier),
        *(fence_between, wrong_peer, wider_region, wrong_chunk, wrong_chunk_at_both_ends, swapped_op, flipped_order),
        *(lost_transfer, doubled_transfer, the_other_acts, transfer_earlier, transfer_later, rounds_in_one),
        *(swapped_rounds, message_among_loads),
    )
}
WORDS = (
    "give each kind a round of its own",
    "two messages of which the later overwrites",  # in a rank's own order the later stays
    "an earlier step of the round wrote",  # in a rank's own order it finds that; as a superstep, what stood before
    "before it was written",  # junk may be moved as long as nobody wants it
)
# Races all the same: the first stores what is there already, the second spoils a chunk that nobody wants.
HARMLESS = {
    ("the_other_acts", "all_reduce/shared_one_shot"),
    ("wider_region", "reduce/shared"),
    ("wider_region", "broadcast/hierarchical_chain"),
    ("wider_region", "broadcast/hierarchical_tree"),
}


@dataclass(frozen=True)
class Mutant:
    """A plan with a planted fault of a kind, and the error of `check`, if any."""

    kind: str
    plan: Plan
    refused: str | None

    @property
    def name(self) -> str:
        """The kind of the fault, the plan, and the number of ranks."""
        return f"{self.kind} in {self.plan.name} on {self.plan.ranks}"


@cache
def mutants() -> tuple[Mutant, ...]:
    """Return all mutants; they are made once."""
    found = []
    for algorithm in SHARED:
        for n in RANKS:
            document = json.loads(to_json(algorithm.plan(n, root=n // 2)))
            for kind, plant in FAULTS.items():
                for number in range(2):
                    changed = json.loads(json.dumps({**document, "cost": None}))
                    chance = random.Random(f"{kind} {algorithm.full_name} {n} {number}")
                    try:
                        plant(Site(changed["rounds"], chance, n, document["chunks"]))
                        plan = from_json(json.dumps(changed))
                    except (NoRoom, UsageError):
                        continue
                    found.append(Mutant(kind, plan, find_error(plan)))
    return tuple(found)


def find_error(plan: Plan) -> str | None:
    """Return the error message of `check`; None if it accepts the plan."""
    try:
        check(plan)
    except PlanError as error:
        return str(error)
    return None


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("algorithm", SHARED, ids=lambda each: each.full_name)
def test_plans_come_out_right_in_any_order(algorithm, n):
    for root in {0, n - 1} if "root" in algorithm.parameters else {0}:
        assert fault_in_some_order(algorithm.plan(n, root), ORDERS) is None


@pytest.mark.slow
def test_there_are_mutants_of_every_kind_over_all_plans():
    assert len(mutants()) >= 800
    assert {mutant.kind for mutant in mutants()} == set(FAULTS)
    assert {mutant.plan.name for mutant in mutants()} == {algorithm.full_name for algorithm in SHARED}


@pytest.mark.slow
def test_what_is_accepted_comes_out_right_in_every_order():
    accepted = [mutant for mutant in mutants() if mutant.refused is None]
    assert len(accepted) >= 50
    wrong = {mutant.name: fault for mutant in accepted if (fault := fault_in_some_order(mutant.plan, ORDERS))}
    assert not wrong


@pytest.mark.slow
def test_what_is_refused_goes_wrong_in_some_order():
    judged = [m for m in mutants() if m.refused and not any(words in m.refused for words in WORDS)]
    assert len(judged) >= 500
    calm = {(m.kind, m.plan.name) for m in judged if not fault_in_some_order(m.plan, MANY_ORDERS)}
    assert calm <= HARMLESS
    assert calm


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind != "fence_between"])
def test_every_kind_of_fault_is_refused_somewhere(kind):
    assert any(mutant.refused for mutant in mutants() if mutant.kind == kind)


@pytest.mark.parametrize("kind", ["first_fence_lost", "last_fence_lost", "rank_left_out_of_a_fence"])
def test_no_fence_can_be_spared(kind):
    assert all(mutant.refused for mutant in mutants() if mutant.kind == kind)
    assert Counter(mutant.kind for mutant in mutants())[kind] >= len(SHARED) * len(RANKS)


def test_the_column_of_a_plan_from_a_file_is_what_its_whole_is():
    from hpccoll.algorithms.loader import prove_single_rank_columns

    for algorithm in SHARED:
        prove_single_rank_columns(replace(from_json(to_json(algorithm.plan(4, root=1))), cost=None))
