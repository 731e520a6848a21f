"""The verdict of a benchmark: the fastest, ties, the selection of auto, doubts, and the next commands."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from msgspec.structs import replace

from hpccoll.measure.hardware_limit import HardwareLimit, _compute_duration
from hpccoll.measure.results.collective_record import make_collective_record
from hpccoll.measure.results.measured_case import get_choice, is_tie, list_table_cases
from hpccoll.measure.verdict.size_ranges import find_fastest_ranges
from hpccoll.measure.verdict.text import format_footer, format_us, format_verdict
from hpccoll.measure.verdict.trust import RunConditions
from hpccoll.plan import Operation
from hpccoll.records import CollectiveCase, StartMethod, StopReason
from hpccoll.units import KiB, MiB

LIBRARIES = ("gloo", "nccl", "torch-hpccoll")
ROW = CollectiveCase("all_reduce", "mpi", None, "host", True, 1024, 256, "float32", "sum", None, 4, 1)


def record(name, us, nbytes=1024, wrong=0, iterations=20, spread=0.01, selected=None, **row):
    """A row of an engine, or of an algorithm of hpccoll, whose iterations took about `us` microseconds."""
    samples = tuple(us * (1 + spread * (at % 5 - 2)) for at in range(iterations))
    engine, algorithm = (name, None) if name in ("mpi", *LIBRARIES) else ("hpccoll", name)
    case = replace(ROW, engine=engine, algorithm=algorithm, nbytes=nbytes, count=nbytes // 4, **row)
    return make_collective_record(case, samples, StopReason.CONVERGED, wrong, selected=selected)


def auto(us, selected, **row):
    """A row of auto."""
    return record("auto", us, selected=selected, **row)


def rows_of(nbytes, mpi=20.0, gloo=200.0, ring=10.0, taken="ring", auto_us=None):
    """The rows of one size."""
    times = {"mpi": mpi, "gloo": gloo, "ring": ring}
    found = [record(name, us, nbytes=nbytes) for name, us in times.items()]
    return [*found, auto(times[taken] if auto_us is None else auto_us, taken, nbytes=nbytes)]


THREE = [*rows_of(8, mpi=2.0, ring=4.0, taken="mpi"), *rows_of(64 * KiB), *rows_of(64 * MiB, ring=5.0)]


def verdict(records, width=None, **conditions):
    """The whole text."""
    return format_verdict(list_table_cases(records), RunConditions(**conditions), width)


def line(records, size, width=None, **conditions):
    """The cells of a size's line in the table."""
    (found,) = [each for each in verdict(records, width, **conditions).splitlines() if each.strip().startswith(size)]
    return re.split(r" {2,}", found.strip())


def paragraph(records, keyword, **conditions):
    """The text after a keyword, with its lines joined; for `trust`, its lines are findings."""
    text = re.sub(r"\n {7}", " ", verdict(records, **conditions))
    return [each.removeprefix(f"{keyword}:").strip() for each in text.splitlines() if each.startswith(f"{keyword}:")]


def test_a_line_per_size_has_the_fastest_its_time_its_factors_and_what_auto_takes():
    assert line(THREE, "8 B") == ["8 B", "mpi", "2.00 us", "1x", "100x", "mpi"]
    assert line(THREE, "64 KiB") == ["64 KiB", "ring", "10.0 us", "2.00x", "[1.96,2.04]", "20.0x", "ring"]
    assert line(THREE, "64 MiB") == ["64 MiB", "ring", "5.00 us", "4.00x", "[3.92,4.08]", "40.0x", "ring"]


def test_a_row_of_auto_counts_for_what_it_selected():
    assert get_choice(auto(1.0, "mpi")) == get_choice(record("mpi", 1.0)) == "mpi"
    (found,) = list_table_cases([record("mpi", 2.0), auto(1.0, "mpi"), record("ring", 3.0)])
    assert (found.best_choices, list(found.by_choice)) == (("mpi",), ["mpi", "ring"])
    assert found.is_auto_best


@pytest.mark.parametrize(("ring", "told"), [(20.5, "mpi or ring"), (22.0, "mpi")])
def test_a_tie_is_called_a_tie(ring, told):
    assert line(rows_of(8, ring=ring, taken="mpi"), "8 B")[1] == told


