"""Free programs: matched messages, deadlocks and the blocked ranks, compared with an executor in random order."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.algorithms import get_algorithm, list_algorithms
from hpccoll.errors import DeadlockError, PlanError
from hpccoll.plan import NO_PEER, Op, Operation, Plan, to_moves
from hpccoll.plan.messages import list_chunks
from hpccoll.plan.proof import Action, FreeProgram, RecvAction, SendAction, check_program
from hpccoll.plan.proof.free_programs import NO_DATA


def count_messages(program: Any, *arguments, **options) -> int:
    """Return the number of messages of a program that the proof accepts."""
    return check_program(program, *arguments, **options)


def find_error(program: Any, *arguments, **options) -> str:
    """Return the error message of `check_program`; None if it accepts the program."""
    with pytest.raises(PlanError) as caught:
        count_messages(program, *arguments, **options)
    return str(caught.value)


def flatten_plan(plan: Plan) -> list[list[Action]]:
    """Return `plan` as lists of actions: a rank's sends of a round, all buffered, precede its receives of the round."""
    n = plan.ranks
    program: list[list[Action]] = [[] for _ in range(n)]
    for steps in plan.rounds():
        receives: list[list[Action]] = [[] for _ in range(n)]
        for move in (move for step in steps for move in to_moves(step, n)):
            ops = np.broadcast_to(np.asarray(move.op), (n,)).tolist()
            ends = list_chunks(move.send.ids(n)), list_chunks(move.recv.ids(n))
            out, into = ([chunks or (NO_DATA,) for chunks in end] for end in ends)
            for rank, (dest, source) in enumerate(zip(move.dest.tolist(), move.source.tolist(), strict=True)):
                if dest != NO_PEER:
                    program[rank] += [SendAction(dest, chunk, synchronous=False) for chunk in out[rank]]
                if source != NO_PEER:
                    receives[rank] += [RecvAction(source, chunk, Op(ops[rank])) for chunk in into[rank]]
        for rank in range(n):
            program[rank] += receives[rank]
    return program


def synchronous(program: FreeProgram) -> list[list[Action]]:
    """Return the program with synchronous sends."""
    return [[replace(a, synchronous=True) if isinstance(a, SendAction) else a for a in actions] for actions in program]


def test_send_send_deadlock_names_ranks_and_steps():
    # Both ranks send first, then receive, with synchronous sends.
    program = [[SendAction(1, 0), RecvAction(1, 0)], [SendAction(0, 0), RecvAction(0, 0)]]
    with pytest.raises(DeadlockError) as caught:
        count_messages(program)
    assert set(caught.value.stuck) == {0, 1}
    assert caught.value.stuck[0] == "step 0: send chunk 0 to rank 1, which is at its step 0"
    said = str(caught.value)
    assert "rank 0 waits at step 0: send chunk 0 to rank 1" in said
    assert "rank 1 waits at step 0: send chunk 0 to rank 0" in said
    assert "they wait in a circle: 0 -> 1 -> 0" in said
    assert "let one of them receive first" in said.lower()


def test_either_remedy_ends_the_deadlock():
    assert count_messages([[SendAction(1, 0), RecvAction(1, 1)], [RecvAction(0, 1), SendAction(0, 0)]]) == 2
    assert (
        count_messages([[SendAction(1, 0, synchronous=False), RecvAction(1, 1)], [SendAction(0, 0), RecvAction(0, 1)]])
        == 2
    )


def test_both_receive_first():
    said = find_error([[RecvAction(1, 0), SendAction(1, 0)], [RecvAction(0, 0), SendAction(0, 0)]])
    assert "rank 1 waits at step 0: receive chunk 0 from rank 0" in said


def test_a_synchronous_send_to_oneself():
    assert "circle: 0 -> 0" in find_error([[SendAction(0, 0), RecvAction(0, 0)]])
    assert count_messages([[SendAction(0, 0, synchronous=False), RecvAction(0, 0)]]) == 1


def test_ranks_behind_a_circle_are_stuck_but_not_in_it():
    program = [
        [SendAction(1, 0)],
        [RecvAction(0, 0), SendAction(2, 0), RecvAction(2, 0)],
        [SendAction(1, 0), RecvAction(1, 0)],
        [RecvAction(2, 0)],
    ]
    with pytest.raises(DeadlockError) as caught:
        count_messages(program)
    assert sorted(caught.value.stuck) == [1, 2, 3]
    assert "rank 1 waits at step 1: send chunk 0 to rank 2" in str(caught.value)
    assert "circle: 1 -> 2 -> 1" in str(caught.value)


