"""`mpirun -n N hpccoll demo NAME` in real jobs: the values of all ranks are as listed here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpccoll.demo.examples import EXAMPLES, get_example
from hpccoll.demo.library_calls import LIBRARIES, format_library_calls
from tests.depth import keep_every
from tests.jobs.launch import BIN, LIMIT_S, environment, hpccoll
from tests.record_schema import require_valid

SIX = [6, 6, 6, 6, 6]
ROWS = [[1, 1, 1, 1, 1], [2, 2, 2, 2, 2], [3, 3, 3, 3, 3]]
FIVE, THREE = [1, 2, 3, 4, 5], [10, 20, 30]
STEPS = [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]]
SHARES = [[0.0320586, 0.0871443, 0.2368828, 0.6439143][rank] for rank in range(4)]
NORMS = [5.4772256, 7.3484692, 9.2736185]  # square roots of 30, 54, 86
ROUND = [11111, 22222, 33333, 44444, 55555]

# By example and title, what each rank holds afterwards.
AFTER: dict[str, dict[str, list[Any]]] = {
    "broadcast": {"after": [FIVE, FIVE, FIVE]},
    "reduce": {"after": [SIX, ROWS[1], ROWS[2]]},
    "all_reduce": {"after": [SIX, SIX, SIX]},
    "gather": {"after": [ROWS, None, None]},
    "all_gather": {"after": [ROWS, ROWS, ROWS]},
    "scatter": {"after": ROWS},
    "reduce_scatter": {"after": [[6, 12], [14, 56], [36, 288]]},
    "all_reduce_ranks4": {"after": [[6, 10, 14, 18]] * 4},
    "reduce_scatter_ranks2": {"after": [[1], [3]]},
    "all_gather_ranks2": {"after": [[[1], [3]], [[1], [3]]]},
    "send_recv_chain": {
        "send/recv": [[100, 200], [200, 400], [200, 400]],
        "isend/irecv": [[100, 200], [200, 400], [200, 400]],
    },
    "new_group": {"sum of the pair": [[1], [1], [5], [5]], "both sums": [[1, 5]] * 4},
    "two_broadcasts": {"x after": [FIVE] * 3, "y after": [THREE] * 3},
    "weighted_sum": {"after": [[3.0, 4.2, 7.2]] * 4},
    "distributed_softmax": {"after": [[share] * 3 for share in SHARES]},
    "l2_normalise": {"after": [[value / norm for value, norm in zip(row, NORMS, strict=True)] for row in STEPS]},
    "barrier_staggered": {"leaves at, s": [2.0, 2.0, 2.0]},
    "send_send_deadlock": {"y after": [[4, 5, 6], [1, 2, 3]]},
    "ring_all_reduce_5": {
        "after reduce_scatter": ROUND,
        "after all_gather": [ROUND] * 5,
        "all_reduce": [ROUND] * 5,
    },
    "data_parallel": {"gradient": [[-3, -1.25]] * 2, "w after": [[1.5, 0.625]] * 2},
    "tensor_parallel": {"hidden": [[[3, 0]], [[2, 4]]], "y": [[[5, 6]]] * 2},
    "sequence_parallel": {"all x": [[[1, 2], [2, 1]]] * 2, "own y": [[[5, 6]], [[4, 6]]]},
    "pipeline": {"x after": [[1, 2], [2, 4], [6, 12]], "gradient of w": [[45], [30], [18]]},
    "zero": {"own gradient": [[-3], [-1.25]], "w after": [[1.5, 0.625]] * 2},
    "context_parallel": {"attention": [[[5]], [[4.5]]]},
    "expert_parallel": {"at the expert": [[[10], [30]], [[200], [400]]], "after": [[[10], [200]], [[30], [400]]]},
}
BEFORE = {
    "broadcast": [FIVE, [0] * 5, [0] * 5],
    "scatter": [ROWS, None, None],
    "reduce_scatter": [[[1, 2], [1, 4], [1, 8]], [[2, 4], [4, 16], [8, 64]], [[3, 6], [9, 36], [27, 216]]],
    "all_reduce_ranks4": [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]],
    "send_recv_chain": [[100, 200], [0, 0], [0, 0]],
    "new_group": [[0], [1], [2], [3]],
    "weighted_sum": STEPS,
    "barrier_staggered": [0, 1, 2],
}


def alike(found: Any, expected: Any, rtol: float) -> None:
    """Hold nested lists against each other: the same shape everywhere, None where None is expected."""
    if isinstance(expected, list):
        assert isinstance(found, list)
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            alike(mine, theirs, rtol)
    elif expected is None:
        assert found is None
    else:
        np.testing.assert_allclose(found, expected, rtol=rtol)


def tolerance(name: str) -> float:
    if name == "barrier_staggered":
        return 10.0  # a busy machine delays ranks; another test requires that no rank leaves the barrier early
    return 1e-6 if name in ("weighted_sum", "distributed_softmax", "l2_normalise", "context_parallel") else 0


def test_every_example_has_its_values_here() -> None:
    assert set(AFTER) == {each.name for each in EXAMPLES}


RUN_EXAMPLES = """
import sys
from hpccoll.cli.main import main
from hpccoll.runtime.job import get_world
for name in sys.argv[2:]:
    if get_world().rank == 0:
        print(f"== {name}", flush=True)
    if main(["demo", name, "--json", f"{sys.argv[1]}/{name}.jsonl"]) != 0:
        sys.exit(f"demo {name} failed")