def test_a_wide_interval_makes_a_tie_of_a_large_difference():
    noisy = [record("mpi", 20.0, spread=0.3), record("ring", 15.0, spread=0.3)]
    (found,) = list_table_cases(noisy)
    assert found.best_choices == ("ring", "mpi")


@pytest.mark.parametrize(
    ("taken", "us", "told"),
    [("ring", 10.0, "ring"), ("mpi", 10.2, "mpi (ties)"), ("mpi", 20.0, "mpi (2.00x)")],
)
def test_the_distance_of_auto_is_told(taken, us, told):
    found = rows_of(8, mpi=us if taken == "mpi" else 20.0, taken=taken, auto_us=us)
    assert line(found, "8 B")[-1] == told
    says = paragraph(found, "auto")[0]
    assert ("slower at 8 B (mpi: 2.00x the time of ring)" in says) == ("2.00x" in told)
    tune = "so that later runs of auto take the fastest at 8 B: mpirun -n 4 hpccoll tune all_reduce"
    assert (tune in paragraph(found, "next")) == ("2.00x" in told)


def test_every_line_names_the_same_choices_at_a_size_without_a_clear_winner():
    rows = [*rows_of(8, mpi=11.5, ring=10.0, taken="mpi", auto_us=10.2), *rows_of(64, mpi=5.0, taken="mpi")]
    assert line(rows, "8 B")[1:] == ["ring or mpi", "10.0 us", "1.02x", "[1.00,1.04]", "20.0x", "mpi (ties)"]
    assert paragraph(rows, "use") == ["fastest or tied: 8 B to 64 B mpi (19.6 to 40.0 times as fast as gloo)"]
    assert paragraph(rows, "auto")[0].endswith("takes the fastest, or one that ties with it, at all 2 sizes")
    assert not any("tune" in each for each in paragraph(rows, "next"))


@pytest.mark.parametrize(("ring", "low"), [(10.5, 1.04), (10.65, 1.05), (10.7, 1.06), (12.0, 1.19)])
def test_the_printed_interval_decides_ties(ring, low):
    rows = [record("mpi", ring, spread=0.005), record("ring", 10.0, spread=0.005)]
    (found,) = list_table_cases(rows)
    cells = line(rows, "1 KiB")
    assert cells[4].startswith(f"[{low:.2f},")
    assert (found.best_choices == ("ring", "mpi")) == is_tie(*rows) == is_tie(*rows[::-1]) == (low <= 1.05)
    assert cells[1] == ("ring or mpi" if low <= 1.05 else "ring")
    legend = '"or", "ties": the 95 % interval of their ratio begins at 1.05 or less'
    assert (legend in " ".join(verdict(rows).splitlines())) == (low <= 1.05)


def test_a_call_of_auto_that_takes_longer_than_its_choice_is_told():
    rows = rows_of(8, auto_us=12.0)
    assert line(rows, "8 B")[-1] == "ring (1.20x)"
    assert verdict(rows).splitlines()[1].endswith("auto takes (x time)")
    assert paragraph(rows, "auto")[0].endswith("(ring: 1.20x the time of the same algorithm called by name)")
    assert not any("tune" in each for each in paragraph(rows, "next")), "auto would select the same"


def test_many_sizes_at_which_auto_is_slower_are_counted():
    rows = [row for at in range(4) for row in rows_of(8 * 4**at, taken="mpi")]
    assert paragraph(rows[:8], "next")[0].startswith("so that later runs of auto take the fastest at 8 B, 32 B: ")
    assert paragraph(rows, "next")[0].startswith("so that later runs of auto take the fastest at 4 sizes: ")


def test_the_table_names_as_many_tied_choices_as_fit():
    rows = [*rows_of(8), *(record(name, 10.0, nbytes=8) for name in ("tree", "recursive_doubling"))]
    assert line(rows, "8 B")[1] == "ring or recursive_doubling or 1 more"
    assert line(rows, "8 B", 75)[1] == "ring or 2 more"


def test_the_legend_names_the_libraries_and_marks():
    text = " ".join(verdict(THREE, mpi_library="MPICH 5.0.2").splitlines())
    assert "mpi: MPICH 5.0.2; gloo: torch.distributed; others: hpccoll's algorithms; x: times as fast as)" in text
    assert "torch" not in verdict([row for row in THREE if row.engine != "gloo"])