def test_a_partner_that_has_ended():
    said = find_error([[RecvAction(1, 0)], []])
    assert "rank 0 waits at step 0: receive chunk 0 from rank 1, which has ended" in said
    assert "Add the missing send or receive" in said
    assert "send chunk 0 to rank 1, which has ended" in find_error([[SendAction(1, 0)], []])


def test_a_message_that_is_never_received():
    program = [[SendAction(1, 0, synchronous=False), SendAction(1, 1, synchronous=False)], [RecvAction(0, 0)]]
    assert "rank 0 step 1 (send buffered chunk 1 to rank 1): rank 1 never receives it" in find_error(program)


def test_messages_of_a_pair_arrive_in_the_order_in_which_they_were_sent():
    operation, swapped = Operation.SCATTER, [RecvAction(0, 1), RecvAction(0, 0)]
    sends = [SendAction(1, 0, synchronous=False), SendAction(1, 1, synchronous=False)]
    count_messages([sends, [RecvAction(0, 0), RecvAction(0, 1)]], operation)
    assert "rank 1 chunk 1 is wrong" in find_error([sends, swapped], operation)


def test_a_read_before_the_write():
    program = [[RecvAction(1, 0)], [SendAction(0, 0)]]
    assert "rank 1 step 0 (send chunk 0 to rank 0): the chunk is read before" in find_error(
        program, Operation.BROADCAST
    )
    count_messages(program, Operation.BROADCAST, root=1)
    assert "read before it was written" in find_error(program, held=np.array([[True], [False]]))


def test_a_reduction_into_nothing_and_one_where_nothing_is_reduced():
    program = [[SendAction(1, 0)], [RecvAction(0, 0, Op.OWN_FIRST)]]
    assert "rank 1 step 0 (receive chunk 0 from rank 0): it reduces into" in find_error(program, Operation.BROADCAST)
    twice = [[SendAction(1, 0), SendAction(1, 0)], [RecvAction(0, 0), RecvAction(0, 0, Op.OWN_FIRST)]]
    assert "broadcast may only copy" in find_error(twice, Operation.BROADCAST)


def test_sizes_at_both_ends():
    program = [[SendAction(1, 0), SendAction(1, 1)], [RecvAction(0, 1), RecvAction(0, 0)]]
    assert "chunks 0 and 1 differ in elements for some counts" in find_error(program, Operation.BROADCAST, counts=(7,))
    assert "one of the two carries no data; the message is rank 0 step 0" in find_error(
        [[SendAction(1, NO_DATA)], [RecvAction(0, 0)]]
    )


@pytest.mark.parametrize(
    "wild", [SendAction(2, 0), SendAction(-1, 0), RecvAction(2, 0), SendAction(1, 5), RecvAction(1, -2)]
)
def test_peers_and_chunks_that_do_not_exist(wild):
    assert "there are 2 ranks and 1 chunks" in find_error([[wild], []], chunks=1)


def test_goals_are_those_of_check():
    doubled = [[RecvAction(1, 0, Op.OWN_FIRST), RecvAction(1, 0, Op.OWN_FIRST)], [SendAction(0, 0), SendAction(0, 0)]]
    assert "the contribution of rank 1 is doubled" in find_error(doubled, Operation.REDUCE)
    both = [
        [SendAction(1, 0, synchronous=False), RecvAction(1, 0, Op.OWN_FIRST)],
        [SendAction(0, 0, synchronous=False), RecvAction(0, 0, Op.OWN_FIRST)],
    ]
    assert "in different orders" in find_error(both, Operation.ALL_REDUCE)
    half = [[SendAction(1, NO_DATA)], [RecvAction(0, NO_DATA)]]
    assert "rank 0 may leave before rank 1 arrived" in find_error(half, Operation.BARRIER, chunks=0)
    both_ways = [[SendAction(1, NO_DATA), RecvAction(1, NO_DATA)], [RecvAction(0, NO_DATA), SendAction(0, NO_DATA)]]
    assert count_messages(both_ways, Operation.BARRIER, chunks=0) == 2


