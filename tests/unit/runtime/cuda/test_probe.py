"""The probe of MPI on device memory: its jobs without a GPU, and the outcomes that count as a failure."""

from __future__ import annotations

import textwrap

import pytest

from hpccoll.processes.command import CommandResult, run_python
from hpccoll.runtime.cuda import probe
from hpccoll.runtime.cuda.driver import format_cuda_version


@pytest.fixture(autouse=True)
def _probe_again():
    probe.is_mpi_cuda_aware.cache_clear()
    yield
    probe.is_mpi_cuda_aware.cache_clear()


def test_versions_of_cuda_have_a_major_and_a_minor_number():
    assert [format_cuda_version(number) for number in (11080, 12090, 13000)] == ["11.8", "12.9", "13.0"]


def test_no_process_is_started_without_a_gpu(monkeypatch):
    monkeypatch.setattr(probe, "list_device_names", tuple)
    monkeypatch.setattr(probe, "run_python", lambda *_: pytest.fail("a process was started"))
    assert not probe.is_mpi_cuda_aware()


@pytest.mark.parametrize("failing", [None, *probe.REQUIRED_OPERATIONS])
def test_one_failed_operation_makes_mpi_unaware_of_cuda(failing, monkeypatch):
    def run(arguments, *_):
        succeeded = arguments[2] != failing
        return CommandResult("probe", succeeded, True, "", "worked on 1 rank, 16 elements\n" if succeeded else "")

    monkeypatch.setattr(probe, "list_device_names", lambda: ("GPU",))
    monkeypatch.setattr(probe, "run_python", run)
    assert probe.is_mpi_cuda_aware() == (failing is None)


def test_the_probe_uses_the_current_device(monkeypatch):
    """All ranks of a node would otherwise create contexts on its first device."""
    devices = []

    def run(arguments, *_):
        devices.append(arguments[-1])
        return CommandResult("probe", True, True, "", "worked on 1 rank\n")

    monkeypatch.setattr(probe, "list_device_names", lambda: ("GPU",) * 4)
    monkeypatch.setattr(probe, "find_current_device", lambda: 3)
    monkeypatch.setattr(probe, "run_python", run)
    assert probe.is_mpi_cuda_aware()
    assert devices == ["3"] * len(probe.REQUIRED_OPERATIONS)


@pytest.mark.parametrize("stdout", ["", "usage: mpirun\n"])
def test_job_without_the_expected_output_has_not_passed(stdout):
    assert not probe.has_passed(CommandResult("probe", True, True, "worked", stdout))


def test_hanging_job_is_killed_and_has_not_passed():
    result = probe.probe_operation("send_recv", "host", limit_s=0.01)
    assert result.outcome == "gave no answer within 0.01 s and was killed"
    assert not probe.has_passed(result)


@pytest.mark.slow
@pytest.mark.parametrize("operation", probe.OPERATIONS)
def test_operation_without_effect_does_not_pass(operation):
    """Host memory takes the same path as device memory."""
    result = probe.probe_operation(operation, "host")
    assert probe.has_passed(result), result
    assert "worked on 1 rank," in result.stdout
    idle = f"""
        from hpccoll.runtime.cuda import probe
        call, expect = probe.OPERATIONS["{operation}"]
        probe.OPERATIONS["{operation}"] = (lambda *_: None, lambda rank, n, count: expect(rank, n, count) or [1.0])
        probe.run_operation("{operation}", "host")
    """
    result = run_python(["-c", textwrap.dedent(idle)], 60)
    assert not result.succeeded
    assert "wrong values arrived" in result.evidence
