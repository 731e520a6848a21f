"""HPCCOLL_DEBUG=1: if ranks call a collective differently, every rank raises an error."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.depth import keep_every
from tests.jobs.launch import BIN, LIMIT_S, environment

pytestmark = pytest.mark.slow

# Every rank makes the call, and says what it was told; then a call that agrees must work.
SCRIPT = """
import json
import numpy as np
import hpccoll
from hpccoll.errors import HpccollError
comm = hpccoll.Communicator()
rank = comm.rank
comm.barrier()
told, kind = "", ""
try:
    CALL
except HpccollError as error:
    told, kind = str(error), type(error).__name__
said = {"rank": rank, "told": told, "kind": kind}
x = np.ones(4)
comm.all_reduce(x)
said["after"] = x.tolist() == [comm.size] * 4
print("\\n" + json.dumps(said), flush=True)
"""


def run(call: str, debug: str = "1") -> list[dict[str, Any]]:
    """Return the output of each of three ranks."""
    done = subprocess.run(
        [str(BIN / "mpirun"), "-n", "3", sys.executable, "-c", SCRIPT.replace("CALL", call)],
        env=environment(HPCCOLL_DEBUG=debug),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted(each["rank"] for each in said) == [0, 1, 2]
    assert all(each["after"] for each in said), "the next collective did not work"
    return sorted(said, key=lambda each: int(each["rank"]))


DIFFERENT = {
    "shape": ("comm.all_reduce(np.ones((2, 3) if rank == 2 else 6))", ["shape (6,) on rank 0", "(2, 3) on rank 2"]),
    "count": ("comm.all_gather(np.ones(3 + rank // 2))", ["shape (3,) on rank 0", "(4,) on rank 2"]),
    "dtype": (
        "comm.all_reduce(np.ones(3, 'f8' if rank == 1 else 'f4'))", ["dtype float32 on rank 0", "float64 on rank 1"]
    ),
    "op": ("comm.all_reduce(np.ones(3), op='max' if rank == 1 else 'sum')", ["op sum on rank 0", "max on rank 1"]),
    "root": ("comm.broadcast(np.ones(3), root=rank // 2)", ["root 0 on rank 0", "1 on rank 2"]),
    "algorithm": (
        "comm.all_reduce(np.ones(3), algorithm='tree' if rank == 1 else 'ring')",
        ["algorithm all_reduce/ring on rank 0", "all_reduce/tree on rank 1"],
    ),
    "waiting": (
        "comm.all_reduce(np.ones(3), async_op=rank == 1)", ["call blocking on rank 0", "async on rank 1"]
    ),
    "operation": (
        "comm.barrier() if rank == 1 else comm.all_reduce(np.ones(3))",
        ["rank 0 called all_reduce", "rank 1 called barrier"],
    ),
    "scatter's blocks": (
        "comm.scatter(np.ones((3, 4)) if rank == 0 else None, out=np.ones(5 if rank == 2 else 4))",
        ["shape (4,) on rank 0", "(5,) on rank 2"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", keep_every(3, DIFFERENT))
def test_every_rank_is_told_who_differs_and_both_values(what):
    call, parts = DIFFERENT[what]
    for said in run(call):
        assert said["kind"] == "MismatchError", said
        assert all(part in said["told"] for part in parts), said


REFUSED = {
    "a bad op": ("comm.all_reduce(np.ones(3), op='mean' if rank == 1 else 'sum')", "unknown reduction 'mean'"),
    "a bad algorithm": (
        "comm.all_reduce(np.ones(3), algorithm='x' if rank == 1 else 'ring')", "algorithm for all_reduce 'x'"
    ),
    "a bad array": ("comm.all_reduce([1.0] if rank == 1 else np.ones(1))", "x is a list"),
    "a strided output": ("comm.all_reduce(np.ones(6)[::2] if rank == 1 else np.ones(3))", "not C-contiguous"),
    "a bad root": ("comm.broadcast(np.ones(3), root=7 if rank == 1 else 0)", "root 7 is not a rank"),
    "an op that the dtype lacks": (
        "comm.all_reduce(np.ones(3, bool if rank == 1 else 'i8'))", "'sum' is not defined for dtype bool"
    ),
    "overlapping memory": (
        "m = np.ones(9); comm.all_reduce(m[:6], out=m[3:] if rank == 1 else np.ones(6))", "x and out overlap on rank 1"
    ),
    "a factor that does not fit": (
        "comm.all_reduce(np.ones(3, 'i4'), op=hpccoll.premul_sum(0.5 if rank == 1 else 2))", "does not fit dtype int32"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", keep_every(3, REFUSED))
def test_a_rank_whose_call_is_refused_does_not_leave_the_others_waiting(what):
    call, part = REFUSED[what]
    for said in run(call):
        assert part in said["told"], said
        assert said["kind"] != "MismatchError" if said["rank"] == 1 else "rank 1 refused its " in said["told"]


def test_what_agrees_is_let_through_while_others_are_under_way():
    """A comparing rank must advance operations in flight: rank 1 waits for one before it calls the collective."""
    call = """
    works = [comm.all_reduce(np.ones(1000), async_op=True) for _ in range(3)]
    if rank == 1:
        for work in works:
            work.wait()
    for _ in range(3):
        comm.all_reduce(x0 := np.ones(5))
        assert x0.tolist() == [3] * 5
    for work in works:
        work.wait()
    comm.all_reduce_init(np.ones(3))()
    comm.scatter(np.ones((3, 4)) if rank == 0 else None, out=np.ones(4))
    comm.all_reduce(np.ones(3), op=hpccoll.premul_sum(rank))
    """.strip()
    for said in run(call):
        assert said["told"] == ""


def test_nothing_is_compared_where_nobody_asks():
    for said in run("comm.all_reduce(np.ones((2, 3) if rank == 2 else 6))", debug="0"):
        assert said["told"] == ""
