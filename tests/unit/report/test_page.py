"""`hpccoll report`: its page, its output, its records and its errors."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from hpccoll.cli import main as cli
from hpccoll.processes import launched_rank
from hpccoll.report.environment import list_environment_rows
from hpccoll.report.load import RecordedRun
from tests.record_schema import require_valid
from tests.unit.report.test_load import FOUR, PAIRS, TWO

VOID = {"meta", "link", "br", "hr", "img", "input"}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in launched_rank.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


class Page(HTMLParser):
    """The page as elements: those that were opened, their ids, whether all were closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def of(self, tag: str, css: str = "") -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.found if name == tag and css in [*(attrs.get("class") or "").split(), ""]]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    target = tmp_path_factory.mktemp("page") / "report.html"
    assert cli.main(["report", str(TWO), str(FOUR), str(PAIRS), "-o", str(target), "--machine", "laptop"]) == 0
    return target.read_text(encoding="utf-8")


def test_the_page_is_well_formed_with_unique_ids(page):
    parsed = Page(page)
    assert not parsed.open
    ids = Counter(attrs["id"] for _, attrs in parsed.found if "id" in attrs)
    assert ids.most_common(1)[0][1] == 1
    links = {str(attrs["href"]) for attrs in parsed.of("a")}
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert {"#findings", "#environment", "#model", "#sc1", "#op1", "#pairs3"} <= links
    named = [each for _, attrs in parsed.found for each in (attrs.get("aria-labelledby") or "").split()]
    assert named
    assert set(named) <= set(ids)


def read_headline(page):
    (headline,) = re.findall("<h1>(.*?)</h1>", page)
    assert f"<title>hpccoll report: {headline}</title>" in page
    return headline


def test_the_title_is_the_main_finding(page, tmp_path):
    assert re.fullmatch(
        r"node3&#39;s link is slow to every peer; all_reduce, all_gather: hpccoll&#39;s fastest algorithm "
        r"(beats|ties|is slower).* the MPI library .*",
        read_headline(page),
    )
    assert re.search(r"<p class=.remark.>\d+ measurements of ", page)
    rows = [json.loads(line) for line in TWO.read_text().splitlines()]
    rows[4]["wrong"] = 7
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.main(["report", str(wrong), "-o", str(tmp_path / "wrong.html"), "--no-bound"]) == 1
    assert read_headline((tmp_path / "wrong.html").read_text()).startswith("wrong results: ")


