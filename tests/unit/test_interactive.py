"""The public API in interactive use: completion, help, notebooks, and `python -m mpi4py`."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
import rlcompleter
import subprocess
import sys

import pytest

import hpccoll


def complete(text, **names):
    """Return the completions that Python offers for a string, without brackets."""
    completer = rlcompleter.Completer(names)
    found: list[str] = []
    while (each := completer.complete(text, len(found))) is not None:
        found.append(each.rstrip("()"))
    return found


def test_completion_offers_the_class_and_its_methods():
    assert complete("hpccoll.Comm", hpccoll=hpccoll) == ["hpccoll.CommunicationError", "hpccoll.Communicator"]
    with hpccoll.Communicator() as comm:
        assert complete("comm.all_", comm=comm) == [
            "comm.all_gather",
            "comm.all_gather_object",
            "comm.all_reduce",
            "comm.all_reduce_init",
            "comm.all_to_all",
        ]


def test_help_shows_types_shapes_errors_and_an_example():
    text = pydoc.plain(pydoc.render_doc(hpccoll.Communicator.all_reduce))
    for words in (
        "out: 'Any' = None",
        "op: 'ReduceOp' = 'sum'",
        "array of one shape and dtype on all ranks",
        "Raises:",
        ">>> comm.all_reduce(",
    ):
        assert words in text
    assert list(inspect.signature(hpccoll.Communicator.all_reduce).parameters) == [
        *("self", "x", "op", "out", "algorithm", "async_op"),
    ]


def test_a_misspelt_keyword_names_the_public_method():
    with (
        hpccoll.Communicator() as comm,
        pytest.raises(TypeError, match=r"Communicator.all_reduce\(\) got an unexpected keyword argument 'algo'"),
    ):
        comm.all_reduce(1, algo="ring")  # type: ignore[call-overload]


CELLS = """
import numpy as np, hpccoll
comm = hpccoll.Communicator()
x = comm.all_reduce(np.ones(3))
work = comm.all_reduce(np.ones(3), async_op=True)
assert work.wait().tolist() == x.tolist() == [1.0] * 3
comm
comm.all_reduce(x, op="mean")
comm.close()
comm
"""


def test_cells_run_inside_an_event_loop_as_in_a_notebook():
    """Notebooks run each cell inside an event loop, and go on after an exception."""
    names: dict[str, object] = {}

    async def run_cells():
        shown = []
        for cell in CELLS.strip().splitlines():
            try:
                shown.append(eval(compile(cell, "cell", "eval"), names))
            except SyntaxError:
                exec(compile(cell, "cell", "exec"), names)
            except hpccoll.UnknownNameError as error:
                shown.append(error)
            await asyncio.sleep(0)
        return [repr(each) for each in shown if each is not None]

    assert [each.split(":")[0] for each in asyncio.run(run_cells())] == [
        "<hpccoll.Communicator",
        "UnknownNameError(\"unknown reduction 'mean'; choose one of",
        "<hpccoll.Communicator",
    ]


@pytest.mark.filterwarnings("ignore")  # IPython itself warns
def test_cells_run_in_ipython(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shells = pytest.importorskip("IPython.core.interactiveshell")
    completer = pytest.importorskip("IPython.core.completer")
    shell = shells.InteractiveShell()
    for cell in CELLS.strip().splitlines():
        done = shell.run_cell(cell)
        assert done.error_before_exec is None
        assert (done.error_in_exec is None) == ("mean" not in cell), cell
    for text, name in (("hpccoll.Comm", "Communicator"), ("comm.all_re", "all_reduce_init")):
        with completer.provisionalcompleter():
            found = [each.text for each in shell.Completer.completions(text, len(text))]
        assert name in [each.removeprefix(".") for each in found]


def test_a_script_runs_under_python_m_mpi4py(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import hpccoll\nwith hpccoll.Communicator() as comm:\n    print(comm, comm.all_reduce(2))\n")
    command = [sys.executable, "-m", "mpi4py", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "<hpccoll.Communicator: rank 0 of 1 on 1 node, open> 2\n", done.stderr
