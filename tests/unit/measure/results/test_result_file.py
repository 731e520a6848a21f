"""The result file stays readable, however its writer ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpccoll.errors import UsageError
from hpccoll.measure.results.collective_record import make_collective_record
from hpccoll.measure.results.output_file import require_writable
from hpccoll.measure.results.result_file import RecordWriter, read_records
from hpccoll.records import CollectiveCase, StopReason

ROW = CollectiveCase("all_reduce", "mpi", None, "host", True, 8, 2, "float32", "sum", None, 4, 1)
RECORDS = [make_collective_record(replace(ROW, nbytes=size), (1.5, 2.5), StopReason.BUDGET, 0) for size in (8, 32, 128)]
RUN = {"schema": "hpccoll/1", "kind": "run", "command": "hpccoll bench"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.jsonl"


@pytest.fixture
def full(path):
    """A finished file: a run and three rows."""
    with RecordWriter(path) as journal:
        journal.write(RUN)
        for record in RECORDS:
            journal.write(record.as_dict())
    return path


def read_keys(path):
    """Return the keys of the cases in a result file."""
    return {record.key for record in read_records(path).collectives()}


def test_records_come_back_in_order(full):
    found = read_records(full)
    assert found.records[0] == RUN
    assert found.collectives() == RECORDS
    assert found.torn is None
    assert read_keys(full) == {record.key for record in RECORDS}


def test_each_record_is_one_line_of_json(full):
    assert [json.loads(line)["kind"] for line in full.read_text().splitlines()] == ["run"] + ["collective"] * 3


def test_a_record_is_readable_as_soon_as_it_is_written(path):
    with RecordWriter(path) as journal:
        for at, record in enumerate(RECORDS, 1):
            journal.write(record.as_dict())
            assert len(read_records(path).records) == at


def test_a_killed_run_leaves_every_finished_record(path):
    program = (
        "import os, signal\n"
        "from hpccoll.measure.results.result_file import RecordWriter\n"
        f"journal = RecordWriter({str(path)!r})\n"
        "for at in range(3):\n"
        "    journal.write({'schema': 'hpccoll/1', 'kind': 'run', 'at': at})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60, env=environment)
    assert done.returncode == -signal.SIGKILL
    assert [record["at"] for record in read_records(path).records] == [0, 1, 2]


@pytest.mark.parametrize("kept", [1, 2, 20, 60, -2])
def test_a_torn_last_line_is_left_out_and_reported(full, kept):
    lines = full.read_bytes().splitlines(keepends=True)
    whole, last = b"".join(lines[:-1]), lines[-1][:kept]
    full.write_bytes(whole + last)
    found = read_records(full)
    assert len(found.records) == 3
    assert found.torn is not None
    assert f"after {len(last)} bytes" in found.torn
    assert read_keys(full) == {record.key for record in RECORDS[:2]}


def test_resuming_cuts_the_torn_line_off_and_goes_on(full):
    full.write_bytes(full.read_bytes()[:-30])
    with RecordWriter(full, resume=True) as journal:
        journal.write(RECORDS[2].as_dict())
    assert read_records(full).torn is None
    assert read_records(full).collectives() == RECORDS


def test_resuming_keeps_a_last_line_that_only_lacks_its_end(full):
    full.write_bytes(full.read_bytes()[:-1])
    assert read_records(full).torn is None
    with RecordWriter(full, resume=True) as journal:
        journal.write(RUN)
    assert [record["kind"] for record in read_records(full).records] == ["run", *["collective"] * 3, "run"]


def test_resuming_keeps_what_is_there_and_beginning_does_not(full):
    with RecordWriter(full, resume=True) as journal:
        journal.write(RUN)
    assert len(read_records(full).records) == 5
    with RecordWriter(full):
        pass
    assert full.read_bytes() == b""


def test_resuming_what_does_not_exist_begins_it(path):
    with RecordWriter(path, resume=True) as journal:
        journal.write(RUN)
    assert read_records(path).records == (RUN,)


def test_resuming_an_empty_file_begins_it(path):
    path.touch()
    with RecordWriter(path, resume=True) as journal:
        journal.write(RUN)
    assert read_records(path).records == (RUN,)


def test_rows_of_another_run_count_by_their_key(full):
    with RecordWriter(full, resume=True) as journal:
        journal.write(RUN | {"command": "another", "ranks": 2})
        other = replace(RECORDS[0], ranks=2, nodes=2)
        journal.write(other.as_dict())
    keys = read_keys(full)
    assert ROW.key in keys
    assert other.key in keys
    assert replace(ROW, ranks=8).key not in keys


def test_a_row_that_was_measured_twice_counts_as_it_was_last(full):
    again = make_collective_record(replace(ROW, nbytes=8), (7.0,), StopReason.BUDGET, 0)
    with RecordWriter(full, resume=True) as journal:
        journal.write(again.as_dict())
    assert read_records(full).collectives()[0] == again


@pytest.mark.parametrize(
    "content",
    [
        b"Dear committee, this is my thesis",
        b"Dear committee,\nthis is my thesis\n",
        b'{"loss": 0.5}\n{"loss": 0.4}\n',
        b"[1, 2]\n",
        b"17",
        b'{"schema":"hpccoll/2","kind":"run"}\n',
        b'{"schema":"hpccoll/1"}\n',
        b"\x00\xff\xfe\n\x01",
    ],
)
def test_a_file_that_is_not_ours_is_refused_and_left_alone(path, content):
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"--resume .*results.jsonl"):
        read_records(path)
    with pytest.raises(UsageError):
        RecordWriter(path, "--resume", resume=True)
    assert path.read_bytes() == content


def test_a_damaged_line_in_the_middle_is_left_out_and_told_with_its_number(full):
    lines = full.read_bytes().splitlines(keepends=True)
    full.write_bytes(lines[0] + lines[1][:50] + b"\n" + lines[2])
    contents = read_records(full)
    assert contents.torn == f"{full}: damaged: line 2; left out"
    assert [record.nbytes for record in contents.collectives()] == [32]
    assert contents.locate(1).endswith("line 3")


WRITER = """
import sys
from hpccoll.measure.results.result_file import RecordWriter
with RecordWriter(sys.argv[1], resume=True) as journal:
    print(flush=True)
    sys.stdin.readline()
    for number in range(300):
        padding = "x" * (number * 37 % 5000)
        journal.write({"schema": "hpccoll/1", "kind": sys.argv[2], "number": number, "padding": padding})
