"""Traces of liballprof are read as profiles, with the calls, bytes, communicators and times that they carry.

The traces in tests/data/allprof are of docs/programs/jacobi.py with MPICH, and of ring.c with Open MPI, whose ranks
start their clocks at different times.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hpccoll.errors import UsageError
from hpccoll.profile import explain_profile, format_screen, is_readable, read_recording
from hpccoll.profile.allprof_requests import match_requests
from hpccoll.profile.allprof_trace import read_trace
from hpccoll.profile.dependencies import build_graph
from hpccoll.profile.exports import export_profile
from hpccoll.profile.layout import ANY, NOBODY, EntryFlag
from hpccoll.profile.replay import replay_job
from hpccoll.profile.replay_steps import make_steps
from tests.unit.profile.test_foreign_traces import count_collectives, count_messages

DATA = Path(__file__).parents[2] / "data" / "allprof"
WORLD = "1140850688,{rank},{ranks}"


def count_calls(graph):
    """Return how many calls of each operation there are, and the sum of their bytes."""
    names = [graph.operations[op] for op in graph.op.tolist()]
    nbytes: Counter[str] = Counter()
    for name, size in zip(names, graph.nbytes.tolist(), strict=True):
        nbytes[name] += size
    return {name: (calls, nbytes[name]) for name, calls in Counter(names).items() if name != "end"}


def find_largest_drift_s():
    """Return the largest change, in seconds, of the differences of clocks in the traces of ring.c."""
    texts = [(DATA / f"ring-{rank}.txt").read_text() for rank in range(4)]
    differences = [
        [float(line.split()[-1 if "Finalize" in line else 2]) for line in text.splitlines() if "clockd" in line]
        for text in texts
    ]
    return 1e-6 * max(abs(last - first) for first, last in differences)


def write_traces(directory, bodies):
    """Write a trace per rank with the lines of `bodies`, without their common begin and end; return the first path."""
    for rank, body in enumerate(bodies):
        world = WORLD.format(rank=rank, ranks=len(bodies))
        lines = ["MPI_Init:-:0:0:1000", f"MPI_Comm_rank:1000:{world}:9:1000", *body, "MPI_Finalize:9000:-"]
        header = "# htor's PMPI Tracer 1 Output File\n# clockdiff: 0.000000 s (relative to rank 0)\n\n"
        text = header + "\n".join(lines) + "\n"
        (directory / f"job-{rank:02}.txt").write_text(text.replace("WORLD", world))
    return directory / "job-00.txt"


def read_one(directory, *lines):
    """Return the graph of two ranks that both have the lines."""
    return build_graph(read_recording(str(write_traces(directory, [lines, lines]))))


def test_the_trace_of_jacobi_has_the_calls_of_the_program():
    iterations, row = 3, 18 * 8
    graph = build_graph(read_recording(str(DATA / "jacobi-1.txt")))
    counts = count_calls(graph)
    assert counts["sendrecv"] == (2 * 2 * iterations, 2 * row * iterations)  # two to MPI_PROC_NULL have no bytes
    assert counts["all_reduce"] == (2 * iterations, 2 * iterations * 8)
    assert counts["new_group"] == (4, 0)  # Create_cart, and mpi4py's dup for allreduce of objects
    messages = count_messages(graph)
    assert messages[0, 1, row] == messages[1, 0, row] == iterations
    exchanges = graph.op == graph.operations.index("sendrecv")
    ends = graph.profile.ranks[0].entries[exchanges[graph.rank == 0][:-1]][["peer", "request"]]
    assert set(ends.tolist()) == {(NOBODY, 1), (1, NOBODY)}
    assert set(graph.itemsize[graph.op == graph.operations.index("all_reduce")]) == {8}
    assert {rank.host for rank in graph.profile.ranks} == {"node0"}
    assert set(graph.profile.comms) == {(0, 1)}


def test_requests_communicators_and_constants_of_open_mpi():
    profile = read_recording(str(DATA / "ring-0.txt"))
    assert profile.comms == ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1), (0, 2), (1, 3), (2, 3))
    graph = build_graph(profile)
    ring = {(rank, (rank + 1) % 4, 32): 3 for rank in range(4)} | {(rank, (rank + 1) % 4, 8): 1 for rank in range(4)}
    rest = {(rank, rank + 1, 12): 1 for rank in range(3)} | {(1, 0, 4): 1}
    assert count_messages(graph) == Counter(ring) + Counter(rest)
    expected = {(rank, "all_reduce", 16): 3 for rank in range(4)}
    collectives = count_collectives(graph)
    assert {key: collectives[key] for key in expected} == expected
    assert count_calls(graph)["broadcast"] == (12, 12 * 8)
    entries = profile.ranks[1].entries
    receives = entries[entries["op"] == profile.operations.index("recv")]
    assert receives[["peer", "tag", "nbytes"]].tolist() == [(0, 1, 32)] * 3 + [(ANY, ANY, 8)]
    assert np.count_nonzero(entries["flags"] & EntryFlag.MORE) == 3  # one per Waitall
    begins = [rank.begin_s[0] for rank in profile.ranks]
    assert np.ptp(begins) < 0.01  # the clocks differ by 40 to 80 ms, which liballprof writes as thousands of seconds
    assert profile.clock_error_s == pytest.approx(1e-6 + 2 * find_largest_drift_s())
    screen = format_screen(explain_profile(profile))
    assert "calls of other functions" in screen
    assert "1 MPI_Probe" in screen
    assert "assigned in the order in which communicators were created" in screen


def test_a_trace_can_be_exported_simulated_and_replayed(tmp_path):
    graph = build_graph(read_recording(str(DATA / "ring-2.txt")))
    export_profile(graph, str(tmp_path / "ring.et"))
    read = build_graph(read_recording(str(tmp_path / "ring.et")))
    assert count_messages(read) == count_messages(graph)
    assert replay_job(graph).run_s == pytest.approx(graph.run_s, rel=0.02)
    steps = [step.operation for step in make_steps(graph, 1)]
    assert (steps.count("all_reduce"), steps.count("send"), steps.count("wait")) == (3, 6, 5)


@pytest.mark.parametrize(
    ("line", "operation", "nbytes"),
    [
        ("Bcast:1:5:3:10,8,8:0:C:2", "broadcast", 24),
        ("Reduce:1:5:6:3:10,8,8:3:0:C:2", "reduce", 24),
        ("Allreduce:1:18446744073709551615:6:3:10,8,8:3:C:2", "all_reduce", 24),
        ("Gather:1:5:3:10,8,8:6:3:10,8,8:0:C:2", "gather", 24),
        ("Gatherv:1:5:3:10,8,8:6:7:3,4:8:0,3:10,8,8:0:C:2", "gather", 24),
        ("Allgather:1:5:3:10,8,8:6:3:10,8,8:C:2", "all_gather", 24),
        ("Allgather:1:18446744073709551615:0:10,8,8:6:3:10,8,8:C:2", "all_gather", 24),
        ("Allgatherv:1:18446744073709551615:0:10,8,8:6:7:3,3:8:0,3:10,8,8:C:2", "all_gather", 24),
        ("Alltoall:1:5:3:1,4,4:6:3:1,4,4:C:2", "all_to_all", 24),
        ("Alltoall:1:18446744073709551615:0:1,4,4:6:3:1,4,4:C:2", "all_to_all", 24),
        ("Alltoallv:1:5:6:1,5:6:0,1:1,4,4:7:8:2,4:8:0,2:1,4,4:C:2", "all_to_all", 24),
        ("Alltoallw:1:5:6:1,5:6:0,1:9:7:8:2,4:8:0,2:9:C:2", "all_to_all", -1),
        ("Reduce_scatter:1:5:6:7:1,2:10,8,8:3:C:2", "reduce_scatter", 24),
        ("Reduce_scatter_block:1:5:6:3:1,4,4:3:C:2", "reduce_scatter", 24),
        ("Scan:1:5:6:3:10,8,8:3:C:2", "scan", 24),
        ("Barrier:1:C:2", "barrier", 0),
    ],
)
def test_the_bytes_of_a_collective(line, operation, nbytes, tmp_path):
    graph = read_one(tmp_path, "MPI_" + line.replace("C", "WORLD"))
    assert count_calls(graph) == {operation: (2, 2 * nbytes)}
    assert graph.matches.instance[0] == graph.matches.instance[2] == 0


def test_a_scatter_has_all_blocks_on_the_root(tmp_path):
    lines = "MPI_Scatter:1:5:3:10,8,8:6:3:10,8,8:1:WORLD:2", "MPI_Scatterv:3:5:6:3,4:7:0,3:10,8,8:6:3:10,8,8:1:WORLD:4"
    graph = read_one(tmp_path, *lines)
    nbytes = graph.nbytes[graph.matches.instance >= 0].reshape(2, 2)
    assert nbytes.tolist() == [[24, 24], [48, 56]]


def test_a_persistent_request_is_started_repeatedly_also_by_copies(tmp_path):
    made = "MPI_Send_init:1:5:3:1,4,4:1:7:WORLD:400:2", "MPI_Recv_init:1:5:3:1,4,4:0:7:WORLD:400:2"
    rounds = ["MPI_Start:3:400:4", "MPI_Wait:4:400:0:5", "MPI_Startall:6:1:900:7", "MPI_Waitall:7:1:900:0:8"]
    graph = build_graph(read_recording(str(write_traces(tmp_path, [[of_rank, *rounds] for of_rank in made]))))
    assert count_messages(graph) == {(0, 1, 12): 2}
    assert "4 calls have copies of requests" in graph.profile.problems[-1]


def test_the_last_test_completes_a_request(tmp_path):
    receive = "MPI_Irecv:10:5:3:1,4,4:1:7:WORLD:400:11"
    tests = [f"MPI_Test:{time}:400:0:0:{time + 1}" for time in (20, 30)]
    again = [receive.replace("10:", "40:", 1).replace(":11", ":41"), "MPI_Testall:50:1:400:0:0:51"]
    trace = read_trace(write_traces(tmp_path, [[receive, *tests, *again]]))
    names = [call.name for call in trace.calls]
    completed = match_requests(trace).completed
    assert [(index, names[index]) for index, requests in enumerate(completed) if requests] == [
        (4, "Test"),
        (6, "Testall"),
    ]


def test_requests_have_four_bytes_in_mpich_and_eight_elsewhere(tmp_path):
    lines = [f"MPI_Irecv:1:5:3:1,4,4:1:7:WORLD:{address}:2" for address in (400, 404, 408)]
    path = write_traces(tmp_path, [[*lines, "MPI_Waitall:3:2:400:0:4"]])
    assert [address for _, address in match_requests(read_trace(path)).completed[-2]] == [400, 404]
    path.write_text(path.read_text().replace("1140850688", "94645638202016"))
    assert [address for _, address in match_requests(read_trace(path)).completed[-2]] == [400, 408]


def test_persistent_requests_that_run_are_not_started_by_copies(tmp_path):
    made = [f"MPI_Recv_init:1:5:3:1,4,4:0:7:WORLD:{address}:2" for address in (400, 500)]
    body = [*made, "MPI_Start:3:400:3", "MPI_Startall:4:1:900:4", "MPI_Wait:5:500:0:6", "MPI_Wait:5:600:0:6"]
    trace = read_trace(write_traces(tmp_path, [body]))
    assert match_requests(trace).started[5] == [500]
    profile = read_recording(str(tmp_path / "job-00.txt"))
    assert count_calls(build_graph(profile))["wait"] == (2, 0)  # also of a null request


def test_a_handle_belongs_to_an_unused_communicator_of_its_size(tmp_path):
    copy, split = "MPI_Comm_dup:5:WORLD:700:6", "MPI_Comm_split:7:WORLD:{}:0:708:8"
    bodies = [
        [copy, split.format(1), f"MPI_Barrier:9:77,{rank - 1},2:10", f"MPI_Barrier:11:66,{rank},3:12"]
        for rank in range(3)
    ]
    bodies[0][1:3] = [split.format(-32766)]  # MPI_UNDEFINED
    for rank, body in enumerate(bodies):
        body += [split.replace("7", "13", 1).format(0).replace(":8", ":14"), f"MPI_Barrier:15:88,{rank},3:16"]
    profile = read_recording(str(write_traces(tmp_path, bodies)))
    assert profile.comms == ((0, 1, 2), (0, 1, 2), (0, 1, 2), (1, 2))


def test_a_freed_handle_stands_for_a_new_communicator(tmp_path):
    def split(time, color, key):
        return (
            f"MPI_Comm_split:{time}:WORLD:{color}:0:700:{time}",
            f"MPI_Barrier:{time}:-55,{key},2:{time + 5}",
            f"MPI_Comm_free:{time + 6}:700:{time + 6}",
        )

    bodies = [
        [*split(10, rank // 2, rank % 2), *split(30, rank % 2, rank // 2)] for rank in range(4)
    ]  # the same handle for both
    profile = read_recording(str(write_traces(tmp_path, bodies)))
    assert profile.comms == ((0, 1, 2, 3), (0, 1), (0, 2), (1, 3), (2, 3))
    assert build_graph(profile).matches.instance.max() == 2 + 4 - 1


def test_a_known_handle_of_another_size_is_a_new_communicator(tmp_path):
    body = "MPI_Comm_dup:5:WORLD:700:6", "MPI_Barrier:7:77,{},2:8", "MPI_Comm_split:9:WORLD:{}:0:800:9"
    bodies = [[line.format(rank) for line in (*body, "MPI_Barrier:10:77,0,1:11")] for rank in range(2)]
    assert read_recording(str(write_traces(tmp_path, bodies))).comms == ((0, 1), (0, 1), (0,), (1,))


def test_calls_on_unknown_communicators_are_left_out_with_a_note(tmp_path):
    made, last = "MPI_Cart_sub:5:WORLD:600:700:6", "MPI_Barrier:9:WORLD:10"
    pairs = [[made, f"MPI_Barrier:7:77,{rank % 2},2:8", last] for rank in range(4)]  # of two groups
    for used in (4, 2):  # with two, each of both groups has one rank that uses it
        bodies = [of_rank if rank % 2 == 0 or used == 4 else of_rank[2:] for rank, of_rank in enumerate(pairs)]
        profile = read_recording(str(write_traces(tmp_path, bodies)))
        assert count_calls(build_graph(profile))["barrier"] == (4, 0)
        note = f"{used} calls on communicators whose ranks the traces do not state"
        assert any(note in problem for problem in profile.problems)


def test_calls_of_fortran_and_times_with_fractions(tmp_path):
    path = write_traces(tmp_path, [["MPI_Barrier:1500.25:WORLD:1600.75"]] * 2)
    for file in tmp_path.iterdir():
        file.write_text(file.read_text().replace("1140850688", "0"))
    graph = build_graph(read_recording(str(path)))
    assert (graph.begin_s[0], graph.end_s[0]) == pytest.approx((500.25e-6, 600.75e-6))
    assert read_trace(path).request_bytes == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("MPI_Finalize:9000:-\n", "", r"job-01.txt:6: ends before MPI_Finalize, with Barrier; copy the file"),
        ("MPI_Finalize:9000:-\n", "MPI_Fin", r"job-01.txt:7: 'MPI_Fin' is not of the form MPI_NAME:BEGIN"),
        (
            "1140850688,1,2:1600",
            "44:1600",
            r"job-01.txt:6: .* is cut off, or lacks the sizes of datatypes; copy the file again",
        ),
        ("1140850688,1,2:1600", "44,x,2:1600", r"job-01.txt:6: 'x' is no whole number"),
        (":1600", ":1400", r"job-01.txt:6: 'MPI_Barrier:1500"),
        ("1,2:", "1,3:", r"job-01.txt:4: .* but one with 3 ranks; copy the traces of all ranks"),
        ("88,1,2", "88,0,2", r"job-01.txt:4: has no communicator in which it is rank 1 of 2"),
    ],
)
def test_damaged_traces_are_refused_with_file_and_line(old, new, message, tmp_path):
    path = write_traces(tmp_path, [["MPI_Barrier:1500:WORLD:1600"]] * 2)
    assert is_readable(str(path))
    second = tmp_path / "job-01.txt"
    assert old in second.read_text()
    second.write_text(second.read_text().replace(old, new))
    with pytest.raises(UsageError, match=message):
        read_recording(str(path))


def test_missing_traces_are_named(tmp_path):
    for rank in (0, 1, 3):
        shutil.copy(DATA / f"ring-{rank}.txt", tmp_path)
    with pytest.raises(UsageError, match="the trace of rank 2 is missing"):
        read_recording(str(tmp_path / "ring-0.txt"))
    shutil.copy(DATA / "ring-0.txt", tmp_path / "ring.txt")
    with pytest.raises(UsageError, match="has no rank in its name"):
        read_recording(str(tmp_path / "ring.txt"))
    (tmp_path / "script.py").write_text("print('MPI_Send:1:2')\n")
    assert not is_readable(str(tmp_path / "script.py"))
