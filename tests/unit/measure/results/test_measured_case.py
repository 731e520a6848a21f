"""The comparison of implementations at one size: ties, ranges of sizes, styles of lines, and the main finding."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from hpccoll.measure.display.series_styles import MAX_COLOURED, choose_series_styles
from hpccoll.measure.results.collective_record import make_collective_record
from hpccoll.measure.results.measured_case import Implementation, list_cases
from hpccoll.measure.verdict.main_finding import describe_fastest, describe_main_finding
from hpccoll.measure.verdict.size_ranges import find_fastest_ranges
from hpccoll.records import CollectiveCase, StopReason

CASE = CollectiveCase("all_reduce", "mpi", None, "host", True, 8, 2, "float32", "sum", None, 4, 1)
NOISE = [1 + at / 1000 for at in range(20)]
MPI, AUTO, RING, TREE = ("mpi", None), ("hpccoll", "auto"), ("hpccoll", "ring"), ("hpccoll", "tree")


def cases(times, wrong=(), **row):
    """Cases from {implementation: [time per size]} for sizes from 8 B by 8."""
    records = [
        make_collective_record(
            replace(CASE, engine=name[0], algorithm=name[1], nbytes=8 * 8**at, count=2 * 8**at, **row),
            tuple(time * step for step in NOISE),
            StopReason.CONVERGED,
            int((name, at) in wrong),
        )
        for name, own in times.items()
        for at, time in enumerate(own)
    ]
    return list_cases(records)


def test_times_within_five_percent_tie():
    (case,) = cases({RING: [100], TREE: [103], AUTO: [115]})
    assert case.tied == (Implementation(*RING), Implementation(*TREE))
    (case,) = cases({RING: [100], TREE: [103]}, wrong=[(RING, 0)])
    assert case.fastest == Implementation(*TREE)


def test_a_tie_does_not_end_a_range():
    measured = cases({RING: [10, 20.4, 40, 99], TREE: [15, 20, 60, 50]})
    ranges = find_fastest_ranges(measured, lambda case: case.tied)
    assert [(each.cases[0].nbytes, each.cases[-1].nbytes, each.names[0].label) for each in ranges] == [
        (8, 512, "ring"),
        (4096, 4096, "tree"),
    ]
    assert describe_fastest(cases({RING: [10, 20], TREE: [10.1, 20.2]})) == (
        "Fastest: ring (tied: tree) from 8 B to 64 B. Tied: not shown to be more than 5% slower."
    )


@pytest.mark.parametrize(
    ("times", "finding"),
    [
        ({MPI: [20, 40], AUTO: [10, 10]}, "auto beats the MPI library in all 2 cases, up to 4 times as fast"),
        ({MPI: [10], AUTO: [20]}, "auto is slower than the MPI library in the only case, up to 2 times as slow"),
        ({MPI: [10, 10], AUTO: [10, 10.1], RING: [1, 1]}, "auto ties with the MPI library in all 2 cases"),
        (
            {MPI: [20, 10, 10], AUTO: [10, 10, 15]},
            "auto beats the MPI library in 1 of 3 cases (up to 2 times as fast), ties in 1 and is slower in 1 "
            "(up to 1.5 times as slow)",
        ),
        ({MPI: [20], RING: [10]}, "hpccoll's fastest algorithm beats the MPI library in the only case, up to 2 times"),
        ({TREE: [5, 9], RING: [10, 3]}, "fastest is tree at 8 B and ring at 64 B"),
        ({TREE: [5, 3], RING: [10, 3]}, "fastest is tree from 8 B to 64 B"),
    ],
)
def test_the_main_finding_compares_auto_with_the_mpi_library(times, finding):
    assert describe_main_finding(cases(times)).startswith(f"all_reduce: {finding}")


def test_the_main_finding_names_all_operations_and_leaves_out_wrong_results():
    both = cases({MPI: [20], AUTO: [10]}) + cases({MPI: [20], AUTO: [10]}, op="reduce", root=0)
    assert describe_main_finding(both).startswith("all_reduce, reduce: auto beats the MPI library in all 2 cases")
    assert describe_main_finding(cases({RING: [1]}, wrong=[(RING, 0)])) == ""


def test_the_main_finding_on_a_barrier_names_no_size():
    row = replace(CASE, op="barrier", engine="hpccoll", algorithm="linear", nbytes=0, count=0, redop=None)
    barrier = list_cases([make_collective_record(row, NOISE, StopReason.CONVERGED, 0)])
    assert describe_main_finding(barrier) == "barrier: fastest is linear"


def test_implementations_of_one_operation_never_share_a_colour():
    names = [("hpccoll", f"a{at}") for at in range(14)]
    measured = []
    for start, op in product(range(0, 14, 3), ("all_reduce", "reduce", "all_gather")):
        own = [*names[start : start + 5], *names[: start // 2]]
        times = {name: [1 if at == i else 9 for at in range(len(own))] for i, name in enumerate(own)}
        measured += cases(times, op=op, root=0 if op == "reduce" else None, ranks=4 + start)
    for found in choose_series_styles(measured).values():
        loud = [style.colour for style in found.values() if not style.is_muted]
        assert len(loud) == len(set(loud)) == MAX_COLOURED


def test_an_implementation_keeps_its_colour_in_all_operations():
    times = {RING: [1, 9], TREE: [9, 1]}
    styles = choose_series_styles([*cases(times), *cases({**times, AUTO: [9, 9]}, op="reduce", root=0)])
    assert {styles[op][Implementation(*RING)] for op in styles} == {styles["reduce"][Implementation(*RING)]}