def test_the_page_makes_no_requests(page):
    parsed = Page(page)
    for tag, attrs in parsed.found:
        for name in ("src", "href", "data", "action", "srcset"):
            value = attrs.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
    assert not re.search(r"https?://|@import|url\((?!#)", page)
    (policy,) = [attrs for attrs in parsed.of("meta") if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in str(policy["content"])


def test_the_page_shows_what_the_files_hold(page):
    parsed = Page(page)
    words = " ".join(parsed.words)
    # 8 pictures of time, bandwidth and distance each, 2 operations in 2 places scaled at 3 sizes, 2 matrices.
    assert len(parsed.of("svg", "chart")) == 8 * 3 + 4 * 3
    assert len(parsed.of("svg", "heat")) == 2
    assert len(parsed.of("rect", "cell")) == 24
    lines = Counter(attrs["data-name"] for attrs in parsed.of("g", "line"))
    assert lines["ring"] == lines["mpi"] == 8 * 3 + 4 * 3
    assert lines["rabenseifner"] == 4 * 3 + 2 * 3
    assert lines["the lower bound"] == 8
    for said in (
        "MPICH 5.0.2",
        "more ranks than cores",
        "node3's link is slow",
        "laptop",
        "256 KiB",
        "relative to first",
    ):
        assert said in words, said
    sections = [attrs["id"] for attrs in parsed.of("section")]
    order = ["findings", "pairs3", "sc1", "sc2", "sc3", "sc4", "op1", "op2", "op3", "op4", "model", "environment"]
    assert sections == [*order, "reading"]


def test_the_environment_states_the_measured_limit():
    record = {"nodes": 1, "limit_us": 6500.0, "limit_nbytes": 64 * 2**20}
    limit = list_environment_rows([RecordedRun(1, "a.jsonl", record)])[-1]
    assert (limit.name, limit.values) == ("measured limit", ("64 MiB copied by each rank in 6.5 ms",))
    for absent in ("limit_us", "limit_nbytes"):
        rows = list_environment_rows([RecordedRun(1, "a.jsonl", record | {absent: None})])
        assert "measured limit" not in [row.name for row in rows]


def test_the_environment_marks_facts_that_differ(tmp_path):
    rows = [json.loads(line) for line in TWO.read_text().splitlines()]
    rows[0] |= {"hosts": ["n1", "n2"], "slurm": {"job_id": "42", "partition": "debug", "array_task_id": None}}
    file, target = tmp_path / "job.jsonl", tmp_path / "report.html"
    file.write_text("".join(json.dumps(record) + "\n" for record in rows))
    assert cli.main(["report", str(TWO), str(file), "-o", str(target), "--no-bound"]) == 0
    table = target.read_text().split('class="environment"')[1].split("</table>")[0]
    lines = {re.sub(r"<.*?>", " ", line).strip(): "differs" in line for line in table.splitlines() if "<tr" in line}
    shown = {" ".join(line.split()): differs for line, differs in lines.items()}
    assert shown["hosts vm (2) n1 (1), n2 (1)"]
    assert shown["SLURM job id - 42"]
    assert shown["SLURM partition - debug"]
    assert not shown["mpi MPICH 5.0.2"]
    assert not [line for line in shown if "array task" in line]


def test_the_page_is_readable_without_its_script(page):
    parsed = Page(page)
    assert all("hidden" in attrs for attrs in parsed.of("button", "swap"))
    assert all("disabled" in attrs for attrs in parsed.of("button") if "data-name" in attrs)
    titles = parsed.of("title")
    marks = parsed.of("path", "mark")
    assert len(titles) > sum("data-says" in attrs for attrs in marks) > 500


def test_text_from_files_is_escaped(tmp_path):
    evil = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"
    rows = [json.loads(line) for line in TWO.read_text().splitlines()]
    rows[0] |= {"hosts": [evil, evil], "command": f"hpccoll bench {evil}", "commit": evil}
    rows[0]["versions"]["mpi"] = evil
    for record in rows[1:]:
        record["algorithm"] = record["algorithm"] and evil
    faulty = [json.loads(line) for line in PAIRS.read_text().splitlines()]
    for record in faulty:
        for key in ("source", "node"):
            if key in record:
                record[key] = evil
        for fault in record.get("faults", []):
            fault |= {"found": evil, "remedy": evil, "nodes": [evil], "exclude": evil}
    file, target = tmp_path / "evil.jsonl", tmp_path / "report.html"
    file.write_text("".join(json.dumps(record) + "\n" for record in [*rows, *faulty]))
    assert cli.main(["report", str(file), "-o", str(target), "--no-bound"]) == 0
    parsed = Page(target.read_text())
    assert len(parsed.of("script")) == 1
    assert not parsed.of("img")
    assert evil in "".join(parsed.words)


@pytest.mark.parametrize("value", [None, "", -1, 1e300, [], {}, ["x"], True])
def test_invalid_values_in_runs_and_pairs_do_not_break_the_page(tmp_path, value):
    rows = [json.loads(line) for line in PAIRS.read_text().splitlines()]
    for record in (rows[0], rows[1], rows[-2], rows[-1]):
        for key in set(record) - {"schema", "kind"}:
            record[key] = value
    file, target = tmp_path / "odd.jsonl", tmp_path / "report.html"
    file.write_text("".join(json.dumps(record) + "\n" for record in rows))
    assert cli.main(["report", str(file), str(TWO), "-o", str(target), "--no-bound"]) == 0
    assert not Page(target.read_text()).open


def test_the_findings_are_records_of_the_schema(tmp_path):
    target = tmp_path / "findings.jsonl"
    arguments = ["report", str(FOUR), str(PAIRS), "-o", str(tmp_path / "r.html"), "--no-bound", "--json", str(target)]
    assert cli.main(arguments) == 0
    run, *found = [json.loads(line) for line in target.read_text().splitlines()]
    assert run["kind"] == "run"
    assert {"binding", "link"} <= {each["area"] for each in found}
    for each in (run, *found):
        require_valid(each)
    order = ["problem", "warning", "note", "ok"]
    severities = [order.index(each["severity"]) for each in found]
    assert severities == sorted(severities)


def test_findings_are_printed_with_evidence_and_remedy(tmp_path, capsys):
    target = tmp_path / "r.html"
    assert cli.main(["report", str(FOUR), "-o", str(target), "--no-bound"]) == 0
    out = capsys.readouterr().out
    assert "warning  binding: more ranks than cores" in out
    assert "evidence: run 1 (bench-4.jsonl): 4 ranks on vm" in out
    assert f"{target}: " in out.splitlines()[-1]
    assert cli.main(["report", str(FOUR), "-o", str(target), "--no-bound", "--json", "-"]) == 0
    assert all(json.loads(line)["schema"] == "hpccoll/1" for line in capsys.readouterr().out.splitlines())


def test_a_wrong_result_ends_with_status_1_and_a_page(tmp_path):
    rows = [json.loads(line) for line in TWO.read_text().splitlines()]
    rows[3]["wrong"] = 7
    file, target = tmp_path / "wrong.jsonl", tmp_path / "report.html"
    file.write_text("".join(json.dumps(record) + "\n" for record in rows))
    assert cli.main(["report", str(file), "-o", str(target), "--no-bound"]) == 1
    assert "wrong results" in target.read_text()


def test_a_missing_size_of_the_command_is_reported(tmp_path, capsys):
    lines = TWO.read_text().splitlines()
    file = tmp_path / "short.jsonl"
    file.write_text("\n".join(line for line in lines if '"nbytes":262144' not in line) + "\n")
    assert cli.main(["report", str(file), "-o", str(tmp_path / "r.html"), "--no-bound"]) == 0
    assert "was cut short: 4 sizes are missing" in capsys.readouterr().out
    assert cli.main(["report", str(TWO), "-o", str(tmp_path / "r.html"), "--no-bound"]) == 0
    assert "cut short" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.jsonl"], "FILE nowhere.jsonl: cannot read it (No such file or directory)"),
        ([str(TWO), "-o", "no/such/place.html"], "-o no/such/place.html: cannot write this file"),
        (["mine.jsonl", "-o", "mine.jsonl"], "is one of the result files; name another file for the page"),
        ([str(TWO), "--machine", "deep-thought"], "deep-thought"),
        ([str(TWO), "--no-bound", "--json", "no/such/place"], "--json no/such/place: cannot write this file"),
        ([], "Missing argument"),
    ],
)
def test_errors_are_usage_errors_with_one_message(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.jsonl"
    mine.write_bytes(TWO.read_bytes())
    assert cli.main(["report", *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert mine.read_bytes() == TWO.read_bytes()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")  # noqa: PTH110 - a device
def test_a_full_disk_is_a_usage_error(capsys):
    assert cli.main(["report", str(TWO), "-o", "/dev/full", "--no-bound"]) == 2
    assert "-o /dev/full: cannot write this file (No space left on device)" in capsys.readouterr().err


def test_other_ranks_write_and_print_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", str(TWO)]) == 0
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.iterdir())