def test_hpccoll_through_torch_is_a_library_of_its_own_beside_auto():
    rows = [*rows_of(8), record("torch-hpccoll", 40.0, nbytes=8)]
    assert line(rows, "8 B")[1] == "ring"
    assert "4.00x torch-hpccoll" in paragraph(rows, "use")[0]
    assert "gloo, torch-hpccoll: torch.distributed" in " ".join(verdict(rows).splitlines())
    fastest = [*rows_of(8), record("torch-hpccoll", 1.0, nbytes=8)]
    assert line(fastest, "8 B")[1] == "torch-hpccoll"
    assert not any("tune" in each for each in paragraph(fastest, "next"))


def test_uncertain_medians_of_the_fastest_are_marked():
    rows = [record("mpi", 9.0), record("ring", 5.0, spread=0.2)]
    assert line(rows, "1 KiB")[2] == "~5.00 us"
    assert "~: uncertain by over 10 %" in verdict(rows)
    assert "~" not in verdict(THREE)


def test_a_wrong_result_is_never_the_fastest_and_nothing_is_trusted():
    rows = [*rows_of(8), record("tree", 0.1, nbytes=8, wrong=3)]
    assert line(rows, "8 B")[1] == "ring"
    assert paragraph(rows, "trust")[0].startswith("results: NO: 1 of 5 rows have wrong results (tree)")
    assert "values : 3 FAILED" in format_footer(list_table_cases(rows))
    alone = [record("tree", 0.1, nbytes=8, wrong=3)]
    assert "all wrong" in line(alone, "8 B")


@pytest.mark.parametrize("missing", ["mpi", "gloo", "auto", "ring"], ids="without_{}".format)
def test_what_was_not_measured_leaves_no_false_claim(missing):
    rows = [row for row in THREE if missing not in (row.engine, row.algorithm)]
    text = verdict(rows)
    cells = line(rows, "64 KiB")
    if missing == "mpi":
        assert cells == ["64 KiB", "ring", "10.0 us", "20.0x", "ring"]
        assert "x mpi" not in text
        assert "interval" not in text.splitlines()[1]
    elif missing == "gloo":
        assert "gloo" not in text
    elif missing == "auto":
        assert paragraph(rows, "auto") == ["not measured; add it by --algorithm auto"]
    else:
        assert cells[1] == "ring", "auto selected it"


def test_one_size_and_a_barrier_have_a_verdict():
    assert paragraph(rows_of(8), "auto") == [
        "comm.all_reduce(x) runs auto, which takes the fastest, or one that ties with it, at the only size"
    ]
    barrier = [record(name, us, 0, op="barrier", redop=None) for name, us in (("mpi", 2.0), ("linear", 3.0))]
    assert line(barrier, "0 B")[1] == "mpi"
    assert paragraph(barrier, "use") == ["mpi"]
    assert "comm.barrier() runs auto" in verdict([*barrier, auto(2.0, "mpi", nbytes=0, op="barrier", redop=None)])
    assert "hpccoll runs auto" in verdict([*rows_of(8), auto(2.0, "mpi", nbytes=8, op="broadcast", redop=None)])
    assert paragraph(barrier[:1], "trust")[0].startswith("results: the only one is right times: reliable")
    assert not paragraph(barrier, "limit", limit=HardwareLimit(1.0, 8, 1))


def test_ranges_of_sizes_end_where_another_is_faster_but_not_at_a_tie():
    verdicts = list_table_cases([*THREE, *rows_of(8 * MiB, mpi=10.1)])
    found = find_fastest_ranges(verdicts, lambda each: each.best_choices)
    assert [(each.names, [size.nbytes for size in each.cases]) for each in found] == [
        (("mpi",), [8]),
        (("ring",), [64 * KiB, 8 * MiB, 64 * MiB]),
    ]
    assert paragraph(THREE, "use") == [
        "8 B mpi (100 times as fast as gloo); 64 KiB to 64 MiB ring (2.00 to 4.00x mpi, 20.0 to 40.0x gloo)"
    ]


