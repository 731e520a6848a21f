"""`hpccoll draw`: every suffix, and the errors for plans that cannot be drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image, ImageSequence

from hpccoll.cli.draw import FORMATS
from hpccoll.cli.main import main
from hpccoll.processes import launched_rank

RING = "all_reduce/ring"


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in launched_rank.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def draw(name: str, file: Path | str, *more: str) -> int:
    return main(["draw", name, "-o", str(file), *more])


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_suffix_says_how_to_draw(tmp_path, capsys, suffix):
    file = tmp_path / f"ring{suffix}"
    assert draw(RING, file, "--ranks", "4") == 0
    found = file.read_bytes()
    said = capsys.readouterr().out
    assert said == f"{file}: {FORMATS[suffix].name} of all_reduce/ring on 4 ranks, {len(found):,} bytes\n"
    assert draw(RING, file, "--ranks", "4") == 0
    assert file.read_bytes() == found


def test_a_gif_of_five_ranks_by_default(tmp_path):
    assert draw(RING, tmp_path / "ring.GIF") == 0
    with Image.open(tmp_path / "ring.GIF") as moving:
        assert len(list(ImageSequence.Iterator(moving))) == 9


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_long_drawing_has_a_file_per_page(tmp_path, capsys, suffix):
    assert draw("all_gather/ring", tmp_path / f"ring{suffix}", "--ranks", "16") == 0
    told = capsys.readouterr().out.splitlines()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"ring-{number}{suffix}" for number in range(1, len(files) + 1)]
    assert 1 < len(files) < 8
    for number, (file, line) in enumerate(zip(files, told, strict=True), 1):
        assert line.startswith(f"{file}: a picture of all_gather/ring on 16 ranks, page {number} of {len(files)}, ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "ring.bmp"], "-o ring.bmp: the suffix is the format; use one of .txt .svg .png .gif .json"),
        (["-o", "ring"], "use one of .txt .svg .png .gif .json"),
        (["-o", "no/such/folder/ring.svg"], "-o no/such/folder/ring.svg: cannot write this file"),
        (["-o", "ring.svg", "--ranks", "0"], "--ranks 0 --chunks 1: there is nothing to draw"),
        (["-o", "ring.svg", "--ranks", "-5"], "--ranks -5 --chunks 1: there is nothing to draw"),
        (["-o", "ring.svg", "--chunks", "0"], "--ranks 5 --chunks 0: there is nothing to draw"),
        (
            ["-o", "ring.svg", "--ranks", "17"],
            "--ranks 17: a picture is legible up to 16 ranks; take fewer, or write .txt",
        ),
        (["-o", "ring.txt", "--ranks", "65"], "a text grid is legible up to 64 ranks; take fewer, or write .json"),
        (
            ["-o", "ring.json", "--ranks", "24576"],
            "a trace is legible up to 1024 ranks; take fewer. `hpccoll simulate`",
        ),
        (["-o", "ring.svg", "--ranks", "999999999999"], "legible up to 16 ranks"),
        (["-o", "ring.svg", "--chunks", "65"], "--chunks 65: a drawing is legible up to 64 chunks"),
        (["-o", "ring.svg", "--root", "5"], "--root 5 is not a rank of 0..4"),
        (["-o", "ring.svg", "--nodes", "6"], "--nodes 6 does not divide 5 ranks"),
        (["-o", "ring.svg", "--nodes", "2,2"], "--nodes 2,2 does not divide 5 ranks"),
        (["-o", "ring.svg", "--nodes", "two"], "--nodes two does not divide 5 ranks"),
        (["-o", "ring.svg", "--machine", "summit"], "--machine summit is for traces, and -o ring.svg is not one"),
        (["-o", "ring.json", "--machine", "sumit"], "unknown machine 'sumit'"),
        (["-o", "ring.json", "--machine", "summit", "--size", "big"], "'big' is not a size"),
    ],
)
def test_what_cannot_be_drawn_is_a_usage_error_with_a_remedy(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["draw", RING, *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_unknown_names_list_the_valid_ones(tmp_path, capsys):
    assert draw("all_reduce/rng", tmp_path / "a.svg") == 2
    assert "ring" in capsys.readouterr().err
    assert draw("all_reduce", tmp_path / "a.svg") == 2
    assert "draw one of them: " in capsys.readouterr().err


def test_nodes_are_shown(tmp_path):
    for nodes, sizes in (("2", [3, 2]), ("1,4", [1, 4])):
        assert draw("all_reduce/hierarchical", tmp_path / "h.svg", "--nodes", nodes) == 0
        drawn = (tmp_path / "h.svg").read_text()
        assert "5 ranks" in drawn
        assert f"{len(sizes)} nodes" in drawn


def test_a_trace_is_timed_by_a_machine(tmp_path):
    assert draw(RING, tmp_path / "small.json", "--ranks", "12", "--machine", "summit", "--size", "8K") == 0
    assert draw(RING, tmp_path / "large.json", "--ranks", "12", "--machine", "summit", "--size", "8M") == 0
    small, large = (json.loads((tmp_path / name).read_text())["otherData"] for name in ("small.json", "large.json"))
    assert "simulated" in small["clock"]
    assert large["duration_us"] > 10 * small["duration_us"]


OWN = '''"""Everyone sends to everyone."""
from hpccoll.plan.rounds import Rounds
from hpccoll.plan.step import Move, Span


def my_all_gather(rank, n):
    """Round t: to the rank t + 1 above."""
    def at(t):
        dest, source = (rank + t + 1) % n, (rank - t - 1) % n
        return [Move(dest, source, Span(rank, 1, n), Span(source, 1, n))]
    return Rounds(n - 1, n, at)
'''


def test_a_users_own_algorithm_is_drawn_once_it_is_proven(tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text(OWN)
    assert draw(f"{mine}:my_all_gather", tmp_path / "mine.txt", "--ranks", "4") == 0
    assert "all_gather/my_all_gather: 4 ranks, 3 rounds" in (tmp_path / "mine.txt").read_text()
    mine.write_text(OWN.replace("Rounds(n - 1", "Rounds(n - 2"))
    (tmp_path / "mine.txt").unlink()
    assert draw(f"{mine}:my_all_gather", tmp_path / "mine.txt", "--ranks", "4") == 1
    assert "is wrong: it was never written" in capsys.readouterr().err
    assert not (tmp_path / "mine.txt").exists()


def test_only_one_process_of_a_job_draws(tmp_path, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "1")
    assert draw(RING, tmp_path / "ring.txt") == 0
    assert not (tmp_path / "ring.txt").exists()


@pytest.mark.parametrize(
    ("name", "words"), [("all_reduce/ring", "all_reduce/ring: 5 ranks, 8 rounds"), ("1f1b", "4 stages on 4 ranks")]
)
def test_without_an_output_file_the_text_is_printed(name, words, capsys):
    assert main(["draw", name]) == 0
    assert words in capsys.readouterr().out


def test_options_of_traces_need_an_output_file(capsys):
    assert main(["draw", RING, "--machine", "summit"]) == 2
    assert "add -o FILE.json" in capsys.readouterr().err


def test_a_schedule_is_drawn_and_simulated_for_the_same_counts(capsys):
    assert main(["simulate", "1f1b"]) == 0
    _, ranks, stages, microbatches, *_ = capsys.readouterr().out.splitlines()[-2].split()
    assert main(["draw", "1f1b"]) == 0
    assert f"{stages} stages on {ranks} ranks, micro-batches: {microbatches}" in capsys.readouterr().out
