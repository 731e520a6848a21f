"""Published schedules are read, proven, refused with the right place, and converted to plans that compute the same."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm, loader
from hpccoll.algorithms.plan_files import judge_published
from hpccoll.errors import DeadlockError, PlanError, UsageError
from hpccoll.plan import Operation, Plan, check, replay
from hpccoll.plan.interchange.msccl import to_msccl
from hpccoll.plan.published import (
    BlockProgram,
    convert_to_plan,
    parse_published,
    prove_program,
    refuse_deadlock,
)
from tests.unit.plan.published.mutants import Mutant, make_mutants

DATA = Path(__file__).parents[3] / "data" / "published"
REAL, PACK = (DATA / "ar_tree_12_LL.xml").read_text(), (DATA / "reduce_pack.json").read_text()
PLACE = re.compile(r"rank (\d+), thread block (\d+), step (\d+)")
EXPORTED = (
    ("all_reduce", "ring", 4), ("all_gather", "circulant", 5), ("all_reduce", "recursive_doubling", 4),
    ("reduce_scatter", "ring", 3), ("all_to_all", "bruck", 4), ("all_reduce", "double_tree", 5),
    ("broadcast", "tree", 4), ("reduce", "tree", 5), ("all_to_all", "pairwise", 3),
)  # fmt: skip


def export(op: str, name: str, ranks: int) -> str:
    """Return the MSCCL file of a built-in plan."""
    return to_msccl(get_algorithm(Operation(op), name).plan(ranks))


def run_in_any_order(program: BlockProgram, seed: int) -> dict[object, object]:
    """Return the contents of all cells after the steps of all blocks ran in a random order that their waits allow."""
    draw, at = random.Random(seed), [0] * len(program.blocks)
    counts: dict[object, int] = {}
    cells: dict[object, object] = {cell: (chunk, frozenset([mask])) for cell, (chunk, mask) in program.inputs.items()}
    while True:
        ready = [b for b, block in enumerate(program.blocks) if at[b] < len(block)
                 and all(counts.get(wait.semaphore, 0) >= wait.count for wait in block[at[b]].waits)]  # fmt: skip
        if not ready:
            return cells
        block = draw.choice(ready)
        step = program.blocks[block][at[block]]
        for effect in step.effects:
            parts = [cells.get(source, (None, frozenset())) for source in effect.sources]
            cells[effect.target] = (parts[0][0], frozenset().union(*(part[1] for part in parts)))  # type: ignore[index]
        for post in step.posts:
            counts[post.semaphore] = counts.get(post.semaphore, 0) + 1 if post.value is None else post.value
        at[block] += 1


def is_right(program: BlockProgram, cells: dict[object, object]) -> bool:
    """Whether the outputs have their required contents."""
    return all(
        cells.get(cell) == (chunk, frozenset(1 << r for r in range(mask.bit_length()) if mask >> r & 1))
        for cell, (chunk, mask) in program.outputs.items()
    )


def convert(text: str) -> Plan:
    program = parse_published(text, "file")
    return convert_to_plan(program, prove_program(program).executed)


@pytest.mark.parametrize(("op", "name", "ranks"), EXPORTED)
def test_own_exports_are_right_and_become_plans_again(op: str, name: str, ranks: int) -> None:
    original = get_algorithm(Operation(op), name).plan(ranks)
    program = parse_published(export(op, name, ranks), name)
    proof = prove_program(program)
    assert proof.redundant == 0
    assert proof.buffered is not None
    if op != "reduce":  # its ranks work in a copy of their input
        assert check(convert_to_plan(program, proof.executed)).cost.mean <= check(original).cost.mean


def test_exports_follow_the_rules_of_rccls_parser() -> None:
    """RCCL names reducescatter without an underscore, needs six attributes, and a real step after a chain of nops."""
    for op, name, ranks in EXPORTED:
        root = ET.fromstring(export(op, name, ranks))
        assert root.attrib["coll"] in {"allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall"}
        assert {"proto", "nchannels", "nchunksperloop", "ngpus", "minBytes", "maxBytes", "inplace"} <= set(root.attrib)
        for tb in root.iter("tb"):
            steps = tb.findall("step")
            for step, after in pairwise(steps):
                assert step.attrib["type"] != "nop" or after.attrib["depid"] != "-1"


def test_a_converted_plan_computes_what_the_collective_promises() -> None:
    plan = convert(REAL)
    draw = np.random.default_rng(1)
    inputs = [draw.integers(0, 100, 50) for _ in range(plan.ranks)]
    for output in replay(plan, 50, inputs, np.add):
        np.testing.assert_array_equal(output, sum(inputs))


def list_mutants() -> list[Mutant]:
    texts = [(REAL, 23), *((export(*case), 5) for case in EXPORTED[:6])]
    return [mutant for text, every in texts for mutant in make_mutants(text, every)]


@pytest.mark.parametrize("mutant", list_mutants(), ids=lambda mutant: mutant.change.replace(" ", "_"))
def test_mutants_are_refused_with_rank_and_step(mutant: Mutant) -> None:
    refusal = find_refusal(mutant)
    if refusal is None:
        # A dependency that other waits imply may be missing: then every order of execution gives the right result.
        assert mutant.change.startswith("missing dependency")
        program = parse_published(mutant.text, "mutant")
        assert all(is_right(program, run_in_any_order(program, seed)) for seed in range(10))
        return
    named = {tuple(map(int, place)) for place in PLACE.findall(refusal)}
    rank = min(mutant.places)[0] if len(mutant.places) == 1 else -1
    unwritten = mutant.change.startswith("lost step") and f"of rank {rank}): nothing writes it" in refusal
    assert named & mutant.places or unwritten, refusal


def find_refusal(mutant: Mutant) -> str | None:
    """Return the message with which a mutant is refused, or None if it is accepted."""
    try:
        prove_program(parse_published(mutant.text, "mutant"))
    except PlanError as error:
        return str(error)
    return None


def test_at_least_thirty_mutants_are_refused() -> None:
    assert sum(find_refusal(mutant) is not None for mutant in list_mutants()) >= 30


def test_a_ring_of_sends_before_receives_deadlocks_with_few_buffers() -> None:
    """Two ranks send two messages each before they receive: one buffer per link is too few, two are enough."""
    step = (
        '<step s="{}" type="{}" srcbuf="o" srcoff="{}" dstbuf="o" dstoff="{}" cnt="1" depid="-1" deps="-1" hasdep="0"/>'
    )
    gpus = ""
    for rank in (0, 1):
        steps = [("s", 2 * rank), ("s", 2 * rank + 1), ("r", 2 - 2 * rank), ("r", 3 - 2 * rank)]
        lines = "".join(step.format(s, kind, chunk, chunk) for s, (kind, chunk) in enumerate(steps))
        block = f'<tb id="0" send="{1 - rank}" recv="{1 - rank}" chan="0">{lines}</tb>'
        gpus += f'<gpu id="{rank}" i_chunks="2" o_chunks="4" s_chunks="0">{block}</gpu>'
    text = f'<algo name="x" ngpus="2" nchunksperloop="4" coll="allgather" inplace="1">{gpus}</algo>'
    program = parse_published(text, "x")
    assert prove_program(program).buffered == 2
    with pytest.raises(DeadlockError, match=r"1 buffered message.*rank 0, thread block 0, step 1.*free buffer"):
        refuse_deadlock(program, 1)
    refuse_deadlock(program, 2)


def test_mscclpp_packets_and_a_missing_signal() -> None:
    assert check(convert(PACK)).rounds == 2
    document = json.loads(PACK)
    ops = document["gpus"][0]["threadblocks"][0]["ops"]
    ops[0]["dst_buff"][0]["index"] += 1  # the packet goes to another place than the one that its reader waits for
    with pytest.raises(PlanError, match="rank 1, thread block"):
        prove_program(parse_published(json.dumps(document), "x"))


FLOWS = [f"Chunk 0 from {s} traveled over {a}->{b} in epoch {e}" for s, a, b, e in
         ((1, 1, 2, 0), (2, 2, 3, 0), (3, 3, 1, 0), (1, 2, 3, 1), (2, 3, 1, 1), (3, 1, 2, 1))]  # fmt: skip


def test_teccl_all_gathers_and_their_faults() -> None:
    plan = convert(json.dumps({"7-Flows": FLOWS}))
    assert (plan.operation, plan.ranks, check(plan).rounds) == (Operation.ALL_GATHER, 3, 2)
    early = [*FLOWS[:3], FLOWS[3].replace("epoch 1", "epoch 0"), *FLOWS[4:]]
    with pytest.raises(PlanError, match="from rank 1 that arrives there in epoch 0"):
        convert(json.dumps({"7-Flows": early}))
    with pytest.raises(PlanError, match=r"rank 0 chunk 1 is wrong.*nothing writes it"):
        convert(json.dumps({"7-Flows": FLOWS[:4] + FLOWS[5:]}))
    twice = convert_redundant([*FLOWS, FLOWS[0].replace("epoch 0", "epoch 2")])
    assert twice == (7, 1)


def convert_redundant(flows: list[str]) -> tuple[int, int]:
    """Return the numbers of transfers and of redundant ones."""
    proof = prove_program(parse_published(json.dumps({"7-Flows": flows}), "x"))
    return proof.transfers, proof.redundant


def test_teccl_all_to_alls_follow_their_paths() -> None:
    paths = {f"Demand at {d} for chunk {d} from {s} met by epoch 0": [[[0, f"{s}->{d} with volume 1.0 in epoch 0"]]]
             for d in (1, 2, 3) for s in (1, 2, 3) if d != s}  # fmt: skip
    relayed = "Demand at 3 for chunk 3 from 1 met by epoch 0"
    paths[relayed] = [[[0, "1->2 with volume 1.0 in epoch 0"], [1, "2->3 with volume 1.0 in epoch 1"]]]
    document = {"7-Flows": ["Chunk 3 from 1 traveled over 1->2 with volume 1.0 in epoch 0"], "8-Chunk paths": paths}
    assert check(convert(json.dumps(document))).rounds == 2
    paths[relayed][0][1] = [1, "2->3 with volume 0.5 in epoch 1"]
    with pytest.raises(PlanError, match=r"Demand at 3 for chunk 3 from 1 is met by a volume of 0.5"):
        convert(json.dumps(document))


def test_taccl_algorithms_reduce_and_copy() -> None:
    chunks = [{"sccl_type": "chunk", "pre": [0, 1], "post": [0, 1], "addr": 0}]
    steps = [{"rounds": 1, "sends": [[0, 1, 0, 0, 0, "rrc"]]}, {"rounds": 1, "sends": [[0, 0, 1, 1, 1, None]]}]
    document = {"sccl_type": "algorithm", "collective": {"name": "Allreduce(n=2)", "nodes": 2, "chunks": chunks},
                "steps": steps}  # fmt: skip
    assert check(convert(json.dumps(document))).rounds == 2
    steps[0]["sends"] = [[0, 1, 0, 0, 0, None]]
    with pytest.raises(PlanError, match="contributions of rank 0 missing"):
        convert(json.dumps(document))


def test_files_become_algorithms_of_their_own_number_of_ranks(tmp_path: Path) -> None:
    path = tmp_path / "my_ring.xml"
    path.write_text(export("all_reduce", "ring", 4))
    algorithm = loader.load_algorithm(str(path))
    assert (algorithm.full_name, algorithm.only_ranks) == ("all_reduce/my_ring", 4)
    loader.prove_algorithm(algorithm, 4)
    with pytest.raises(UsageError, match="use --ranks 4"):
        algorithm.plan(5)
    verdict = judge_published(str(path))
    assert (verdict.failure, verdict.no_plan, verdict.plan_proof and verdict.plan_proof.rounds) == (None, None, 6)


@pytest.mark.parametrize("text", ["<algo", "<other/>", "{", "[]", '{"gpus": 3, "collective": "allreduce"}',
                                  "<!DOCTYPE x><algo/>", '<algo coll="send"/>', '{"7-Flows": []}',
                                  '{"7-Flows": [5]}', '{"7-Flows": [{"volume": 1}], "Chunk paths": 3}',
                                  '{"sccl_type": "algorithm"}', '["' + "[" * 10**5,
                                  json.dumps({"7-Flows": [FLOWS[0].replace("Chunk 0", "Chunk 9999999")]}),
                                  REAL.replace('nchunksperloop="', 'nchunksperloop="9999999'),
                                  REAL.replace('s_chunks="', 's_chunks="9999999'),
                                  PACK.replace('"input_chunks": ', '"input_chunks": 9999999'),
                                  PACK.replace('"buffer_id": 0', '"buffer_id": 9')])  # fmt: skip
def test_unreadable_files_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_published(text, "x")