def test_factors_of_a_range_are_those_of_what_is_to_be_used_at_every_size():
    rows = [*rows_of(8, mpi=9.9), *rows_of(64)]
    assert paragraph(rows, "use") == [
        "fastest or tied: 8 B to 64 B ring (0.99 to 2.00 times as fast as mpi, 20.0x gloo)"
    ]


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        ({"oversubscribed": True, "cores": (2,) * 4}, "times: only valid where 4 ranks share 2 cores"),
        ({"oversubscribed": True, "cores": (1,) * 4}, "WRONG BINDING"),
        ({"oversubscribed": True, "cores": (1, 2, 2, 2)}, "4 ranks share fewer cores"),
        ({"oversubscribed": True, "cores": (2,) * 4}, "gloo's own threads need cores, too"),
        ({"stopped": True}, "missing: the run was stopped early"),
        ({"busy_cores": 0.7}, "other programs kept 0.7 cores busy"),
        ({"unavailable": ("gloo: torch is not installed",)}, "missing: gloo: torch is not installed"),
    ],
)
def test_circumstances_that_spoil_times_are_told(conditions, told):
    says = paragraph(THREE, "trust", **conditions)[0]
    assert says.startswith("results: all 12 are right fastest: clear at all 3 sizes (95 % intervals) times: ")
    assert told in says


def test_threads_of_gloo_are_mentioned_only_where_ranks_share_cores_with_gloo():
    shared = {"oversubscribed": True, "cores": (2,) * 4}
    assert "threads" not in paragraph(THREE, "trust")[0]
    assert "threads" not in paragraph([row for row in THREE if row.engine != "gloo"], "trust", **shared)[0]


def test_the_choice_of_the_fastest_is_trusted_apart_from_the_times():
    rows = [*THREE, *rows_of(MiB, mpi=10.1)]
    assert 'fastest: clear at 3 of 4 sizes (95 % intervals); not clear where the table says "or"' in verdict(rows)
    assert "fastest: clear at the only size (95 % intervals)" in verdict(rows_of(8))
    assert "fastest:" not in verdict([record("mpi", 2.0)])


def test_quiet_right_results_are_trusted():
    assert paragraph(THREE, "trust", oversubscribed=False, cores=(1,) * 4, busy_cores=0.0) == [
        "results: all 12 are right fastest: clear at all 3 sizes (95 % intervals) "
        "times: reliable: no median is uncertain by more than 10 %"
    ]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([record("mpi", 9.0, spread=0.2), record("ring", 5.0)], "1 of 2 medians uncertain by more than 10 %"),
        ([record("mpi", 9.0, iterations=5), record("ring", 5.0)], "1 of 2 intervals below 95 %"),
        ([record("mpi", 9.0, wrong=None), record("ring", 5.0, spread=0.2)], "1 of 2 rows not checked"),
        ([record("mpi", 9.0, ranks=1), record("ring", 5.0, ranks=1)], "one rank sends nothing"),
    ],
)
def test_doubtful_rows_are_counted(rows, told):
    assert told in paragraph(rows, "trust")[0]


@pytest.mark.parametrize(
    ("starts", "conditions", "told"),
    [
        ([None, None], {}, ""),
        (["barrier", "barrier"], {}, "by barriers, whose skew is in each time"),
        (
            ["barrier", "barrier"],
            {"barrier_reason": "as there are more ranks than cores"},
            "by barriers, as there are more ranks than cores",
        ),
        (["missed", "missed"], {}, "by barriers, as ranks missed most start windows"),
        (["window", "barrier"], {}, "in windows of a clock with errors up to 0.3 us"),
        (["window", "window"], {}, "in windows of a clock with errors up to 0.3 us, 20% of rounds discarded"),
        (
            ["window", "missed"],
            {},
            "in windows of a clock with errors up to 0.3 us, 20% of rounds discarded; "
            "1 row by barriers, as ranks missed most windows",
        ),
    ],
)
def test_the_start_of_iterations_is_told(starts, conditions, told):
    rows = [
        replace(
            record(name, 9.0, iterations=20),
            start=start and StartMethod("barrier" if start == "missed" else start),
            discarded={"window": 5, "missed": 60}.get(start, 0),
            clock_residual_us=0.3 if start == "window" else None,
        )
        for name, start in zip(("mpi", "ring"), starts, strict=True)
    ]
    found = paragraph(rows, "trust", **conditions)[0]
    assert f"starts: {told}" in found if told else "starts" not in found
    assert ("missed most" in found) == ("missed" in starts)