"""


def test_two_writers_of_one_file_lose_no_record(full):
    words = [sys.executable, "-c", WRITER, str(full)]
    writers = [
        subprocess.Popen([*words, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for kind in ("one", "other")
    ]
    for writer in writers:
        writer.stdout.readline()
    for writer in writers:
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    for writer in writers:
        with writer:
            assert writer.wait(60) == 0
    contents = read_records(full)
    assert contents.torn is None
    for kind in ("one", "other"):
        assert [each["number"] for each in contents.records if each["kind"] == kind] == list(range(300))


def test_a_record_is_not_appended_to_the_torn_line_of_another_writer(full):
    with RecordWriter(full, resume=True) as journal:
        with full.open("ab") as other:
            other.write(b'{"schema":"hpccoll/1","ki')
        journal.write(RUN)
    assert [record["kind"] for record in read_records(full).records] == ["run", *["collective"] * 3, "run"]


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, 3),
        ({"hosts": ["node2", "node3"], "slurm": {"job_id": "8"}}, 0),
        ({"hosts": ["node2", "node3"]}, 3),
        ({"slurm": {"job_id": "8"}}, 3),
        ({"versions": {"mpi": "MPICH 4"}}, 0),
        ({"ranks": 8}, 0),
        ({"devices": ["GPU"]}, 0),
    ],
)
def test_a_run_continues_only_measurements_of_its_own_hosts_and_versions(path, change, kept):
    run = RUN | {"hosts": ["node1", "node2"], "versions": {"mpi": "MPICH 5"}, "ranks": 4, "nodes": 2, "devices": []}
    run |= {"slurm": {"job_id": "7"}}
    with RecordWriter(path) as journal:
        journal.write(run)
        for record in RECORDS:
            journal.write(record.as_dict())
    assert len(read_records(path).keep_comparable(run | change).collectives()) == kept


def test_even_the_first_record_may_be_torn(path):
    path.write_bytes(b'{"schema":"hpcc')
    assert read_records(path).records == ()
    assert read_records(path).torn
    with RecordWriter(path, resume=True) as journal:
        journal.write(RUN)
    assert read_records(path).records == (RUN,)


@pytest.mark.parametrize("resume", [False, True])
def test_a_place_that_cannot_be_written_is_named_with_its_option(tmp_path, resume):
    where = tmp_path / "missing" / "results.jsonl"
    with pytest.raises(UsageError, match=r"--json .*missing.*results\.jsonl.*No such file"):
        RecordWriter(where, resume=resume)
    with pytest.raises(UsageError, match="--json"):
        RecordWriter(tmp_path)


def test_a_file_that_cannot_be_read_is_named_with_its_option(tmp_path):
    with pytest.raises(UsageError, match="--resume"):
        read_records(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device that is always full is Linux's")
def test_a_full_disk_is_an_error_that_names_the_file():
    with RecordWriter("/dev/full") as journal, pytest.raises(UsageError, match=r"--json /dev/full.*No space"):
        journal.write(RUN)


def test_what_is_no_json_is_not_written(path):
    with RecordWriter(path) as journal, pytest.raises(ValueError, match="JSON"):
        journal.write({"p50": float("nan")})
    assert path.read_bytes() == b""


def test_a_dash_is_standard_output(capsys):
    with RecordWriter("-") as journal:
        journal.write(RUN)
    assert json.loads(capsys.readouterr().out) == RUN
    print("still open")
    assert capsys.readouterr().out == "still open\n"


def test_trying_whether_a_file_can_be_written_changes_nothing(tmp_path):
    there, new = tmp_path / "there.csv", tmp_path / "new.csv"
    there.write_text("kept")
    require_writable(there, "--csv")
    require_writable(new, "--csv")
    assert there.read_text() == "kept"
    assert not new.exists()
    with pytest.raises(UsageError, match=r"--csv .*missing"):
        require_writable(tmp_path / "missing" / "a.csv", "--csv")
