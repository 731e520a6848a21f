"""`hpccoll profile` on training over Gloo: results stay equal, and collectives that torch calls in C++ are recorded."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpccoll.profile import explain_profile, read_profile
from hpccoll.profile.layout import EntryFlag
from tests.jobs.launch import BIN, environment
from tests.requirements import skip_or_fail

pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("profiled_training.py")
RANKS, STEPS, SLEEP_S, LIMIT_S = 2, 4, 0.05, 120
LINES = PROGRAM.read_text().splitlines()
FORWARD, BACKWARD = (
    next(number for number, line in enumerate(LINES, 1) if text in line) for text in ("loss = ", "loss.backward()")
)
PARAMETER_BYTES = 4 * sum(n * m + m for n, m in ((8, 64), (64, 64), (64, 3))) + 4 * 2 * 64
OTHER_HOST = [  # whose name and clock differ
    *("unshare", "--uts", "--time", "--monotonic", "5000", "--fork"),
    *("sh", "-c", 'hostname other && exec "$@"', "-"),
]


def can_be_another_host():
    """Whether this user may run a process with another host name and clock."""
    try:
        return subprocess.run([*OTHER_HOST, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def run_ranks(words, *arguments, hosts=((), ())):
    """Run the program on two ranks; return the sorted lines with digests.

    `hosts` are the words that start a process on the host of each rank.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # free until now
    processes = [
        subprocess.Popen(
            [*hosts[rank], *map(str, words), str(PROGRAM), str(port), *arguments],
            env=environment(RANK=str(rank), WORLD_SIZE=str(RANKS), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo"),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    # Threads of torch may abort a process at its end, also without recording.
    assert {process.returncode for process in processes} <= {0, -signal.SIGABRT}, outputs
    return sorted(line for output in outputs for line in output.splitlines() if line.startswith("digest"))


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Return the profile of the program, whose results are those of an unrecorded run."""
    path = tmp_path_factory.mktemp("profile")
    expected = run_ranks([sys.executable])
    assert len(expected) == RANKS * 6
    hosts = ((), OTHER_HOST if can_be_another_host() else ())
    assert run_ranks([BIN / "hpccoll", "profile", "-o", path / "job"], hosts=hosts) == expected
    return explain_profile(read_profile(str(path / "job")))


def list_calls(rank, profile, name, line=None):
    """Return the entries of a method, at a line of the program if it is given."""
    names, lines = np.array(profile.names)[rank.entries["op"]], [profile.sites[s].line for s in rank.entries["site"]]
    return rank.entries[(names == name) & ((line is None) | (np.array(lines) == line))]


def test_buckets_are_recorded_until_the_wait_that_completes_them(job):
    assert job.profile.library == "gloo"
    for rank in job.profile.ranks:
        reductions = list_calls(rank, job.profile, "allreduce", BACKWARD)
        waits = list_calls(rank, job.profile, "wait", BACKWARD)
        waits = waits[waits["flags"] & EntryFlag.COMPLETE != 0]
        # plain: 1 bucket in the first step and 2 later ones; unused: a bucket and a map of used parameters; sparse and
        # hooked: 1 each
        plain = 1 + 2 * (STEPS - 1)
        assert len(reductions) == plain + 2 * STEPS + 2 * STEPS
        assert reductions["nbytes"][0] == PARAMETER_BYTES
        assert np.all(reductions["nbytes"][1:plain].reshape(-1, 2).sum(axis=1) == PARAMETER_BYTES)
        assert set(reductions["request"]) <= set(waits["request"])
        started = rank.entries["flags"] & EntryFlag.START != 0
        completed = rank.entries["flags"] & EntryFlag.COMPLETE != 0
        assert started.sum() == completed.sum()


def test_a_wait_of_the_backward_pass_lasts_until_the_late_rank_has_come(job):
    graph = job.graph
    names = np.array([*job.profile.names, "end"])[graph.op]
    at_backward = np.array([job.profile.sites[site].line == BACKWARD for site in graph.site])
    waits = graph.wait_s[(names == "wait") & at_backward & (graph.rank == 0)]
    long = waits[waits > SLEEP_S / 2]  # other programs share the cores
    assert len(long) >= STEPS - 1
    assert np.median(long) < 10 * SLEEP_S
    assert 1 in [late.rank for late in job.late]


def test_ranks_of_several_hosts_have_a_common_clock(job):
    if not can_be_another_host():
        skip_or_fail("needs the right to name a host and to set its clock")
    assert job.profile.ranks[1].host == "other"
    assert 0 < job.profile.clock_error_s < 0.1
    starts = [rank.program_begin_s for rank in job.profile.ranks]
    assert abs(starts[1] - starts[0]) < 30  # their clocks differ by 5000 s


def test_broadcasts_in_cpp_and_shards_are_recorded(job):
    for rank in job.profile.ranks:
        buffers = list_calls(rank, job.profile, "_broadcast_coalesced", FORWARD)
        assert len(buffers) == 2 * STEPS  # of the two models with a batch normalization
        assert len(list_calls(rank, job.profile, "_verify_params_across_processes")) == 4
        gathers = [list_calls(rank, job.profile, name, FORWARD) for name in ("_allgather_base", "all_gather_single")]
        assert sum(map(len, gathers)) == STEPS


def test_functional_collectives_are_recorded_until_their_waits(job):
    for rank in job.profile.ranks:
        reductions, waits = (list_calls(rank, job.profile, name, FORWARD) for name in ("all_reduce", "wait_tensor"))
        assert len(reductions) == STEPS  # one per forward pass of the tensor-parallel model
        assert np.all(reductions["nbytes"] == 5 * 3 * 4)
        assert set(reductions["request"]) <= set(waits["request"])
    graph = job.graph
    names = np.array([*job.profile.names, "end"])[graph.op]
    assert np.all(graph.matches.group[names == "wait_tensor"] >= 0)  # each needs all ranks


@pytest.mark.full
def test_compiled_models_have_equal_results(tmp_path):
    expected = run_ranks([sys.executable], "compiled")
    assert len(expected) == RANKS * 3
    recorded = run_ranks([BIN / "hpccoll", "profile", "-o", tmp_path / "job"], "compiled")
    assert recorded == expected
    profile = read_profile(str(tmp_path / "job"))
    assert [len(list_calls(rank, profile, "allreduce", BACKWARD)) for rank in profile.ranks] == [2 * STEPS] * RANKS
