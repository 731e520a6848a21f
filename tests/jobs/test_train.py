"""`mpirun -n N hpccoll train` in real jobs: records, resumption, refused options, and files after a crash."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpccoll.parallel.mesh import Mesh
from hpccoll.runtime.job import get_mpi_library
from hpccoll.train.checkpoint import Checkpoint, CheckpointDirectory
from hpccoll.train.options import MlpConfig, TrainOptions
from tests.depth import keep_every
from tests.jobs.launch import BIN, LIMIT_S, command, environment, hpccoll
from tests.record_schema import require_valid

torch = pytest.importorskip("torch")

SMALL = ("--width", "16", "--batch", "32")
ENDLESS = ("--steps", "1000000")


def records(path: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The records of a kind, whole lines only."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def parameters(folder: Path) -> dict[str, bytes]:
    """The newest checkpoint's numbers."""
    found, _ = CheckpointDirectory(folder).load_newest(TrainOptions(MlpConfig(width=16), 1).get_checkpoint_identity())
    assert found is not None
    return {name: x.numpy().tobytes() for name, x in found.parameters.items()}


@pytest.mark.slow
def test_a_model_is_trained_checked_and_recorded(tmp_path: Path) -> None:
    out = tmp_path / "train.jsonl"
    profile = tmp_path / "profile.json"
    done = hpccoll(2, "train", "pp=2,dp=1", "--check", "--json", str(out), "--profile", str(profile))
    assert done.returncode == 0, done.stderr
    assert "USDT" not in done.stderr  # a line of torch's profiler
    assert {each["pid"] for each in json.loads(profile.read_text())["traceEvents"]} == {0, 1}
    for line in out.read_text().splitlines():
        require_valid(json.loads(line))
    (run,), steps, (summary,) = (records(out, kind) for kind in ("run", "train", "train_summary"))
    assert run["ranks"] == 2
    assert [step["step"] for step in steps] == list(range(1, 201))
    assert {(step["strategy"], step["ranks"]) for step in steps} == {("pp=2", 2)}
    assert all(0 < step["bubble"] < 1 and step["tokens_per_s"] == 64 / step["step_s"] for step in steps)
    assert (summary["wrong"], summary["stop"], summary["resumed_at"]) == (0, "complete", None)
    assert summary["loss"] == steps[-1]["loss"] < 0.5 < steps[0]["loss"]
    assert summary["accuracy"] > 0.9
    assert "0 gradients wrong" in done.stdout
    assert "accuracy 9" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "strategy"), [(2, "pp"), pytest.param(4, "dp=2,tp=2", marks=pytest.mark.full)])
def test_a_stopped_run_resumes_to_the_same_bits(tmp_path: Path, ranks: int, strategy: str) -> None:
    out, stop, state = tmp_path / "train.jsonl", tmp_path / "stop", tmp_path / "state"
    words = ["train", strategy, *SMALL, "--checkpoint", str(state), "--stop-file", str(stop), "--json", str(out)]
    with subprocess.Popen(
        command(ranks, *words, *ENDLESS), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        until(lambda: len(records(out)) > 3, job)
        stop.touch()
        told, errors = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 130, errors
    assert "stopped; run the same command again to resume" in told
    (summary,) = records(out, "train_summary")
    reached = summary["steps"]
    assert (summary["stop"], summary["accuracy"]) == ("stop_file", None)
    assert summary["checkpoint"].endswith(f"step-{reached:08d}")
    stop.unlink()
    done = hpccoll(ranks, *words, "--steps", str(reached + 7))
    assert done.returncode == 0, done.stderr
    assert f"# resumed after step {reached} from {state}" in done.stderr
    assert [step["step"] for step in records(out)] == list(range(1, reached + 8))  # none lost, none twice
    assert records(out, "train_summary")[-1]["resumed_at"] == reached
    assert len(records(out, "run")) == 2
    other = tmp_path / "unbroken"
    done = hpccoll(ranks, "train", strategy, *SMALL, "--steps", str(reached + 7), "--checkpoint", str(other))
    assert done.returncode == 0, done.stderr
    assert parameters(other) == parameters(state)


def until(true: Any, job: subprocess.Popen[str]) -> None:
    """Wait until something is the case while a job runs."""
    end = time.monotonic() + LIMIT_S
    while not true():
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


def save(folder: Path, *steps: int) -> Path:
    """Write the checkpoint of a run of SMALL after so many steps, with all parameters one; return the last file."""
    model = MlpConfig(width=16)
    sizes = {f"layers.{layer}": model.weight_shape(layer) for layer in range(model.layers)}
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": size for name, size in sizes.items()}
    shapes |= {f"{name}.bias": size[:1] for name, size in sizes.items()}
    ones = {name: torch.ones(shape) for name, shape in shapes.items()}
    identity = TrainOptions(model, 1).get_checkpoint_identity()
    return [CheckpointDirectory(folder).save(Checkpoint(step, 32 * step, identity, ones)) for step in steps][-1]


@pytest.mark.slow
def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path: Path) -> None:
    newest = save(tmp_path, 2, 4)
    data = newest / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:-100])
    # Fewer steps than were done already: nothing is left to do but to tell how good it is.
    done = hpccoll(1, "train", "dp", *SMALL, "--checkpoint", str(tmp_path), "--steps", "1")
    assert done.returncode == 0, done.stderr
    assert f"# {newest} is damaged and was skipped" in done.stderr
    assert "# resumed after step 2 from" in done.stderr
    assert "Traceback" not in done.stderr
    assert "2 steps; accuracy" in done.stdout


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1)
    done = hpccoll(2, "train", "dp", "--width", "24", "--checkpoint", str(tmp_path))
    assert said_once(done, 2) == (
        f"Error: --checkpoint {tmp_path}: step-00000001 is from a run with width 16, but this run has width 24; "
        "give the same options, or name another directory"
    )


