"""PyTorch's own analyser reads the traces and finds in them what the ranks did differently."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hpccoll.cli.main import main
from hpccoll.recordings import CallKind, read_recordings, write_torch_traces
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.flight_recorder import FlightRecorder
from tests.requirements import needs_torch_analyser, skip_or_fail

pytestmark = needs_torch_analyser

RANKS, WORLD = 3, 77


class Rank:
    """A rank that records calls without making them."""

    def __init__(self, directory: Path, rank: int) -> None:
        self.recorder = FlightRecorder(str(directory), rank, RANKS, entries=16)
        self.calls = CallRecorder(self.recorder)
        self.calls.open(WORLD, rank, RANKS, tuple(range(RANKS)))

    def call(self, operation: str = "all_reduce", count: int = 8, dtype: str = "float32", *, ends: bool = True) -> None:
        """Record a collective."""
        place = self.calls.begin(operation, self.calls.describe(operation, count=count, dtype=dtype))
        if ends:
            self.calls.end(place)

    def message(self, kind: CallKind, peer: int, tag: int = 0) -> None:
        """Record a message."""
        description = self.calls.describe("send", kind=kind, count=4, dtype="int64", root=peer, tag=tag)
        self.calls.start_message("send", description, (peer,)).end(failed=False)


@pytest.fixture
def ranks(tmp_path: Path) -> list[Rank]:
    return [Rank(tmp_path, rank) for rank in range(RANKS)]


@pytest.fixture
def analyse(tmp_path, caplog, ranks):
    """Return the analyser as a function that returns its findings and its output."""
    try:
        from torch.distributed.flight_recorder.components.builder import build_db
        from torch.distributed.flight_recorder.components.config_manager import JobConfig
        from torch.distributed.flight_recorder.components.loader import read_dir
    except ImportError:
        skip_or_fail("torch with torch.distributed.flight_recorder")

    def run():
        write_torch_traces(read_recordings(tmp_path).recordings, tmp_path / "out")
        arguments = JobConfig().parse_args([str(tmp_path / "out")])
        with caplog.at_level(logging.INFO, "Flight Recorder"):
            details, version = read_dir(arguments)
            return build_db(details, arguments, version), caplog.text

    return run


def test_equal_calls_match(ranks, analyse):
    for rank in ranks:
        for operation in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "scan", "barrier", "prepare"):
            rank.call(operation)
        rank.call("broadcast_object", 0, "")
    ranks[0].message(CallKind.SEND, 2)
    ranks[2].message(CallKind.RECEIVE, 0)
    found, text = analyse()
    assert [each.type_of_mismatch for each in found.collectives if not each.pass_check] == []
    assert len(found.collectives) == 9
    assert "errors" not in text
    assert "Not all ranks" not in text


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        (("barrier", 8, "float32"), "COLLECTIVE_TYPE_MISMATCH"),
        (("all_reduce", 9, "float32"), "SIZE_OR_SYNTAX_MISMATCH"),
        (("all_reduce", 8, "int64"), "COLLECTIVE_DTYPE_MISMATCH"),
    ],
)
def test_analyser_finds_a_planted_mismatch(ranks, analyse, planted, message):
    for number, rank in enumerate(ranks):
        rank.call()
        rank.call(*planted if number == 1 else ("all_reduce", 8, "float32"), ends=False)
    found, text = analyse()
    first, second = found.collectives[:2]
    assert first.pass_check
    assert not second.pass_check
    assert second.collective_seq_id == 2
    assert f"Culprit rank 1; Error type: {message}" in text


def test_analyser_names_the_rank_that_is_missing(ranks, analyse):
    for number, rank in enumerate(ranks):
        rank.call()
        if number != 2:
            rank.call(ends=False)
    found, text = analyse()
    assert found.collectives[1].missing_ranks == {2}
    assert "Not all ranks joining collective" in text


def test_message_without_a_receiver_is_found(ranks, analyse):
    ranks[0].message(CallKind.SEND, 1, tag=3)
    ranks[0].message(CallKind.SEND, 1, tag=3)
    ranks[1].message(CallKind.RECEIVE, 0, tag=3)
    found, _ = analyse()
    assert [each.pass_check for each in found.collectives if each.missing_ranks] == [True]
    assert [each.missing_ranks for each in found.collectives] == [None, {1}]


def test_messages_to_a_rank_that_receives_from_any_rank_are_left_out(ranks, analyse):
    ranks[0].message(CallKind.SEND, 1)
    ranks[1].message(CallKind.RECEIVE, -1)
    ranks[0].message(CallKind.SEND, 2)
    ranks[2].message(CallKind.RECEIVE, 0)
    found, _ = analyse()
    assert [each.expected_ranks for each in found.collectives] == [{0, 2}]


def test_overwritten_calls_are_left_out_on_all_ranks(ranks, analyse):
    for number, rank in enumerate(ranks):
        for _ in range(20):
            rank.call()
        for _ in range(number):
            rank.message(CallKind.SEND, 0)
    found, _ = analyse()
    assert [each.collective_seq_id for each in found.collectives] == list(range(7, 21))
    assert all(each.pass_check for each in found.collectives)


def test_report_writes_traces(ranks, tmp_path, capsys):
    for rank in ranks:
        rank.call()
    assert main(["report", "--crash", str(tmp_path), "--torch-format", str(tmp_path / "traces")]) == 0
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == ["rank_0", "rank_1", "rank_2"]
    (tmp_path / "file").touch()
    capsys.readouterr()
    for arguments, message in (
        (["--crash", str(tmp_path), "--torch-format", str(tmp_path / "file")], "File exists"),
        (["--torch-format", str(tmp_path / "traces")], "name their directory by --crash"),
    ):
        assert main(["report", *arguments]) == 2
        assert message in capsys.readouterr().err