def list_plans() -> list[Plan]:
    """Return a plan of each algorithm of messages on several numbers of ranks."""
    free = [
        known for known in list_algorithms() if not (known.uses_shared_memory and known.operation is Operation.BARRIER)
    ]
    return [algorithm.plan(n, n // 2, 3) for algorithm in free for n in (1, 2, 3, 5, 8)]


@pytest.mark.parametrize("plan", list_plans(), ids=lambda plan: f"{plan.name}-{plan.ranks}")
def test_every_plan_is_right_as_a_free_program(plan):
    count_messages(flatten_plan(plan), plan.operation, plan.root, plan.moves().chunks)


@pytest.mark.parametrize("n", [2, 3, 4, 7])
@pytest.mark.parametrize(
    "name",
    ["all_reduce/ring", "reduce_scatter/bruck", "all_gather/ring", "all_to_all/pairwise", "barrier/dissemination"],
)
def test_rounds_of_exchanges_deadlock_when_every_rank_sends_first_and_waits(name, n):
    operation, _, algorithm = name.partition("/")
    program = synchronous(flatten_plan(get_algorithm(Operation.from_name(operation), algorithm).plan(n)))
    with pytest.raises(DeadlockError, match="circle") as caught:
        count_messages(program)
    assert set(caught.value.stuck) == set(range(n))


def test_one_way_plans_need_no_buffers():
    for name in ("tree", "chain"):
        plan = get_algorithm(Operation.BROADCAST, name).plan(7, 3, 2)
        count_messages(synchronous(flatten_plan(plan)), plan.operation, plan.root, plan.moves().chunks)


def ends(program: FreeProgram, seed: int) -> bool:
    """Whether the program runs to its end, ranks advancing by chance; nothing is shared with check_program."""
    chance, at = random.Random(seed), [0] * len(program)
    mail: dict[tuple[int, int], int] = {}

    def step(rank: int) -> bool:
        action = program[rank][at[rank]]
        if isinstance(action, RecvAction):
            if mail.get((action.source, rank), 0):
                mail[action.source, rank] -= 1
                at[rank] += 1
                return True
            return False
        if not action.synchronous:
            mail[rank, action.dest] = mail.get((rank, action.dest), 0) + 1
            at[rank] += 1
            return True
        # It meets its receive: both ranks are there, and nothing that was sent before is still on its way.
        to, there = action.dest, at[action.dest]
        reached = to != rank and there < len(program[to]) and program[to][there]
        if isinstance(reached, RecvAction) and reached.source == rank and not mail.get((rank, to), 0):
            at[rank] += 1
            at[to] += 1
            return True
        return False

    while True:
        awake = [rank for rank in range(len(program)) if at[rank] < len(program[rank])]
        chance.shuffle(awake)
        if not any(step(rank) for rank in awake):
            return not awake and not any(mail.values())


def actions(ranks: int) -> st.SearchStrategy[Action]:
    """Return a strategy that draws a send or a receive."""
    peer = st.integers(0, ranks - 1)
    send = st.builds(SendAction, peer, st.just(0), st.booleans())
    return st.one_of(send, st.builds(RecvAction, peer, st.just(0)))


@st.composite
def programs(draw: st.DrawFn) -> list[list[Action]]:
    """Matching messages in a random order, or anything at all."""
    ranks = draw(st.integers(1, 4))
    program: list[list[Action]] = [[] for _ in range(ranks)]
    for _ in range(draw(st.integers(0, 6))):
        frm, to = draw(st.integers(0, ranks - 1)), draw(st.integers(0, ranks - 1))
        program[frm].insert(draw(st.integers(0, len(program[frm]))), SendAction(to, 0, draw(st.booleans())))
        program[to].insert(draw(st.integers(0, len(program[to]))), RecvAction(frm, 0))
    if draw(st.booleans()):
        program[0].append(draw(actions(ranks)))
    return program


@given(programs(), st.integers(0, 2**16))
def test_what_hangs_hangs_in_any_order_of_advance(program, seed):
    try:
        count_messages(program)
        right = True
    except PlanError:
        right = False
    assert right == ends(program, seed), json.dumps([[str(action) for action in rank] for rank in program])


@pytest.mark.parametrize("kind", ["lost send", "lost receive", "swapped actions", "wrong peer"])
def test_mutants_of_free_programs_hang_or_fail_as_the_executor_says(kind):
    caught = 0
    for plan in list_plans():
        chance = random.Random(f"{kind} {plan.name} {plan.ranks}")
        program = synchronous(flatten_plan(plan)) if chance.random() < 0.5 else flatten_plan(plan)
        busy = [rank for rank, mine in enumerate(program) if len(mine) > 1]
        if not busy:
            continue
        rank = chance.choice(busy)
        mine, at = program[rank], chance.randrange(len(program[rank]) - 1)
        if kind == "swapped actions":
            mine[at], mine[at + 1] = mine[at + 1], mine[at]
        elif kind == "wrong peer":
            one = mine[at]
            mine[at] = (
                replace(one, dest=rank)
                if isinstance(one, SendAction)
                else replace(one, source=(one.source + 1) % plan.ranks)
            )
        else:
            wanted = SendAction if kind == "lost send" else RecvAction
            del mine[next((i for i, action in enumerate(mine) if isinstance(action, wanted)), at)]
        ended = ends(program, seed=1)
        try:
            count_messages(program)
        except PlanError:
            caught += 1
            assert not ended
        else:
            assert ended
    assert caught >= 10
