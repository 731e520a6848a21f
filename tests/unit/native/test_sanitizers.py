"""The interpreter, its check, half precision, messages and runs under ASan and UBSan; waits and threads under TSan."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

import hpccoll
from tests.depth import keep_every
from tests.requirements import skip_or_fail

HERE = Path(__file__).parent
NATIVE = Path(hpccoll.__file__).parent / "native"
CHECKED = "interpreter.c", "copies.c", "check.c", "reductions.c", "half.c", "messages.c", "waits.c"


def compile_driver(folder: Path, driver: str, sources: tuple[str, ...], sanitizers: str, **changes: str) -> Path:
    """Compile a driver with sanitizers; `changes` maps strings of the sources to their replacements."""
    compiler = shutil.which("gcc") or skip_or_fail("gcc is not installed")
    copied = []
    (folder / "mailbox_mpi.h").write_text((HERE / "mailbox_mpi.h").read_text())
    for path in sorted(NATIVE.glob("*.[ch]")):
        text = path.read_text()
        if path.with_suffix(".c").name in sources:
            for old, new in changes.items():
                text = text.replace(old, new)
        if path.name in sources:
            copied.append(str(folder / path.name))
        (folder / path.name).write_text(text)
    program = folder / "driver"
    flags = ["-std=gnu11", "-g", "-O1", "-DHPCCOLL_SANITIZED", "-fno-sanitize-recover=all", f"-fsanitize={sanitizers}"]
    command = [compiler, *flags, "-Wall", "-Wextra", f"-I{folder}", str(HERE / driver), *copied, "-lpthread"]
    subprocess.run([*command, "-o", str(program)], check=True, timeout=120)
    return program


def run(program: Path, limit_s: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program], capture_output=True, text=True, timeout=limit_s, check=False)


@pytest.mark.slow
def test_whatever_the_check_accepts_stays_inside_of_its_memories(tmp_path):
    done = run(compile_driver(tmp_path, "drive_interpreter.c", CHECKED, "address,undefined"))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 500  # the driver draws enough programs that are right


MUTANTS = {
    "a size is not compared": ("offset <= program->limits[memory] - nbytes", "offset <= program->limits[memory]"),
    "a negative offset is accepted": ("|| offset < 0 || nbytes < 0", "|| nbytes < 0"),
    "a memory too far is accepted": ("memory >= program->memories", "memory > program->memories"),
    "the right operand is not checked": (
        "step->right, step->right_offset, step->nbytes)) {\n        return \"the right operand is outside",
        "step->left, step->left_offset, step->nbytes)) {\n        return \"the right operand is outside",
    ),
    "the input may be written": ("step->out == INPUT", "step->out < INPUT"),
    "a group may end after the program": ("members > program->count - at - 1", "members > program->count - at"),
    "a group may have any sizes": ("|| first[i].nbytes != first->nbytes", ""),
    "a group may contain groups": ("first[i].code > CLAIM", "first[i].code > FENCE"),
    "a reduction may be missing": ("if (!reducer || (", "if (reducer && ("),
    "the last tile is a whole one": ("total - *begin < tile ? total - *begin : tile", "tile"),
    "a group begins one instruction late": ("*first = step + is_group;", "*first = step + is_group + 1;"),
    "there may be requests without a number": ("request >= program->requests", "request > program->requests"),
    "a message may leave its memory": (
        'return fits ? NULL : "the message is outside',
        'return fits || sends ? NULL : "the message is outside',
    ),
    "a message may end after the program": ("started[request] ? \"the program ends", "0 ? \"the program ends"),
    "two messages may have one request": (
        "started[request] != (step->code == WAIT)",
        "step->code == WAIT && !started[request]",
    ),
    "a claim may leave its memory": ("|| !is_inside(program, step->left, step->left_offset, step->nbytes)", ""),
    "a half block is too long": ("count - start < BLOCK ? count - start : BLOCK", "BLOCK"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_of_check_or_interpreter_is_seen(tmp_path, mutant):
    old, new = MUTANTS[mutant]
    assert any(old in (NATIVE / name).read_text() for name in CHECKED)
    done = run(compile_driver(tmp_path, "drive_interpreter.c", CHECKED, "address,undefined", **{old: new}))
    assert done.returncode != 0


def test_waits_order_the_data_of_the_ranks(tmp_path):
    done = run(compile_driver(tmp_path, "drive_waits.c", ("waits.c",), "thread"))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 3000


def test_a_wait_that_acquires_nothing_is_seen(tmp_path):
    program = compile_driver(tmp_path, "drive_waits.c", ("waits.c",), "thread")
    header = (tmp_path / "waits.h").read_text()
    (tmp_path / "waits.h").write_text(header.replace("memory_order_acquire", "memory_order_relaxed"))
    gcc = shutil.which("gcc") or skip_or_fail("gcc is not installed")
    flags = ["-std=c11", "-O1", "-fsanitize=thread", f"-I{tmp_path}"]
    subprocess.run(
        [gcc, *flags, str(HERE / "drive_waits.c"), str(tmp_path / "waits.c"), "-lpthread", "-o", str(program)],
        check=True,
        timeout=120,
    )
    assert run(program).returncode != 0


MESSAGES = *CHECKED, "progress.c"


@pytest.mark.slow
@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_two_threads_advance_programs_of_messages(tmp_path, sanitizers):
    done = run(compile_driver(tmp_path, "drive_messages.c", MESSAGES, sanitizers))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 300


MESSAGE_MUTANTS = {
    "a wait is lost": ("if (!flag) {", "if (flag > 1) {"),
    "the tag is that of the next run": (", state->tag, state->comm,", ", state->tag + (state->comm & 1), state->comm,"),
    "sends and receives are exchanged": ("sends = step->code == SEND;", "sends = step->code != SEND;"),
    "the offset of a message is ignored": ("sends, base + offset, step", "sends, base + offset + 8, step"),
    "the size is one byte less": ("(data, (int)nbytes, byte", "(data, (int)nbytes - 1, byte"),
    "a wait tests the next request": (
        "state->mpi_error = test_request(state->library, &state->requests[step->right_offset],",
        "state->mpi_error = test_request(state->library, &state->requests[step->right_offset ^ 1],",
    ),
    "an instruction is skipped": (
        "        state->position.at++;",
        "        state->position.at += 1 + (step->code == WAIT);",
    ),
    "local work is not executed": (
        "state->local = execute_tiles(program, &state->memories, &state->position, &tiles, report);",
        "state->position.at++;",
    ),
    "a message is in the other memory": ("sends ? step->left : step->out", "sends ? step->out : step->left"),
    "the thread does not claim": ("if (!claim_task(task)) {", "if (0) {"),
    "a task is released without its data": (
        "atomic_store_explicit(&task->claimed, false, memory_order_release)",
        "atomic_store_explicit(&task->claimed, false, memory_order_relaxed)",
    ),
    "a task is claimed without its data": (
        "atomic_exchange_explicit(&task->claimed, true, memory_order_acquire)",
        "atomic_exchange_explicit(&task->claimed, true, memory_order_relaxed)",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mutant", keep_every(3, list(MESSAGE_MUTANTS)))
def test_a_mutant_of_messages_or_progress_is_seen(tmp_path, mutant):
    old, new = MESSAGE_MUTANTS[mutant]
    assert any(old in path.read_text() for path in NATIVE.glob("*.[ch]"))
    program = compile_driver(tmp_path, "drive_messages.c", MESSAGES, "thread", **{old: new})
    with suppress(subprocess.TimeoutExpired):  # a hang is seen, too
        assert run(program, 6).returncode != 0


RUNS = *MESSAGES, "entry.c", "node_run.c", "pipeline.c"


@pytest.mark.slow
@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_two_threads_advance_runs_on_a_node_and_pipelines(tmp_path, sanitizers):
    done = run(compile_driver(tmp_path, "drive_runs.c", RUNS, sanitizers))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 60


RUN_MUTANTS = {
    "a segment does not free its slot": ("        arrive(counter);  // the slot", "        // the slot"),
    "a segment has the messages of another slot": ("first_tag + (int)slot,", "first_tag,"),
    "a segment has the requests of another slot": ("run->requests + slot * run->most_requests", "run->requests"),
    "the pipeline ends before its last segment": ("run->next == run->segments->segments", "run->next > 0"),
    "a fence is counted twice": (
        "state->has_arrived = !have_all_arrived(state->fences);",
        "state->has_arrived = false;",
    ),
    "a fence is not waited for": (
        "    return !state->has_arrived;",
        "    state->has_arrived = false;\n    return true;",
    ),
    "the next group begins with its second byte": (
        "{position->at + is_group + members, 0};",
        "{position->at + is_group + members, 1};",
    ),
    "an offset is lost": ("(location & ((UINT64_C(1) << OFFSET_BITS) - 1))", "0"),
    "a run in place does not compare the entries": ("agreement != RANKS_AGREE || !peers", "!peers"),
    "a run in place waits for nobody": (
        "if (!have_all_arrived(run->direct->barrier->counter)) {",
        "if (run->at < 0) {",
    ),
    "a staged run waits for nobody": ("if (!have_all_arrived(run->staged->barrier->counter)) {", "if (run->at < 0) {"),
    "an entry is never waited for": (
        "    if (!have_all_arrived(barrier->counter)) {\n        return ENTRY_WAITS;",
        "    if (0) {\n        return ENTRY_WAITS;",
    ),
    "a fence of a run in place is skipped": (
        "execute_direct(run, run->at + 1, report);",
        "execute_direct(run, run->at + 2, report);",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mutant", keep_every(20, list(RUN_MUTANTS)))
def test_a_mutant_of_runs_is_seen(tmp_path, mutant):
    old, new = RUN_MUTANTS[mutant]
    assert any(old in (NATIVE / name).read_text() for name in RUNS)
    program = compile_driver(tmp_path, "drive_runs.c", RUNS, "thread", **{old: new})
    with suppress(subprocess.TimeoutExpired):  # a hang is seen, too
        assert run(program, 10).returncode != 0