def said_once(done: subprocess.CompletedProcess[str], status: int) -> str:
    """The one error of a run."""
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    return said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "words", "status", "told"),
    keep_every(
        3,
        [
            (
                2,
                ["zero4"],
                2,
                "unknown strategy 'zero4'; choose dp, tp, pp, cp or ep for all ranks, or a mesh such as dp=2,tp=2,pp=2",
            ),
            (2, ["dp=2,tp=2"], 2, "is a mesh of 4 ranks, but this job has 2 ranks; start 4 with mpirun -n 4"),
            (1, ["dp", "--model", "gpt"], 2, "'gpt' is not 'mlp'"),
            (2, ["pp", "--layers", "1"], 2, "give --layers 2 or more"),
            (2, ["dp", "--batch", "1"], 2, "give a larger --batch"),
            (1, ["dp", "--stop-file", "stop"], 2, "add --checkpoint DIR"),
            (2, ["dp", "--checkpoint-every", "5"], 2, "--checkpoint-every needs a directory for checkpoints; add"),
            (2, ["dp", "--checkpoint", "/proc/state"], 2, "--checkpoint /proc/state: cannot write there"),
            (2, ["dp", "--profile", "/nowhere/p.json"], 2, "--profile /nowhere/p.json: cannot write this file"),
            (2, ["dp", "--json", "/nowhere/out.jsonl"], 2, "--json /nowhere/out.jsonl: cannot write this file"),
            (1, ["dp", "--lr", "1e30", "--activation", "gelu"], 1, "give a smaller --lr than 1e+30"),
            (1, ["dp", "--device", "cuda"], 3, "no CUDA device"),
            (2, ["dp", "--bucket-bytes", "many"], 2, "'many' is not a size"),
        ],
    ),
)
def test_errors_are_printed_once_with_their_status(
    ranks: int, words: list[str], status: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # whatever is here, torch finds no GPU
    assert told in said_once(hpccoll(ranks, "train", *words), status)


def test_a_wrong_schedule_is_refused_with_rank_action_and_reason(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n")
    told = said_once(hpccoll(2, "train", "pp", "--microbatches", "2", "--schedule", str(file)), 1)
    assert told == f"Error: {file}: rank 1: 1B1 is missing, the backward pass of stage 1 for micro-batch 1; add it"


def scripted(ranks: int, before: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command on ranks that did something else first."""
    code = f"import sys\n{before}\nfrom hpccoll.cli.main import main\nsys.exit(main({list(words)!r}))"
    return subprocess.run(
        [str(BIN / "mpirun"), "-n", str(ranks), sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=environment(),
    )


def test_without_torch_the_error_names_the_install_command() -> None:
    done = scripted(1, "sys.modules['torch'] = None", "train", "dp")
    assert 'pip install "torch' in said_once(done, 3)


@pytest.mark.slow
def test_wrong_gradients_are_counted_and_end_with_status_1(tmp_path: Path) -> None:
    forget = (
        "from hpccoll.parallel.axis_group import AxisGroup\nstart = AxisGroup.start_all_reduce\n"
        "AxisGroup.start_all_reduce = lambda self, x: start(self, x.clone())"
    )
    out = tmp_path / "train.jsonl"
    done = scripted(2, forget, "train", "dp", *SMALL, "--steps", "2", "--check", "--json", str(out))
    assert done.returncode == 1, done.stderr
    assert "elements differ from those of one process, the first in layers.0.weight on rank 0" in done.stderr
    (summary,) = records(out, "train_summary")
    assert summary["wrong"] > 1000
    assert summary["max_error"] > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "limit"), [pytest.param(signal.SIGKILL, "", marks=pytest.mark.full), (signal.SIGSTOP, "3")]
)
def test_a_dead_rank_ends_the_job_and_leaves_a_checkpoint(tmp_path: Path, sent: signal.Signals, limit: str) -> None:
    out, state, crash = tmp_path / "train.jsonl", tmp_path / "state", tmp_path / "crash"
    words = ["train", "dp", *SMALL, *ENDLESS, "--checkpoint", str(state), "--checkpoint-every", "5"]
    with subprocess.Popen(
        command(2, *words, "--json", str(out)),
        env=environment(HPCCOLL_RECORDER=str(crash), **({"HPCCOLL_TIMEOUT": limit} if limit else {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        until(lambda: len(records(out)) > 12, job)
        rank = next(
            each
            for each in psutil.Process(job.pid).children(recursive=True)
            if {"PMI_RANK": "1", "OMPI_COMM_WORLD_RANK": "1"}.items() & each.environ().items()
            and "train" in each.cmdline()
        )
        rank.send_signal(sent)
        _, errors = job.communicate(timeout=LIMIT_S)
    if sent == signal.SIGSTOP:
        assert job.returncode == 4, errors
        assert "rank 1 is stopped" in errors
    else:
        assert job.returncode == {"MPICH": 9, "Open MPI": 137}[get_mpi_library().rpartition(" ")[0]], errors
        report = [str(BIN / "hpccoll"), "report", "--crash", str(crash)]
        explained = subprocess.run(report, capture_output=True, text=True, timeout=LIMIT_S, check=True)
        assert explained.stdout.startswith("Guilty: rank 1 ended without notice, as by a signal or os._exit")
    assert "Traceback" not in errors
    steps = len(records(out))
    found, damaged = CheckpointDirectory(state).load_newest(
        TrainOptions(MlpConfig(width=16), 1).get_checkpoint_identity()
    )
    assert found is not None
    assert (found.step % 5, damaged) == (0, [])
    done = hpccoll(2, *words[: words.index("--steps")], "--steps", str(steps + 10), "--checkpoint", str(state))
    assert done.returncode == 0, done.stderr
    assert "# resumed after step" in done.stderr


GUIDE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()


@pytest.mark.full
def test_every_command_of_the_guide_runs_in_its_order(tmp_path: Path) -> None:
    lines = [line for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL) for line in block.splitlines()]
    assert len(lines) == 16
    for line in lines:
        words = line.partition("#")[0].split()
        done = subprocess.run(
            [str(BIN / words[0]), *words[1:3], str(BIN / words[3]), *words[4:]],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env=environment(),
            cwd=tmp_path,
        )
        assert done.returncode == 0, (line, done.stderr)
        assert ("largest difference of the losses" if "--compare" in words else "on held-out samples") in done.stdout
    assert (tmp_path / "profile.json").stat().st_size > 0
    assert [step["step"] for step in records(tmp_path / "train.jsonl")] == list(range(1, 301))


def test_the_groups_of_the_guide_are_those_of_the_mesh() -> None:
    mesh = Mesh(2, 2, 2)
    for axis in ("dp", "tp", "pp"):
        (shown,) = re.findall(rf" {axis}: ((?:\d \d\s+)+)", GUIDE)
        pairs = shown.split()
        assert list(zip(pairs[::2], pairs[1::2], strict=True)) == sorted(
            {tuple(str(rank) for rank in mesh.get_group_ranks(rank, axis)) for rank in range(mesh.ranks)}
        )
    for target in re.findall(r"\]\((?!http)(.*?)\)", GUIDE):
        assert (Path(__file__).parents[2] / "docs" / target.partition("#")[0]).exists(), target
