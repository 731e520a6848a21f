"""Peers start, refuse calls and end correctly: little overhead, clear errors, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

from hpccoll.errors import BufferError, CommunicationError, UnavailableError, UnknownNameError, UsageError
from hpccoll.peers import LibraryEngine, MpiEngine, TorchEngine, start_engine, start_engines
from hpccoll.plan import Operation
from hpccoll.processes import launcher
from tests.requirements import without_gpu

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture(scope="module")
def gloo(comm):
    peer = TorchEngine(comm, "gloo")
    yield peer
    peer.close()


@pytest.fixture(params=["mpi", pytest.param("gloo", marks=needs_torch)])
def peer(request, comm):
    return MpiEngine(comm) if request.param == "mpi" else request.getfixturevalue("gloo")


def total(peer: LibraryEngine) -> int:
    """Return the sum of a one from every rank."""
    x = np.ones(1, np.int64)
    peer.prepare(Operation.ALL_REDUCE, x, x, "sum", 0)()
    return int(x[0])


def test_a_prepared_mpi_call_is_nothing_but_mpi4py_s_method(comm):
    x = np.ones(2, np.float32)
    call = MpiEngine(comm).prepare(Operation.ALL_REDUCE, x, x, "sum", 0)
    assert isinstance(call, partial)
    assert call.func == comm.Allreduce


@pytest.mark.parametrize("redop", ["avg", "premul_sum"])
def test_mpi_has_no_average(comm, redop):
    x = np.ones(2, np.float32)
    with pytest.raises(UsageError, match=f"engine mpi does not offer reduction {redop}.*--engine hpccoll"):
        MpiEngine(comm).prepare(Operation.ALL_REDUCE, x, x, redop, 0)


def test_unknown_names_list_the_valid_ones(comm):
    x = np.ones(2, np.float32)
    with pytest.raises(UnknownNameError, match=r"summ.*sum"):
        MpiEngine(comm).prepare(Operation.ALL_REDUCE, x, x, "summ", 0)
    with pytest.raises(UnknownNameError, match=r"glo.*gloo, mpi, nccl, torch-hpccoll"):
        start_engine("glo", comm)


@pytest.mark.parametrize(
    ("source", "result", "match"),
    [
        (np.ones(4, "f4"), np.ones(5, "f4"), "4 elements, result 5"),
        (np.ones(4, "f4"), np.ones(4, "f8"), "float32.*float64"),
        (np.ones(8, "f4")[::2], np.ones(4, "f4"), "not C-contiguous"),
        (None, np.ones(4, "f4"), "needs a source"),
        (np.ones(4, "f4"), None, "needs a result"),
    ],
)
def test_buffers_that_do_not_fit_are_refused(peer, source, result, match):
    with pytest.raises(BufferError, match=match):
        peer.prepare(Operation.ALL_REDUCE, source, result, "sum", 0)


def test_overlapping_buffers_are_refused(peer):
    x = np.ones(8, "f4")
    with pytest.raises(BufferError, match="overlap"):
        peer.prepare(Operation.ALL_REDUCE, x[:5], x[3:], "sum", 0)


def test_read_only_sources_are_read_and_read_only_results_refused(peer, comm):
    x, y = np.ones(3, np.int32), np.zeros(3, np.int32)
    x.flags.writeable = False
    peer.prepare(Operation.ALL_REDUCE, x, y, "sum", 0)()
    assert y.tolist() == [comm.size] * 3
    with pytest.raises(BufferError, match="read-only"):
        peer.prepare(Operation.ALL_REDUCE, y, x, "sum", 0)


def test_what_is_not_here_is_given_as_a_reason(comm):
    started, missing = start_engines(comm, ("mpi", "nccl", "gloo"))
    assert isinstance(started[0], MpiEngine)
    if find_spec("torch") is None:
        assert 'pip install "torch' in missing[0]
        assert "torch" not in sys.modules
    else:
        assert isinstance(started[-1], TorchEngine)
        assert not missing
        started[-1].close()


@needs_torch
def test_the_users_default_group_is_not_touched(gloo):
    import torch.distributed as dist

    assert gloo is not None
    assert not dist.is_initialized()


@needs_torch
def test_two_peers_live_beside_each_other_and_close(comm, gloo):
    second = TorchEngine(comm, "gloo")
    assert total(second) == comm.size
    second.close()
    assert total(gloo) == comm.size


@needs_torch
def test_a_start_that_fails_on_one_rank_fails_on_all_and_names_it(comm, monkeypatch):
    def fails(self):
        if self.comm.rank == self.comm.size - 1:
            raise RuntimeError("no route")
        return object()

    monkeypatch.setattr(TorchEngine, "_make_group", fails)
    with pytest.raises(CommunicationError, match=rf"engine gloo cannot start.*rank {comm.size - 1}: no route"):
        TorchEngine(comm, "gloo")


@without_gpu
def test_without_a_gpu_nccl_is_unavailable(comm):
    with pytest.raises(UnavailableError, match=r"nccl.*(CUDA|torch)") as caught:
        start_engine("nccl", comm)
    assert caught.value.exit_status == 3


@needs_torch
@pytest.mark.full_except_on(2)
@pytest.mark.parametrize("ending", ["peer.close()", "pass"])
def test_the_process_ends_quietly_with_and_without_close(ending):
    script = (
        "from hpccoll.runtime import job; from hpccoll.peers import start_engine\n"
        f"peer = start_engine('gloo', job.get_world()); {ending}; print('done')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=launcher.without_launcher(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
