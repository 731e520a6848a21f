"""Checks of environment variables and SLURM, and that variables outside their lists are never shown."""

from __future__ import annotations

import pytest

from hpccoll.doctor import environment, slurm
from hpccoll.doctor.finding import Finding, Severity
from hpccoll.processes.command import CommandResult


def find_worst(findings: list[Finding]) -> Severity:
    """Return the highest severity of the findings."""
    return max(finding.severity for finding in findings)


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("OMPI_MCA_btl", "tcp,self", Severity.WARNING),
        ("OMPI_MCA_btl", "^vader", Severity.WARNING),
        ("OMPI_MCA_btl", "sm,tcp", Severity.PROBLEM),
        ("OMPI_MCA_btl", "^openib", Severity.OK),
        ("OMPI_MCA_btl", "self,sm,tcp", Severity.OK),
        ("UCX_TLS", "tcp", Severity.WARNING),
        ("UCX_TLS", "^sm", Severity.WARNING),
        ("UCX_TLS", "sm,rc,cuda_copy", Severity.OK),
        ("I_MPI_FABRICS", "ofi", Severity.WARNING),
        ("I_MPI_FABRICS", "shm:ofi", Severity.OK),
        ("NCCL_P2P_DISABLE", "1", Severity.WARNING),
        ("NCCL_P2P_DISABLE", "0", Severity.OK),
        ("CUDA_VISIBLE_DEVICES", "", Severity.WARNING),
        ("CUDA_VISIBLE_DEVICES", "0,1", Severity.OK),
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", Severity.WARNING),
        ("HPCCOLL_DEBUG", "1", Severity.NOTE),
        ("HPCCOLL_DEBG", "1", Severity.WARNING),
        ("OMP_NUM_THREADS", "8", Severity.WARNING),
        ("OMP_NUM_THREADS", "1", Severity.OK),
    ],
)
def test_harmful_values_of_variables_are_reported(name, value, severity):
    found = environment.check_environment({"OMP_NUM_THREADS": "2"} | {name: value}, 2, 4, 4)
    assert find_worst(found) is severity
    if severity > Severity.NOTE:
        assert name in found[0].found
        assert found[0].remedy


def test_unset_thread_count_is_a_warning_if_threads_exceed_cores():
    def check(ranks: int, cores: int, default_threads: int) -> Severity:
        return find_worst(environment.check_environment({}, ranks, cores, default_threads))

    assert check(4, 8, 8) is Severity.WARNING
    assert check(4, 8, 2) is Severity.OK  # each is bound to cores of its own
    assert check(4, 8, 1) is Severity.OK  # without torch
    assert check(1, 8, 8) is Severity.OK


def test_unlisted_variables_are_never_shown():
    environ = {"AWS_SECRET_ACCESS_KEY": "hidden", "OMPI_MCA_secret": "hidden", "UCX_TLS": "tcp"}
    findings = [*environment.check_environment(environ, 2, 4, 4), environment.report_network_variables(environ)]
    findings += slurm.check_slurm(environ | {"SLURM_JOB_ID": "7", "SLURM_JWT": "hidden"}, 2, "MPICH 5.0.2", 10)
    assert "tcp" in str(findings)
    assert "hidden" not in str(findings)
    assert "SECRET" not in str(findings)


def test_slurm_tasks_and_gpu_binding():
    (step,) = slurm.check_tasks({"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_ID": "0"}, 1)
    assert step.severity is Severity.WARNING
    assert slurm.check_tasks({"SLURM_STEP_NUM_TASKS": "8"}, 8) == []
    (allocation,) = slurm.check_tasks({"SLURM_NTASKS": "8"}, 1)
    assert allocation.severity is Severity.NOTE
    for hidden in ({"SLURM_GPUS_PER_TASK": "1"}, {"SLURM_TRES_PER_TASK": "cpu:4,gres/gpu:1"}):
        (found,) = slurm.check_gpu_binding(hidden)
        assert "CUDA IPC" in found.found
        assert "--gpu-bind=none" in found.remedy
    assert slurm.check_gpu_binding({"SLURM_TRES_PER_TASK": "cpu:4"}) == []


@pytest.mark.parametrize(
    ("offered", "library", "severity"),
    [
        ("MPI plugin types are...\n\tnone\n\tpmi2\n\tcray_shasta\n", "MPICH 5.0.2", Severity.OK),
        ("MPI plugin types are...\n\tnone\n\tpmi2\n", "Open MPI 5.0.11", Severity.WARNING),
        ("MPI plugin types are...\n\tpmix\n\tpmi2\nspecific pmix plugin versions available: pmix_v4", "Open MPI 5", 0),
        ("MPI plugin types are...\n\tnone\n", "MPICH 5.0.2", Severity.WARNING),
    ],
)
def test_srun_without_a_plugin_for_this_mpi_is_a_warning(offered, library, severity):
    result = CommandResult("srun --mpi=list", True, True, "worked", offered)
    found = slurm.check_mpi_plugins(result, {}, library)
    assert found.severity == severity


@pytest.mark.parametrize(
    ("plugins", "library", "warned"),
    [
        ("none, pmi2", "MPICH 5.0.2", True),
        ("pmix, pmi2", "Open MPI 5.0.11", False),
        ("none, pmix", "MPICH 5.0.2", False),
    ],
)
def test_a_plugin_that_cuts_off_messages_of_mpich_is_a_warning_with_another_launcher(plugins, library, warned):
    offered = Finding("slurm", Severity.OK, "srun starts ranks", f"`srun --mpi=list`: {plugins}")
    findings = slurm.check_pmi2_messages(offered, library)
    assert [finding.severity for finding in findings] == [Severity.WARNING] * warned
    if warned:
        assert "mpirun of MPICH 5.0.2" in findings[0].remedy
        assert "HPCCOLL_START_TIMEOUT" in findings[0].remedy
