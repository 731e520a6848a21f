"""Jobs that an MPI library of another kind would start as N jobs of one rank: refused and accepted environments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpccoll.errors import LauncherError
from hpccoll.processes import launcher

MPICH, OPEN_MPI = "MPICH 5.0.2", "Open MPI 5.0.11"
REFUSED = [
    (MPICH, {"OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_SIZE=4"),
    (OPEN_MPI, {"PMI_SIZE": "4"}, "PMI_SIZE=4"),
    (OPEN_MPI, {"PMI_SIZE": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}, "PMI_SIZE=4"),
    (MPICH, {"SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "64"}, "SLURM_STEP_NUM_TASKS=8"),
    (MPICH, {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none", "SLURM_STEP_NUM_TASKS": "1"}, "WORLD_SIZE=2, torchrun"),
    # An interactive step of one task, in which the wrong mpirun was called.
    (OPEN_MPI, {"PMI_SIZE": "2", "SLURM_STEP_NUM_TASKS": "1"}, "PMI_SIZE=2"),
]
ALONE_ON_PURPOSE = [
    (MPICH, {}),
    (MPICH, {"PMI_SIZE": "1"}),
    (OPEN_MPI, {"OMPI_COMM_WORLD_SIZE": "1"}),
    (MPICH, {"SLURM_NTASKS": "64", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}),  # plain python in a batch script
    (MPICH, {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "64"}),  # srun -n 1 python
    (MPICH, {"SLURM_STEP_NUM_TASKS": "4", "PMI_SIZE": "1"}),  # mpirun -n 1, whose daemons are a step of four
    (OPEN_MPI, {"SLURM_STEP_NUM_TASKS": "4", "OMPI_COMM_WORLD_SIZE": "1", "PMI_SIZE": "4"}),
    (MPICH, {"PMI_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "4"}),  # the library's own launcher is the nearer one
    (MPICH, {"PMI_SIZE": "many"}),
    (MPICH, {"WORLD_SIZE": "4"}),  # set by a user for torch.distributed
    (MPICH, {"WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none"}),
]


@pytest.mark.parametrize(("library", "environ", "says"), REFUSED)
def test_a_rank_that_should_not_be_alone_is_refused(library, environ, says):
    with pytest.raises(LauncherError) as caught:
        launcher.require_one_job(environ, 1, library)
    message = str(caught.value)
    assert says in message
    assert library in message
    assert "COMM_WORLD has 1 rank" in message
    assert ("srun --mpi=pmix" if library is OPEN_MPI else "srun --mpi=pmi2") in message
    assert caught.value.exit_status == 4


@pytest.mark.parametrize(("library", "environ"), ALONE_ON_PURPOSE)
def test_a_rank_that_is_alone_on_purpose_is_let_through(library, environ):
    launcher.require_one_job(environ, 1, library)


@pytest.mark.parametrize("environ", [environ for _, environ, _ in REFUSED])
def test_a_world_that_came_together_is_never_refused(environ):
    launcher.require_one_job(environ, 2, MPICH)


def test_mpich_is_refused_under_open_mpi_s_mpirun_before_it_would_abort():
    with pytest.raises(LauncherError, match=r"OMPI_COMM_WORLD_SIZE=2.*MPICH 5.0.2.*would abort"):
        launcher.require_own_mpirun({"OMPI_COMM_WORLD_SIZE": "2"}, MPICH, speaks_pmix=False)


def test_open_mpi_is_refused_under_mpich_s_mpirun_before_it_would_print_about_pmix():
    with pytest.raises(LauncherError, match=r"PMI_SIZE=2.*Open MPI 5.0.11.*leave every process alone"):
        launcher.require_own_mpirun({"PMI_SIZE": "2"}, OPEN_MPI, speaks_pmix=False)


@pytest.mark.parametrize(
    ("environ", "library", "speaks_pmix"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2"}, MPICH, True),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, OPEN_MPI, False),
        ({"OMPI_COMM_WORLD_SIZE": "2", "PMI_SIZE": "2"}, MPICH, False),
        ({"PMI_SIZE": "2"}, MPICH, False),
        ({"PMI_SIZE": "1"}, OPEN_MPI, False),
        ({"PMI_SIZE": "2"}, "Open MPI 4.1.6", False),  # may have been built for PMI
        ({"PMI_SIZE": "2", "PMIX_NAMESPACE": "job"}, OPEN_MPI, False),
        ({}, MPICH, False),
    ],
)
def test_mpich_is_started_where_it_may_work(environ, library, speaks_pmix):
    launcher.require_own_mpirun(environ, library, speaks_pmix)


def test_a_process_of_its_own_keeps_the_settings_and_loses_its_place():
    settings = {"PATH": "/bin", "OMPI_MCA_btl": "self", "OMPI_ALLOW_RUN_AS_ROOT": "1", "PMIX_MCA_gds": "hash"}
    settings |= {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "MPIR_CVAR_DEBUG": "1"}
    place = {"PMI_RANK": "1", "PMI_FD": "9", "PMIX_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_STEP_NUM_TASKS": "4"}
    assert launcher.without_launcher(settings | place) == settings


RING = ("all_reduce/ring", "-o", "ring.json")
HPCCOLL, TORCHRUN = str(Path(sys.executable).parent / "hpccoll"), Path(sys.executable).parent / "torchrun"


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command outside of any job, with Open MPI's permissions to run as root and on few cores."""
    environ = launcher.without_launcher(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[3])}
    environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environ["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)


TELL = """
import sys
from hpccoll.errors import HpccollError
from hpccoll.runtime import job
try:
    print(job.get_world().size)
except HpccollError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_status)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    "HPCCOLL_OTHER_MPIRUN" not in os.environ, reason="HPCCOLL_OTHER_MPIRUN names no second MPI's mpirun"
)
def test_under_the_other_mpi_s_mpirun_the_job_is_refused_with_status_4():
    started = (
        ["bench"],
        ["demo", "broadcast"],
        ["tune"],
        ["train", "dp"],
        ["preflight"],
        ["draw", "--measured", *RING],
    )
    for command in ([sys.executable, "-W", "error", "-c", TELL], *([HPCCOLL, *words] for words in started)):
        done = run([os.environ["HPCCOLL_OTHER_MPIRUN"], "-n", "3", *command])
        assert done.returncode == 4, done.stderr
        assert "_SIZE=3" in done.stderr
        assert "Start the job with the mpirun of" in done.stderr
        assert "Traceback" not in done.stderr
        assert "suspicious" not in done.stderr
        assert "no-pmix" not in done.stderr
        assert done.stdout == ""
        told = done.stderr.count("Start the job with")
        assert told == 1 if command[0] == HPCCOLL else 1 <= told <= 3  # mpirun may end ranks before they have told


@pytest.mark.skipif(
    "HPCCOLL_OTHER_MPIRUN" not in os.environ, reason="HPCCOLL_OTHER_MPIRUN names no second MPI's mpirun"
)
def test_the_error_is_printed_although_rank_0_is_late():
    """The mpirun of Open MPI ends all ranks when the first one exits with a status other than 0."""
    late = '[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" != 0 ] || sleep 2; exec "$0" "$@"'
    done = run([os.environ["HPCCOLL_OTHER_MPIRUN"], "-n", "2", "bash", "-c", late, HPCCOLL, "bench", "--bogus"])
    assert done.stderr.count("Error: No such option") == 1, done.stderr


@pytest.mark.skipif(not TORCHRUN.exists(), reason="torch is not installed in this environment")
def test_under_torchrun_the_job_is_refused_with_status_4():
    done = run([str(TORCHRUN), "--nproc-per-node", "2", "--no-python", HPCCOLL, "bench"])
    assert "exitcode  : 4" in done.stderr  # torchrun itself exits with 1
    assert done.stderr.count("Error: the launcher started 2 processes (WORLD_SIZE=2, torchrun)") == 1
    assert "Start the job with the mpirun of" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("hidden", "says"), [("mpi4py", "mpi4py is not installed"), ("libmpi", "the MPI library cannot be loaded")]
)
def test_without_mpi_the_error_says_what_to_install(hidden, says):
    hide = {
        "mpi4py": "sys.modules['mpi4py'] = None",
        "libmpi": "import os; os.environ['MPI4PY_LIBMPI'] = '/nowhere/libmpi.so'",
    }[hidden]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import sys; {hide}\n{TELL}"],
        env=launcher.without_launcher(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert says in done.stderr
    assert "pip install " in done.stderr
    assert "mpich" in done.stderr
