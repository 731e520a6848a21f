"""Each finding of a report: present where it is injected into real records, and absent elsewhere."""

from __future__ import annotations

import json

import pytest

from hpccoll.doctor.finding import Severity
from hpccoll.report.bound_models import BoundModels, fit_machines, list_job_sizes, use_named_machine
from hpccoll.report.curves import group_curves
from hpccoll.report.findings import BenchRequest, collect_findings
from hpccoll.report.load import load_results
from tests.unit.report.test_load import FOUR, PAIRS, TWO

LADDER = [1.0 + at / 1000 for at in range(40)]  # samples that are close together


@pytest.fixture
def write(tmp_path):
    """Write records as a result file and return its path."""

    def made(records, name="results.jsonl"):
        file = tmp_path / name
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        return file

    return made


def records(path=TWO):
    """Return the records of a result file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def steady(found):
    """Give every row samples without noise around its median, so that only planted differences are significant."""
    for record in found:
        if record["kind"] == "collective":
            middle = record["time_us"]["p50"]
            record["samples_us"] = [middle * step for step in LADDER]
    return found


def found(*files, wants=lambda _: None, models=None):
    """Return the findings on result files."""
    results = load_results(files)
    drawn = group_curves(results.rows)
    return collect_findings(results, drawn, models or BoundModels(), wants)


def one(findings, area, severity, *words):
    """Return the only finding of an area that has these words."""
    mine = [each for each in findings if each.area == area and all(word in each.found for word in words)]
    assert len(mine) == 1, [each.found for each in findings]
    assert mine[0].severity is severity
    assert mine[0].evidence
    return mine[0]


def slow_down(rows, factor, **of):
    """Multiply the samples of the records that have the given fields."""
    for record in rows:
        if all(record.get(key) == value for key, value in of.items()):
            record["samples_us"] = [sample * factor for sample in record["samples_us"]]
    return rows


def test_identical_rows_have_no_findings(write):
    rows = records()
    for record in rows:
        record["samples_us"] = LADDER
    assert found(write(rows)) == []


def test_wrong_results_are_the_first_finding_and_a_problem(write):
    rows = steady(records(FOUR))
    rows[5]["wrong"] = 3
    findings = found(write(rows))
    wrong = one(findings, "results", Severity.PROBLEM, "wrong results", rows[5]["op"])
    assert findings[0] is wrong
    assert "3 of" in wrong.evidence
    assert "hpccoll verify" in wrong.remedy


def test_unchecked_results_are_reported(write):
    rows = steady(records())
    rows[1]["wrong"] = None
    assert "1 of 90" in one(found(write(rows)), "results", Severity.NOTE, "not checked").found


def test_more_ranks_than_cores_is_reported_with_its_run():
    binding = one(found(FOUR), "binding", Severity.WARNING, "more ranks than cores")
    assert binding.evidence == "run 1 (bench-4.jsonl): 4 ranks on vm, each may run on 2 cores"
    assert not [each for each in found(TWO) if each.area == "binding"]


def test_ranks_bound_to_the_same_core_are_a_problem(write):
    rows = records()
    rows[0] |= {"cores": [1, 1], "oversubscribed": True}
    assert "--bind-to core" in one(found(write(rows)), "binding", Severity.PROBLEM, "same core").remedy
    rows[0] |= {"cores": [1, 1], "oversubscribed": False}  # a core each, as it should be
    assert not [each for each in found(write(rows)) if each.area == "binding"]


def test_different_numbers_of_cores_are_reported(write):
    rows = records()
    rows[0] |= {"cores": [1, 2]}
    assert (
        "1 (1 rank), 2 (1 rank)" in one(found(write(rows)), "binding", Severity.WARNING, "different numbers").evidence
    )


def test_staged_device_memory_and_unused_gpus_are_reported(write):
    rows = steady(records())
    rows[0]["devices"] = ["NVIDIA H100"] * 2
    note = one(found(write(rows)), "cuda", Severity.NOTE, "only host memory")
    assert "--buffer cuda" in note.remedy
    for record in rows[1:]:
        record |= {"buffer": "cuda", "staging": "pinned"}
    findings = found(write(rows))
    assert "MPICH 5.0.2" in one(findings, "cuda", Severity.WARNING, "pinned host memory").found
    assert len([each for each in findings if each.area == "cuda"]) == 1


def test_incomplete_files_and_missing_sizes_are_reported(write, tmp_path):
    wanted = BenchRequest(("all_reduce", "all_gather"), (64, 512, 4096, 32768, 262144), (False, True), 4)
    assert not [each for each in found(TWO, wants=lambda _: wanted) if each.area == "run"]
    rows = [each for each in records() if each.get("nbytes") != 262144 or each["op"] != "all_gather"]
    short = one(found(write(rows), wants=lambda _: wanted), "run", Severity.WARNING, "2 sizes are missing")
    assert "all_gather out-of-place 256 KiB; all_gather in-place 256 KiB" in short.evidence
    assert "--resume" in short.remedy
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(TWO.read_bytes()[:-9])
    one(found(torn), "run", Severity.WARNING, "while writing")


def test_a_run_without_measurements_is_reported(write):
    empty = write(records()[:1], "empty.jsonl")
    assert "empty.jsonl" in one(found(TWO, empty), "run", Severity.WARNING, "before it measured anything").found


def test_expected_sizes_are_rounded_to_whole_blocks():
    assert BenchRequest(("all_gather",), (8, 1000), (True,), 4).list_expected_rows(3) == {
        ("all_gather", True, 12),
        ("all_gather", True, 996),
    }
    assert BenchRequest(("barrier",), (8, 64), (True,), 4).list_expected_rows(3) == {("barrier", True, 0)}


def test_a_broadcast_is_expected_in_place_only_because_it_has_no_other_form():
    assert BenchRequest(("broadcast",), (8,), (False, True), 4).list_expected_rows(3) == {("broadcast", True, 8)}


def test_disagreeing_repetitions_are_noise(write):
    one_run = write(steady(records()), "a.jsonl")
    same = write(steady(records()), "b.jsonl")
    assert not [each for each in found(one_run, same) if each.area == "noise"]
    other = write(slow_down(steady(records()), 1.3, op="all_reduce", algorithm="ring"), "c.jsonl")
    apart = one(found(one_run, other), "noise", Severity.WARNING, "disagree", "1.30x")
    assert "10 of 90" in apart.found
    assert "run 1 (a.jsonl)" in apart.evidence


def test_wide_intervals_drift_and_few_iterations_are_noise(write):
    rows = steady(records())
    assert not [each for each in found(write(rows)) if each.area == "noise"]
    for record in rows[1:]:
        record["samples_us"] = [1.0, 2.0, 1.5, 3.0, 1.2, 2.2, 2.8, 1.1]
    assert "90 of 90" in one(found(write(rows)), "noise", Severity.WARNING, "uncertain").found
    for highest, is_wide in ((110.0, False), (111.0, True)):  # 10 % is not wide
        for record in rows[1:]:
            record["samples_us"] = [90.0, 100.0, 100.0, 100.0, 100.0, highest]
        assert is_wide == any("uncertain" in each.found for each in found(write(rows)) if each.area == "noise")
    for record in rows[1:]:
        record["samples_us"] = LADDER[:20] + [2 * each for each in LADDER[:20]]
    assert "90 of 90" in one(found(write(rows)), "noise", Severity.WARNING, "drift").found
    for record in rows[1:]:
        record["samples_us"] = [1.0, 1.01, 1.02]
    assert "90 of 90" in one(found(write(rows)), "noise", Severity.NOTE, "too few iterations").found


def read_flat_records(path=TWO):
    """Return the records of a file, all with the same samples."""
    rows = records(path)
    for record in rows:
        record["samples_us"] = LADDER
    return rows


def test_a_slow_library_auto_or_algorithm_is_reported(write):
    rows = slow_down(read_flat_records(), 2.0, op="all_reduce", engine="mpi", nbytes=4096, in_place=True)
    behind = one(found(write(rows)), "engine", Severity.NOTE, "MPI library's all_reduce", "1 of 5 sizes")
    assert "2x slower than" in behind.evidence
    assert "at 4 KiB" in behind.evidence
    rows = read_flat_records()
    for record in rows:
        if record.get("algorithm") == "tree":
            record["algorithm"] = "auto"
    rows = slow_down(rows, 1.3, op="all_reduce", algorithm="auto", in_place=False)
    assert "hpccoll tune all_reduce" in one(found(write(rows)), "algorithm", Severity.WARNING, "5 of 5 sizes").remedy
    rows = slow_down(read_flat_records(), 25.0, op="all_gather", algorithm="bruck", nbytes=64, in_place=True)
    assert "bruck 25x slower" in one(found(write(rows)), "algorithm", Severity.NOTE, "more than 10x").evidence


def rename(rows, engine, new_engine, new_algorithm=None, **of):
    """Give the matching rows of an engine the name of another engine and algorithm."""
    for record in rows:
        if record.get("engine") == engine and all(record.get(key) == value for key, value in of.items()):
            record |= {"engine": new_engine, "algorithm": new_algorithm}
    return rows


def test_the_remedy_for_a_slow_engine_names_no_algorithm(write):
    rows = slow_down(rename(read_flat_records(), "mpi", "gloo"), 25.0, op="all_reduce", engine="gloo", in_place=True)
    slow = one(found(write(rows)), "engine", Severity.NOTE, "gloo's all_reduce is more than 10x slower")
    assert "algorithm" not in slow.remedy
    assert "tune" not in slow.remedy
    assert "use hpccoll" in slow.remedy


def test_an_engine_that_auto_cannot_select_is_no_reason_to_tune(write):
    rows = rename(read_flat_records(), "hpccoll", "nccl", algorithm="ring")
    rows = slow_down(rename(rows, "hpccoll", "hpccoll", "auto", algorithm="tree"), 0.5, engine="nccl")
    findings = found(write(rows))
    faster = [each for each in findings if "nccl is faster than auto" in each.found]
    assert faster
    assert {each.area for each in faster} == {"engine"}
    assert not [each for each in findings if "hpccoll tune" in each.remedy and "auto is slower" in each.found]
    mpi = [each for each in findings if "MPI library's" in each.found]
    assert mpi
    assert all("of nccl at these sizes" in each.remedy and "algorithm=" not in each.remedy for each in mpi)


def test_a_wrong_result_is_never_the_fastest(write):
    rows = slow_down(read_flat_records(), 0.01, op="all_reduce", algorithm="ring")
    for record in rows:
        if record.get("op") == "all_reduce" and record["algorithm"] == "ring":
            record["wrong"] = 1
    assert {each.area for each in found(write(rows))} == {"results"}


def test_a_drop_in_bandwidth_over_nodes_is_reported(write):
    two = [record | {"nodes": 2} for record in read_flat_records()]
    four = [record | {"nodes": 4} for record in slow_down(read_flat_records(FOUR), 4.0)]
    findings = found(write(two, "two.jsonl"), write(four, "four.jsonl"))
    falls = [each for each in findings if each.area == "scaling"]
    assert len(falls) == 4  # two operations in two places
    assert "from 2 to 4 nodes" in falls[0].found
    assert "hpccoll preflight" in falls[0].remedy
    inside = [record | {"nodes": 1} for record in read_flat_records()]
    assert not [each for each in found(write(inside, "two.jsonl"), write(four, "f.jsonl")) if each.area == "scaling"]


def test_times_far_above_the_bound_are_reported(write):
    from hpccoll.predict.machine_catalogue import load_machine

    rows = [record | {"nodes": 2} for record in slow_down(read_flat_records(), 1e4)]
    file = write(rows)
    models = use_named_machine(list_job_sizes(group_curves(load_results([file]).rows)), load_machine("summit"))
    bound = [each for each in found(file, models=models) if each.area == "bound"]
    assert bound
    assert "256 KiB" in bound[0].evidence
    near = write([record | {"nodes": 1} for record in rows], "near.jsonl")
    assert not [each for each in found(near, models=models) if each.area == "bound"]


def test_the_preflights_faults_are_repeated(write):
    (fault,) = [each for each in found(PAIRS) if each.area == "link"]
    assert fault.severity is Severity.WARNING
    assert "node3's link is slow" in fault.found
    assert fault.hosts == ("node3",)
    assert "sbatch --exclude=node3" in fault.remedy
    rows = records(PAIRS)
    faults = rows[-1]["faults"]
    faults[0] |= {"kind": "broken_link"}
    assert [each.severity for each in found(write(rows))] == [Severity.PROBLEM]
    faults.clear()
    assert [each.severity for each in found(write(rows))] == [Severity.OK]
    assert "cut short" in one(found(write(rows[:-1])), "run", Severity.WARNING).found


def test_the_doctors_warnings_are_repeated(write):
    from hpccoll.doctor.finding import Finding

    told = [
        Finding("limits", Severity.OK, "fine", "ulimit"),
        Finding("binding", Severity.PROBLEM, "all ranks are on core 0", "sched_getaffinity", "--bind-to core"),
    ]
    file = write([records()[0], *(each.make_record().as_dict() for each in told)], "doctor.jsonl")
    passed = one(found(TWO, file), "doctor, binding", Severity.PROBLEM, "all ranks are on core 0")
    assert "doctor.jsonl" in passed.evidence
    assert not [each for each in found(file) if "fine" in each.found]


def test_a_job_of_one_rank_has_no_model(write):
    rows = records()
    for record in rows[1:]:
        record["ranks"] = 1
    assert list_job_sizes(group_curves(load_results([write(rows)]).rows)) == []


def test_a_machine_is_fitted_to_each_job_and_bounds_every_row():
    from hpccoll.cli.machine_options import read_measured_rows

    results = load_results([TWO, FOUR])
    drawn = group_curves(results.rows)
    assert list_job_sizes(drawn) == [(2, 1), (4, 1)]
    rows = [row for file in results.files for row in read_measured_rows(file, "FILE")]
    models = fit_machines([*list_job_sizes(drawn), (3, 1)], rows)
    assert (2, 1) in models.by_job
    error = models.by_job[2, 1].error
    assert error is not None
    assert 0 < error < 0.5
    assert any("3 ranks on 1 node: a fit takes 4 sizes" in each for each in models.missing)
    for row in results.rows:
        if row.record.ranks == 2:
            bound = models.compute_bound_s(row.record)
            assert bound is not None
            assert 0 < bound < row.record.time_us.max * 1e-6