def test_mostly_uncertain_medians_are_hardly_trusted():
    noisy = [record("mpi", 9.0, spread=0.2), record("ring", 5.0, spread=0.2), record("tree", 5.0)]
    assert "times: unreliable: 2 of 3 medians uncertain" in paragraph(noisy, "trust")[0]
    assert "times: 1 of 2 medians uncertain" in paragraph(noisy[1:], "trust")[0]


def test_what_to_type_next_fits_the_findings():
    shared = {"oversubscribed": True, "cores": (2,) * 4, "results": "a.jsonl"}
    assert paragraph(THREE, "next", **shared) == [
        "for times of one rank per core: mpirun -n 2 hpccoll bench all_reduce",
        "for curves and findings: hpccoll report a.jsonl -o report.html",
    ]
    assert not paragraph(THREE, "next", results="a.jsonl", has_report=True)
    assert paragraph(THREE, "next") == ["for all algorithms: mpirun -n 4 hpccoll bench all_reduce --full"]
    noisy = [record("mpi", 9.0, spread=0.2), record("ring", 5.0, spread=0.2)]
    assert "--budget" in paragraph(noisy, "next")[0]
    assert "mpirun -n 4" in paragraph([record("mpi", 9.0, ranks=1)], "next")[0]


def test_the_next_commands_repeat_the_options_that_matter():
    given = {"-b": "8", "-d": "float64", "-r": "3", "-n": "5", "--algorithm": "ring", "--both": ""}
    shared = {"oversubscribed": True, "cores": (2,) * 4, "options": given}
    assert paragraph(THREE, "next", **shared) == [
        "for times of one rank per core: mpirun -n 2 hpccoll bench all_reduce -b 8 -d float64 -n 5 --algorithm ring "
        "--both",  # rank 3 does not exist there
        "for all algorithms: mpirun -n 4 hpccoll bench all_reduce -b 8 -d float64 -r 3 -n 5 --both --full",
    ]
    noisy = [record("mpi", 9.0, spread=0.2), record("ring", 5.0, spread=0.2)]
    assert paragraph(noisy, "next", options={"-n": "5", "-b": "8"})[0].endswith("all_reduce -b 8 --budget 3")
    assert not paragraph(THREE, "next", options={"--full": ""})
    assert not paragraph(THREE, "next", options={"--algorithm": "all,mpi"})


def test_tuning_is_proposed_only_where_auto_can_take_something_faster():
    gloo_wins = [record("mpi", 20.0), record("gloo", 5.0), record("ring", 9.0), auto(9.0, "ring")]
    assert not any("tune" in each for each in paragraph(gloo_wins, "next"))
    ring_wins = [record("mpi", 20.0), record("ring", 9.0), auto(20.0, "mpi")]
    assert any(each.endswith("hpccoll tune all_reduce") for each in paragraph(ring_wins, "next"))


def test_tuning_of_memory_that_tune_skips_by_default_names_it():
    rows = [replace(row, buffer="cuda") for row in rows_of(8, ring=5.0, taken="mpi")]
    assert any(each.endswith("hpccoll tune all_reduce --buffer cuda") for each in paragraph(rows, "next"))


def test_a_run_without_results_has_no_failure():
    assert format_footer([]) == "# Out of bounds values : 0 OK"


def test_kinds_of_memory_share_a_table_in_place_and_another_out_of_place():
    rows = [
        replace(row, buffer=memory, in_place=place)
        for memory in ("host", "symmetric")
        for row in rows_of(64 * KiB)
        for place in (True, False)
    ]
    titles = [each for each in verdict(rows).splitlines() if each.startswith("all_reduce,")]
    assert [each.rpartition(", ")[2] for each in titles] == ["in-place", "out-of-place"]


def test_short_messages_have_no_limit():
    assert not paragraph(rows_of(64 * KiB), "limit", limit=HardwareLimit(1.0, 32 * MiB, 1))


def test_the_distance_to_the_limit_is_that_of_the_largest_size():
    told = paragraph(THREE, "limit", limit=HardwareLimit(1.0, 32 * MiB, 1))
    assert told == [
        "lower bound: all 4 ranks read and write their 64 MiB once (copies measured here: 2.68e+05 GB/s): 2.00 us; "
        "the fastest takes 2.5 times that (40 % of its speed)"
    ]


