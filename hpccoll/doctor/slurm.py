"""SLURM: whether this is a job of it, how its tasks become MPI ranks, and whether they see each other's GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.runtime.command import CommandResult, run_command

AREA = "slurm"
SHOWN = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_TASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_ON_NODE",
    "SLURM_CPU_BIND",
    "SLURM_GPUS_ON_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURM_MPI_TYPE",
)


def examine(environ: Mapping[str, str], ranks: int, library: str, limit_s: float) -> list[Finding]:
    """Return findings on SLURM.

    Args:
        environ: of this process; only the variables of SHOWN are read.
        ranks: in MPI.COMM_WORLD.
        library: the MPI library's name and version.
        limit_s: seconds for each call of srun.
    """
    version = run_command(["srun", "--version"], limit_s)
    mine = {name: environ[name] for name in SHOWN if name in environ}
    inside = "SLURM_JOB_ID" in mine
    shown = " ".join(f"{name}={value}" for name, value in mine.items()) or "SLURM_JOB_ID is not set"
    evidence = f"{version.evidence}; {shown}"
    if not inside and not version.worked:
        told = "srun is here, but does not work" if version.here else "no SLURM here"
        remedy = (
            "if this host belongs to a cluster: SLURM_CONF=/path/to/slurm.conf, or ask the site" if version.here else ""
        )
        return [Finding(AREA, Severity.NOTE, told, evidence, remedy)]
    told = version.output.strip() if version.worked else "srun does not answer"
    where = f"{told}, inside job {mine['SLURM_JOB_ID']}" if inside else f"{told}, outside a job"
    found = [Finding(AREA, Severity.OK, where, evidence, provides=("slurm",))]
    found += tasks(mine, ranks) + devices(mine)
    if version.worked:
        found += plugins(run_command(["srun", "--mpi=list"], limit_s), mine, library)
    return found


def tasks(variables: Mapping[str, str], ranks: int) -> list[Finding]:
    """Compare SLURM's tasks with MPI's ranks, and say where srun forgets how many cores a task has."""
    found = []
    step, job = (variables.get(name, "") for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
    if step.isdecimal() and int(step) != ranks and int(step) > 1:
        told = f"this step has {step} tasks, but MPI has {ranks} ranks"
        remedy = "start ranks by one launcher: srun --mpi=pmix (Open MPI), srun --mpi=pmi2 (MPICH), or mpirun alone"
        found.append(Finding(AREA, Severity.WARNING, told, f"SLURM_STEP_NUM_TASKS={step}", remedy))
    elif not step and job.isdecimal() and int(job) != ranks:
        told = f"the allocation has {job} tasks, and this job {ranks} ranks"
        remedy = f"for all of them: srun hpccoll doctor, or mpirun -n {job} hpccoll doctor"
        found.append(Finding(AREA, Severity.NOTE, told, f"SLURM_NTASKS={job}", remedy))
    if "SLURM_CPUS_PER_TASK" in variables and "SLURM_STEP_ID" not in variables:
        told = "srun does not take --cpus-per-task over from sbatch (since SLURM 22.05)"
        remedy = "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
        evidence = f"SLURM_CPUS_PER_TASK={variables['SLURM_CPUS_PER_TASK']}"
        found.append(Finding(AREA, Severity.NOTE, told, evidence, remedy))
    return found


def devices(variables: Mapping[str, str]) -> list[Finding]:
    """Judge how GPUs are given to tasks: a task that sees only its own cannot open another's memory by CUDA IPC."""
    per_task = variables.get("SLURM_GPUS_PER_TASK", "")
    tres = variables.get("SLURM_TRES_PER_TASK", "")
    if not per_task and "gpu" not in tres:
        return []
    told = "GPUs are bound to tasks (--gpus-per-task): a rank sees only its own, and CUDA IPC between ranks fails"
    evidence = f"SLURM_GPUS_PER_TASK={per_task}" if per_task else f"SLURM_TRES_PER_TASK={tres}"
    remedy = (
        "ask with --gpus-per-node=N (or --gres=gpu:N) and srun --gpu-bind=none; each rank chooses by its local rank"
    )
    return [Finding(AREA, Severity.WARNING, told, evidence, remedy)]


def plugins(answer: CommandResult, variables: Mapping[str, str], library: str) -> list[Finding]:
    """Judge whether srun can start ranks of this MPI: what `srun --mpi=list` names, against what the library speaks."""
    names = {word.strip() for line in (answer.output + answer.errors).splitlines() for word in line.split()[:1]}
    offered = sorted(name for name in names if name.startswith(("pmi", "cray", "none", "openmpi")))
    wanted = ("pmix",) if library.startswith("Open MPI") else ("pmi2", "pmix", "cray_shasta")
    chosen = variables.get("SLURM_MPI_TYPE")
    evidence = f"`srun --mpi=list`: {', '.join(offered) or answer.how}" + (
        f"; SLURM_MPI_TYPE={chosen}" if chosen else ""
    )
    usable = [name for name in offered if name.startswith(wanted)]
    if not library:
        return [Finding(AREA, Severity.NOTE, f"srun offers {', '.join(offered)}", evidence)]
    if not usable:
        told = f"srun has no plugin that {library} understands: each task would be a job of one rank"
        remedy = (
            f"ask the site for {' or '.join(wanted)}, or start with the mpirun of {library} inside salloc or sbatch"
        )
        return [Finding(AREA, Severity.WARNING, told, evidence, remedy)]
    return [Finding(AREA, Severity.OK, f"srun --mpi={usable[0]} starts ranks of {library}", evidence)]
