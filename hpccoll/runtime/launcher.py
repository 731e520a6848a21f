"""The silent singletons: a launcher that does not belong to the MPI library starts N jobs of one rank each.

Nothing fails then: every process is rank 0 of 1, computes nonsense and exits with 0. What the launcher says about the
job's size is in the environment, and a process that is alone although its launcher started several is refused.

Whom to believe: the variable of the library's own mpirun first, then that of the other mpirun, then
SLURM_STEP_NUM_TASKS, which counts what *this* srun started. Not SLURM_NTASKS: it is the allocation's size, and a batch
script may well run one plain `python`, or `mpirun -n 2`, inside an allocation of 64. Nor SLURM's word where an mpirun
has spoken: mpirun starts its daemons by srun, one a node. A world larger than one is never refused: there the launcher
and the library did meet, and the numbers may differ for good reasons (heterogeneous srun, spawned processes).
"""

from __future__ import annotations

from collections.abc import Mapping

from hpccoll.errors import LauncherError

_MPICH, _OPEN_MPI, _SLURM = "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"
_WHO = {_MPICH: "an mpirun or srun that speaks PMI (MPICH)", _OPEN_MPI: "Open MPI's mpirun", _SLURM: "srun"}
# What launchers tell one process about its place in the job. A user's settings (OMPI_MCA_..., OMPI_ALLOW_...) are none.
_PLACE = (
    "PMI_",
    "PMIX_",
    "OMPI_COMM_WORLD_",
    "OMPI_WORLD_",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_NUM_APP_CTX",
    "OMPI_FILE_LOCATION",
    "PRTE_LAUNCHED",
    "HYDI_",
    "MPI_LOCAL",
    "SLURM_STEP",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_PMI",
)


def claimed_ranks(environ: Mapping[str, str], library: str) -> tuple[str, int] | None:
    """Return which variable says how many ranks this job has, and how many; None where no launcher says so.

    Args:
        environ: the process's environment.
        library: the MPI library's name and version, such as `MPICH 5.0.2`.
    """
    mpiruns = (_OPEN_MPI, _MPICH) if library.startswith("Open MPI") else (_MPICH, _OPEN_MPI)
    for name in (*mpiruns, _SLURM):
        if environ.get(name, "").isdecimal():
            return name, int(environ[name])
    return None


def require_one_job(environ: Mapping[str, str], size: int, library: str) -> None:
    """Refuse a process that is alone in its world although its launcher started several.

    Args:
        environ: the process's environment.
        size: ranks in MPI.COMM_WORLD.
        library: the MPI library's name and version, such as `MPICH 5.0.2`.

    Raises:
        LauncherError: names what the launcher says, what MPI says, and how to start the job instead.
    """
    claim = claimed_ranks(environ, library)
    if size > 1 or claim is None or claim[1] <= 1:
        return
    name, ranks = claim
    raise LauncherError(
        f"the launcher started {ranks} processes ({name}={ranks}, {_WHO[name]}), but MPI.COMM_WORLD has {size} rank: "
        f"each of them is alone, because {library}, which this Python loads, does not understand that launcher. "
        f"{_remedy(library)}"
    )


def require_own_mpirun(environ: Mapping[str, str], library: str, speaks_pmix: bool) -> None:
    """Refuse, before MPI_Init, an MPICH without PMIx under Open MPI's mpirun: MPI_Init would abort without a reason.

    Args:
        environ: the process's environment.
        library: the MPI library's name and version.
        speaks_pmix: whether the library was built with PMIx.

    Raises:
        LauncherError: names both and how to start the job instead.
    """
    if _OPEN_MPI not in environ or _MPICH in environ or not library.startswith("MPICH") or speaks_pmix:
        return
    raise LauncherError(
        f"{_WHO[_OPEN_MPI]} started {environ[_OPEN_MPI]} processes ({_OPEN_MPI}={environ[_OPEN_MPI]}), but this Python "
        f"loads {library}, which does not understand that launcher and would abort. {_remedy(library)}"
    )


def _remedy(library: str) -> str:
    by_srun = "srun --mpi=pmix" if library.startswith("Open MPI") else "srun --mpi=pmi2"
    own = f"the mpirun of {library} (for a wheel: the one beside this Python)"
    return f"Start the job with {own}, or inside SLURM with {by_srun}"


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process that is to be an MPI job of its own, started from a rank of this one."""
    return {
        name: value for name, value in environ.items() if not name.startswith(_PLACE) or name.startswith("PMIX_MCA_")
    }