"""


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[Path, dict[str, str]]]:
    """A function that runs all examples for a number of ranks in one job; it returns their folder and outputs."""

    @cache
    def run_examples(ranks: int) -> tuple[Path, dict[str, str]]:
        folder = tmp_path_factory.mktemp("demo")
        names = [each.name for each in EXAMPLES if each.ranks == ranks]
        words = [str(BIN / "mpirun"), "-n", str(ranks), sys.executable, "-c", RUN_EXAMPLES, str(folder), *names]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment())
        assert done.returncode == 0, done.stderr
        parts = re.split(r"^== (\w+)\n", done.stdout, flags=re.MULTILINE)
        return folder, dict(zip(parts[1::2], parts[2::2], strict=True))

    return run_examples


@pytest.mark.parametrize("name", AFTER)
def test_each_rank_holds_what_it_should(examples: Any, name: str) -> None:
    example = get_example(name)
    folder, outputs = examples(example.ranks)
    run, record = (json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines())
    assert (run["kind"], run["ranks"], record["kind"], record["name"]) == ("run", example.ranks, "demo", name)
    for each in (run, record):
        require_valid(each)
    assert list(record["after"]) == list(AFTER[name])
    for title, values in AFTER[name].items():
        alike(record["after"][title], values, tolerance(name))
    if name in BEFORE:
        alike(next(iter(record["before"].values())), BEFORE[name], 0)
    lines = [line for line in outputs[name].splitlines() if re.match(r"rank \d+ ", line)]
    assert [line.split()[1] for line in lines] == [str(rank) for rank in range(example.ranks)]
    for line in example.description:
        assert line in outputs[name]
    for library, text in format_library_calls(example).items():
        assert f"\n{library}:\n    {text.splitlines()[0]}" in outputs[name]


@pytest.mark.slow
def test_no_rank_leaves_the_barrier_before_the_last_one_comes(tmp_path: Path) -> None:
    out = tmp_path / "demo.jsonl"
    assert hpccoll(3, "demo", "barrier_staggered", "--json", str(out)).returncode == 0
    left = json.loads(out.read_text().splitlines()[1])["after"]["leaves at, s"]
    assert all(each >= 1.99 for each in left)


def test_the_ring_is_drawn_in_its_two_phases() -> None:
    done = hpccoll(5, "demo", "ring_all_reduce_5", "--draw")
    assert done.returncode == 0, done.stderr
    assert "all_reduce/ring" in done.stdout
    assert "8 steps" in done.stdout
    assert len(re.findall(r"^round \d", done.stdout, re.MULTILINE)) == 8


@pytest.mark.parametrize("name", keep_every(4, ["weighted_sum", "broadcast", "reduce", "barrier_staggered"]))
def test_any_plan_is_drawn_on_request(name: str) -> None:
    example = get_example(name)
    assert example.operation is not None
    done = hpccoll(example.ranks, "demo", name, "--draw")
    assert done.returncode == 0, done.stderr
    assert f"{example.operation.value}/{example.algorithm}: {example.ranks} ranks" in done.stdout


@pytest.mark.slow
def test_another_algorithm_gives_the_same(tmp_path: Path) -> None:
    for algorithm in ("double_tree", "recursive_doubling"):
        out = tmp_path / f"{algorithm}.jsonl"
        done = hpccoll(3, "demo", "all_reduce", "--algorithm", algorithm, "--json", str(out))
        assert done.returncode == 0, done.stderr
        record = json.loads(out.read_text().splitlines()[1])
        assert (record["algorithm"], record["after"]["after"]) == (algorithm, [SIX, SIX, SIX])


def test_the_deadlock_is_explained_before_anything_runs() -> None:
    done = hpccoll(2, "demo", "send_send_deadlock")
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stdout.split())
    assert "deadlock: rank 0 waits at step 0: send chunk 0 to rank 1" in told
    assert "rank 1 waits at step 0: send chunk 0 to rank 0" in told
    assert "0 -> 1 -> 0" in told


@pytest.mark.slow
def test_the_forced_deadlock_is_reported_within_seconds() -> None:
    start = time.monotonic()
    done = hpccoll(2, "demo", "send_send_deadlock", "--force", "--limit", "2")
    assert time.monotonic() - start < 30
    assert done.returncode == 4
    assert "The checker, before anything runs: deadlock" in done.stdout
    assert "nothing has moved for 2 s" in done.stderr
    for rank in (0, 1):
        assert f"rank {rank} is still at step 0 (send x to rank {1 - rank})" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_list_names_every_example() -> None:
    done = subprocess.run(
        [str(BIN / "hpccoll"), "demo"], capture_output=True, text=True, timeout=LIMIT_S, check=True, env=environment()
    )
    for example in EXAMPLES:
        assert f"mpirun -n {example.ranks} hpccoll demo {example.name}" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "words", "status", "told"),
    keep_every(
        3,
        [
            (2, ["broadcast"], 2, "takes 3 ranks, and this job has 2; run: mpirun -n 3 hpccoll demo broadcast"),
            (1, ["ring_all_reduce_5"], 2, "this is one process; run: mpirun -n 5 hpccoll demo ring_all_reduce_5"),
            (1, ["braodcast"], 2, "ring_all_reduce_5"),
            (3, ["broadcast", "--algorithm", "ring"], 2, "chain"),
            (3, ["broadcast", "--force"], 2, "--force is for send_send_deadlock"),
            (5, ["ring_all_reduce_5", "--algorithm", "tree"], 2, "leave --algorithm out"),
            (3, ["broadcast", "--json", "/nowhere/out.jsonl"], 2, "/nowhere/out.jsonl"),
        ],
    ),
)
def test_what_cannot_be_shown_is_said_once(ranks: int, words: list[str], status: int, told: str) -> None:
    done = hpccoll(ranks, "demo", *words)
    assert done.returncode == status, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("Error: ")]) == 1


@cache
def elsewhere(ranks: int) -> dict[tuple[str, str], list[Any]]:
    """The values of the ranks after the calls of the other libraries, by library and example."""
    script = Path(__file__).parent / "libraries.py"
    words = [str(BIN / "mpirun"), "-n", str(ranks), sys.executable, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    return {(library, name): held for library, name, held in rows}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in AFTER if name != "barrier_staggered"])
def test_the_same_call_in_other_libraries_gives_the_same(name: str) -> None:
    found = elsewhere(get_example(name).ranks)
    libraries = {library for library, _ in found}
    assert "mpi4py" in libraries
    for library in libraries:
        held = found[library, name]
        for at, values in enumerate(AFTER[name].values()):
            ranks = [0] if (library, name) == ("torch", "reduce") else range(len(values))  # elsewhere not defined
            for rank in ranks:
                alike(
                    np.array(held[rank][at]).reshape(-1).tolist() if held[rank][at] is not None else None,
                    np.array(values[rank]).reshape(-1).tolist() if values[rank] is not None else None,
                    tolerance(name),
                )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_shown_calls_are_statements_alone(example: Any) -> None:
    texts = format_library_calls(example)
    assert list(texts) == list(LIBRARIES)
    for text in texts.values():
        compile(text, example.name, "exec")
        assert "noqa" not in text
        assert '"""' not in text
