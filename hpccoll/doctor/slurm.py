"""Check SLURM: whether this is a SLURM job, how its tasks become MPI ranks, and how GPUs are bound to tasks."""

from __future__ import annotations

from collections.abc import Mapping

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.processes.command import CommandResult, run_command

AREA = "slurm"
VARIABLES = (
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"),
    *("SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_CPU_BIND"),
    *("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_MPI_TYPE"),
)


def check_slurm(environ: Mapping[str, str], ranks: int, library: str, limit_s: float) -> list[Finding]:
    """Return findings on SLURM: whether this is a SLURM job, its tasks and GPUs, and whether srun can start MPI ranks.

    Args:
        environ: environment variables, of which only VARIABLES are read.
        ranks: number of ranks in MPI.COMM_WORLD.
        library: the MPI library's name and version; empty if MPI does not start.
        limit_s: seconds that each call of srun may run; no job step is started.
    """
    srun = run_command(["srun", "--version"], limit_s)
    variables = {name: environ[name] for name in VARIABLES if name in environ}
    settings = " ".join(f"{name}={value}" for name, value in variables.items()) or "SLURM_JOB_ID is not set"
    evidence = f"{srun.evidence}; {settings}"
    job_id = variables.get("SLURM_JOB_ID")
    if job_id is None and not srun.succeeded:
        if not srun.exists:
            return [Finding(AREA, Severity.NOTE, "no SLURM on this host", evidence)]
        remedy = "if this host belongs to a cluster: SLURM_CONF=/path/to/slurm.conf, or ask the site"
        return [Finding(AREA, Severity.NOTE, "srun is installed, but does not work", evidence, remedy)]
    version = srun.stdout.strip() if srun.succeeded else "srun does not answer"
    found = f"{version}, inside job {job_id}" if job_id is not None else f"{version}, outside a job"
    findings = [Finding(AREA, Severity.OK, found, evidence, provides=("slurm",))]
    findings += [*check_tasks(variables, ranks), *check_gpu_binding(variables)]
    if srun.succeeded:
        plugins = check_mpi_plugins(run_command(["srun", "--mpi=list"], limit_s), variables, library)
        findings += [plugins, *check_pmi2_messages(plugins, library)]
    return findings


def check_tasks(variables: Mapping[str, str], ranks: int) -> list[Finding]:
    """Return findings if the numbers of SLURM tasks and MPI ranks differ, and if srun ignores --cpus-per-task.

    `variables` are SLURM's environment variables, and `ranks` is the number of MPI ranks.
    """
    findings = []
    step, job = (variables.get(name, "") for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
    if step.isdecimal() and int(step) != ranks and int(step) > 1:
        found = f"this step has {step} tasks, but MPI has {ranks} ranks"
        remedy = "start ranks by one launcher: srun --mpi=pmix (Open MPI), srun --mpi=pmi2 (MPICH), or mpirun alone"
        findings.append(Finding(AREA, Severity.WARNING, found, f"SLURM_STEP_NUM_TASKS={step}", remedy))
    elif not step and job.isdecimal() and int(job) != ranks:
        found = f"the allocation has {job} tasks, and this job {ranks} ranks"
        remedy = f"for all of them: srun hpccoll doctor, or mpirun -n {job} hpccoll doctor"
        findings.append(Finding(AREA, Severity.NOTE, found, f"SLURM_NTASKS={job}", remedy))
    if "SLURM_CPUS_PER_TASK" in variables and "SLURM_STEP_ID" not in variables:
        found = "srun does not inherit --cpus-per-task from sbatch (since SLURM 22.05)"
        remedy = "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
        evidence = f"SLURM_CPUS_PER_TASK={variables['SLURM_CPUS_PER_TASK']}"
        findings.append(Finding(AREA, Severity.NOTE, found, evidence, remedy))
    return findings


def check_gpu_binding(variables: Mapping[str, str]) -> list[Finding]:
    """Return a list with a warning if the job asks for GPUs per task, so that ranks cannot use CUDA IPC; else empty.

    SLURM then shows each task only its own GPUs. `variables` are SLURM's environment variables.
    """
    per_task, tres = (variables.get(name, "") for name in ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK"))
    if not per_task and "gpu" not in tres:
        return []
    found = "GPUs are bound to tasks (--gpus-per-task): a rank sees only its own, and CUDA IPC between ranks fails"
    evidence = f"SLURM_GPUS_PER_TASK={per_task}" if per_task else f"SLURM_TRES_PER_TASK={tres}"
    remedy = "use --gpus-per-node=N (or --gres=gpu:N) and srun --gpu-bind=none"
    remedy += "; each rank selects its GPU by its local rank"
    return [Finding(AREA, Severity.WARNING, found, evidence, remedy)]


def check_mpi_plugins(result: CommandResult, variables: Mapping[str, str], library: str) -> Finding:
    """Return a finding on whether srun can start ranks of the MPI library.

    Args:
        result: the result of `srun --mpi=list`.
        variables: SLURM's environment variables.
        library: the MPI library's name and version; empty if MPI does not start.
    """
    names = {word for line in (result.stdout + result.stderr).splitlines() for word in line.split()[:1]}
    plugins = sorted(name for name in names if name.startswith(("pmi", "cray", "none", "openmpi")))
    suitable = ("pmix",) if library.startswith("Open MPI") else ("pmi2", "pmix", "cray_shasta")
    evidence = f"`srun --mpi=list`: {', '.join(plugins) or result.outcome}"
    if "SLURM_MPI_TYPE" in variables:
        evidence += f"; SLURM_MPI_TYPE={variables['SLURM_MPI_TYPE']}"
    if not library:
        return Finding(AREA, Severity.NOTE, f"srun offers {', '.join(plugins)}", evidence)
    usable = [name for name in plugins if name.startswith(suitable)]
    if not usable:
        found = f"srun has no plugin for {library}: each task would be a job of one rank"
        remedy = f"ask the site for {' or '.join(suitable)}, or use the mpirun of {library} inside salloc or sbatch"
        return Finding(AREA, Severity.WARNING, found, evidence, remedy)
    return Finding(AREA, Severity.OK, f"srun --mpi={usable[0]} starts ranks of {library}", evidence)


def check_pmi2_messages(plugins: Finding, library: str) -> list[Finding]:
    """Return a list with a warning if MPICH runs and srun offers the plugin mpi/pmi2, which may cut messages off.

    Returns an empty list for other MPI libraries and without mpi/pmi2. `library` is the MPI library's name and version,
    and `plugins` the finding of `check_mpi_plugins`. hpccoll/processes/pmi_relay.py describes why mpi/pmi2 cuts off
    messages.
    """
    if not (library.startswith("MPICH") and "pmi2" in plugins.evidence):
        return []
    found = (
        f"SLURM's plugin mpi/pmi2 reads 1,024 bytes of a message, and {library} may send more: under srun, a program "
        "that starts MPI without hpccoll may hang at start (`value not properly terminated in client request`)"
    )
    remedy = (
        f"start such a program by the mpirun of {library} inside salloc or sbatch, or call hpccoll.Communicator() "
        "before the program imports mpi4py.MPI; the job scripts of slurm/ end a start that hangs after "
        "HPCCOLL_START_TIMEOUT seconds, and srun --time limits other steps"
    )
    return [Finding(AREA, Severity.WARNING, found, plugins.evidence, remedy)]
