"""Detects a launcher of another MPI library, which starts N jobs of one rank each instead of one job of N ranks.

An MPI library does not report that its launcher belongs to another library: every process is rank 0 of 1, computes a
wrong result and exits with status 0. Launchers set an environment variable to the number of ranks. If a launcher's
variable exceeds 1 but MPI.COMM_WORLD has one rank, `require_one_job` raises LauncherError.

The number of ranks is read from the first variable that is set, in this order: the variable of the MPI library's own
mpirun, that of another library's mpirun, torchrun's WORLD_SIZE, or SLURM_STEP_NUM_TASKS, the number of processes of one
srun. SLURM_NTASKS is not used, because a batch script may run a single `python` in an allocation of 64 tasks. SLURM's
variable is read last, because in a job that mpirun starts by srun it counts mpirun's daemons, one per node. If
MPI.COMM_WORLD has several ranks, no error is raised, even if the launcher's variable has another number (heterogeneous
srun, spawned processes).
"""

from __future__ import annotations

from collections.abc import Mapping

from hpccoll.errors import LauncherError

_MPICH, _OPEN_MPI, _SLURM = "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"
_TORCHRUN, _TORCHRUN_JOB = "WORLD_SIZE", "TORCHELASTIC_RUN_ID"  # users set WORLD_SIZE, too; torchrun always sets both
_STARTERS = {
    _MPICH: "an mpirun or srun that speaks PMI (MPICH)",
    _OPEN_MPI: "Open MPI's mpirun",
    _TORCHRUN: "torchrun",
    _SLURM: "srun",
}
# The prefixes of environment variables in which launchers describe a process's rank and job.
# Settings of users, such as OMPI_MCA_btl and OMPI_ALLOW_RUN_AS_ROOT, do not begin with any of these prefixes.
_JOB_PREFIXES = (
    "PMI_", "PMIX_", "OMPI_COMM_WORLD_", "OMPI_WORLD_", "OMPI_UNIVERSE_SIZE", "OMPI_NUM_APP_CTX", "OMPI_FILE_LOCATION",
    "PRTE_LAUNCHED", "HYDI_", "MPI_LOCAL", "SLURM_STEP", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_PMI", "TORCHELASTIC_",
)  # fmt: skip


def claimed_ranks(environ: Mapping[str, str], library: str) -> tuple[str, int] | None:
    """Return the name and value of the launcher's variable with the number of ranks; None without a launcher.

    `library` is the MPI library's name and version, such as `MPICH 5.0.2`.
    """
    mpiruns = (_OPEN_MPI, _MPICH) if library.startswith("Open MPI") else (_MPICH, _OPEN_MPI)
    for name in (*mpiruns, _TORCHRUN, _SLURM):
        if name == _TORCHRUN and _TORCHRUN_JOB not in environ:
            continue
        if environ.get(name, "").isdecimal():
            return name, int(environ[name])
    return None


def require_one_job(environ: Mapping[str, str], size: int, library: str) -> None:
    """Raise LauncherError if the `size` of MPI.COMM_WORLD is 1 but the launcher started several processes.

    The error message gives both numbers of ranks, the launcher's and MPI's, and a command that starts the job.
    """
    claim = claimed_ranks(environ, library)
    if size > 1 or claim is None or claim[1] <= 1:
        return
    name, ranks = claim
    raise LauncherError(
        f"the launcher started {ranks} processes ({name}={ranks}, {_STARTERS[name]}), but MPI.COMM_WORLD has {size} "
        f"rank: each of them is alone, because {library}, which this Python loads, does not understand that launcher. "
        f"{_remedy(library)}"
    )


def require_own_mpirun(environ: Mapping[str, str], library: str, speaks_pmix: bool) -> None:
    """Raise LauncherError if another library's mpirun started this process; to be called before MPI_Init.

    Only combinations that cannot work are refused: an MPICH without PMIx under Open MPI's mpirun, whose MPI_Init would
    abort without an explanation, and an Open MPI of version 5 or later, which connects ranks only by PMIx, under the
    mpirun of MPICH. `speaks_pmix` is whether the library can connect ranks by PMIx.
    """
    is_under_open_mpi, has_pmi = _OPEN_MPI in environ, _MPICH in environ
    if library.startswith("MPICH") and is_under_open_mpi and not has_pmi and not speaks_pmix:
        name, consequence = _OPEN_MPI, "and would abort"
    elif _needs_pmix(library) and has_pmi and not is_under_open_mpi and "PMIX_NAMESPACE" not in environ:
        name, consequence = _MPICH, "and would leave every process alone"
        if not environ[_MPICH].isdecimal() or int(environ[_MPICH]) <= 1:
            return
    else:
        return
    raise LauncherError(
        f"{_STARTERS[name]} started {environ[name]} processes ({name}={environ[name]}), but this Python loads "
        f"{library}, which does not understand that launcher {consequence}. {_remedy(library)}"
    )


def _needs_pmix(library: str) -> bool:
    """Whether an MPI library, such as `Open MPI 5.0.11`, connects its ranks by PMIx only."""
    version = library.removeprefix("Open MPI ").partition(".")[0]
    return library.startswith("Open MPI ") and version.isdecimal() and int(version) >= 5


def _remedy(library: str) -> str:
    """Return the last sentence of an error message: how to start a job with this MPI library."""
    srun = "srun --mpi=pmix" if library.startswith("Open MPI") else "srun --mpi=pmi2"
    mpirun = f"the mpirun of {library} (for a wheel: the one beside this Python)"
    return f"Start the job with {mpirun}, or inside SLURM with {srun}"


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of `environ` without the launcher's variables, for a subprocess that is a separate MPI job."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_JOB_PREFIXES) or name.startswith("PMIX_MCA_")
    }