@pytest.mark.parametrize(
    ("operation", "share"),
    [
        (Operation.ALL_REDUCE, 1),
        (Operation.ALL_TO_ALL, 6 / 8),  # a rank's block for itself stays where it is, as in the next two operations
        (Operation.ALL_GATHER, 4 / 8),
        (Operation.SCATTER, 3 / 16),
        (Operation.BROADCAST, 4 / 8),  # the root has the result already
        (Operation.REDUCE_SCATTER, 5 / 8),
        (Operation.SCAN, 7 / 8),  # rank 0 has its result already
        (Operation.EXSCAN, 6 / 8),  # nobody reads the last rank's input
    ],
)
def test_the_limit_counts_each_byte_that_is_read_and_written_once(operation, share):
    assert HardwareLimit(8.0, 100, 1).compute_us(operation, 200, 4) == pytest.approx(16 * share)


def test_the_limit_between_nodes_counts_what_a_node_sends():
    assert HardwareLimit(8.0, 100, 4).compute_us(Operation.ALL_REDUCE, 100, 16) == pytest.approx(8 * 1.5)


def test_a_limit_of_one_of_several_operations_names_it():
    rows = [*THREE, *(replace(row, op="broadcast", redop=None, root=0) for row in rows_of(64 * MiB, ring=4.0))]
    (told,) = paragraph(rows, "limit", limit=HardwareLimit(1.0, 32 * MiB, 1))
    assert told.startswith("lower bound of broadcast: a call in place on 64 MiB reads its input and writes its output")


def test_copies_of_ranks_that_share_cores_are_timed_from_the_first_beginning_to_the_last_end():
    assert _compute_duration([(0.0, 3.0), (2.0, 5.0)], nodes=1) == 5.0
    assert _compute_duration([(0.0, 3.0), (2.0, 6.0)], nodes=2) == 4.0


def test_kinds_of_memory_stand_side_by_side():
    rows = [*THREE, *(replace(row, buffer="symmetric") for row in rows_of(64 * KiB, ring=2.5))]
    text = verdict(rows)
    assert re.search(r"64 KiB +host +ring +10\.0 us", text)
    assert re.search(r"64 KiB +symmetric +ring +2\.50 us", text)
    assert text.index("64 KiB  host") < text.index("64 KiB  symmetric") < text.index("64 MiB")
    assert [each.partition(":")[0] for each in paragraph(rows, "use")] == ["host memory", "symmetric memory"]


def test_the_footer_is_that_of_nccl_tests():
    rows = [record("mpi", 100.0, nbytes=MiB), auto(50.0, "ring", nbytes=MiB)]
    footer = format_footer(list_table_cases(rows))
    assert re.search(r"^# Out of bounds values : 0 OK$", footer, re.MULTILINE)
    busbw = MiB / 50e-6 / 1e9 * 1.5
    average = rf"^# Avg bus bandwidth    : {busbw:.3f} \(GB/s, auto; .*mpi {busbw / 2:.3f}\)"
    assert re.search(average, footer, re.MULTILINE)


@pytest.mark.parametrize("width", [*range(78, 104), 120])
def test_the_verdict_fits_one_screen(width):
    sizes = [8, *(4**k for k in range(2, 14))]
    rows = [row for nbytes in sizes for row in rows_of(nbytes, ring=9.0, taken="mpi")]
    shared = {"oversubscribed": True, "cores": (2,) * 4, "results": "bench-results/20261122-160101.jsonl"}
    lines = verdict(rows, width, limit=HardwareLimit(1.0, MiB, 1), **shared).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= (34 if width < 100 else 32)
    assert not any(
        re.search(r"\d$", each) and re.match(r" +(B|[KM]iB|%|us)\b", after) for each, after in pairwise(lines)
    )
    assert sum(each.strip().startswith(("64 KiB", "64 MiB", "8 B")) for each in lines) == 3


def test_no_rows_have_a_verdict_too():
    assert verdict([]) == "No results: nothing was measured."


@pytest.mark.parametrize(
    ("us", "told"), [(0.5, "0.50 us"), (9.996, "10.0 us"), (99.96, "100 us"), (999.6, "1.00 ms"), (2.5e6, "2.50 s")]
)
def test_times_have_three_digits_and_a_unit(us, told):
    assert format_us(us) == told
