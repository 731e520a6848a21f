"""Check environment variables against a list of known harmful values. Values of unlisted variables are not read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.units import format_list

AREA = "environment"
KNOWN_VARIABLES = (
    *("HPCCOLL_DEBUG", "HPCCOLL_LOG", "HPCCOLL_RANKS_PER_NODE", "HPCCOLL_SHARED_DIR", "HPCCOLL_STATUS_FILE"),
    *("HPCCOLL_FAULT", "HPCCOLL_TIMEOUT", "HPCCOLL_PREFLIGHT_SECRET"),
    *("HPCCOLL_MPI4PY", "HPCCOLL_MPI4PY_AFTER", "HPCCOLL_MPI4PY_ALGORITHMS", "HPCCOLL_SUMMARY"),
    *("HPCCOLL_RECORDER", "HPCCOLL_TUNING", "HPCCOLL_LINKS", "HPCCOLL_LAUNCHER", "HPCCOLL_MODULES"),
    *("HPCCOLL_NODE_WAIT_S", "HPCCOLL_MOST_REQUEUES", "HPCCOLL_REQUEUE_S", "HPCCOLL_RESULTS", "HPCCOLL_RESUME"),
    *("HPCCOLL_SLURM", "HPCCOLL_SRUN_MPI", "HPCCOLL_START_FILE", "HPCCOLL_START_TIMEOUT", "HPCCOLL_VENV"),
)
_TEST_VARIABLES = ("HPCCOLL_TEST_", "HPCCOLL_OTHER_MPIRUN", "HPCCOLL_WRITE_GOLDEN")
_NETWORK_VARIABLES = (
    *("UCX_TLS", "UCX_NET_DEVICES", "FI_PROVIDER", "FI_TCP_IFACE"),
    *("OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_btl_tcp_if_include", "I_MPI_FABRICS", "I_MPI_OFI_PROVIDER"),
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA"),
)


def _is_on(value: str) -> bool:
    """Whether an environment variable's value means true: not empty, `0`, `no`, `off`, `false`, `none` or `disable`."""
    return value.strip().lower() not in ("", "0", "no", "off", "false", "none", "disable")


@dataclass(frozen=True, slots=True)
class HarmfulSetting:
    """An environment variable, its harmful values, and the problem that they cause, with its severity and remedy."""

    name: str
    severity: Severity
    effect: str  # the problem, in words
    is_harmful: Callable[[str], bool] = _is_on  # whether a value of the variable causes the problem
    remedy: str = "unset {name}"  # the fix; `{name}` stands for the variable


def _excludes(value: str, names: set[str]) -> bool:
    """Whether `value`, a list of Open MPI components or UCX transports, excludes `names`.

    A list such as `tcp,self` excludes `names` if the list contains none of these names. A list such as `^sm,tcp`
    excludes `names` if the list contains at least one of these names.
    """
    listed = set(value.lstrip("^").split(","))
    return bool(listed & names) if value.startswith("^") else not listed & names


def _ucx_excludes_shared_memory(value: str) -> bool:
    """Whether UCX has no shared-memory transport with this value of the variable UCX_TLS."""
    shared = {"sm", "shm"}
    if not value.startswith("^"):
        shared |= {"all", "posix", "sysv", "xpmem", "cma", "knem"}
    return _excludes(value, shared)


def _makes_ucx_print(value: str) -> bool:
    """Whether UCX prints more than warnings and errors with this value of UCX_LOG_LEVEL."""
    return value.lower() not in ("warn", "error", "fatal")


def _prevents_cuda_ipc(value: str) -> bool:
    """Whether a value of PYTORCH_CUDA_ALLOC_CONF selects an allocator whose memory CUDA IPC cannot export."""
    return "cudaMallocAsync" in value or "expandable_segments:True" in value


_SLOW_LOCAL = "ranks of one host communicate through the network, many times slower"
_NO_CUDA_IPC = "CUDA IPC, which MPI and symmetric buffers use within a host, cannot export this allocator's memory"
_OTHER_ALLOCATOR = "unset {name}, or remove backend:cudaMallocAsync and expandable_segments:True from it"
_JOBS_OF_ONE_RANK = "meant for srun: under mpirun, every rank becomes a job of its own"
_PROBLEM, _WARNING, _NOTE = Severity.PROBLEM, Severity.WARNING, Severity.NOTE
_NO_SELF, _NO_GPU = "a rank cannot send to itself", "every GPU is hidden"
_ADD_SM, _SHM_OFI = "add sm (before Open MPI 5: vader)", "set it to shm:ofi, or unset {name}"
HARMFUL_SETTINGS = (
    HarmfulSetting("OMPI_MCA_btl", _PROBLEM, _NO_SELF, lambda v: _excludes(v, {"self"}), "add self, or unset {name}"),
    HarmfulSetting("OMPI_MCA_btl", _WARNING, _SLOW_LOCAL, lambda v: _excludes(v, {"sm", "vader"}), _ADD_SM),
    HarmfulSetting("UCX_TLS", _WARNING, _SLOW_LOCAL, _ucx_excludes_shared_memory, "add sm, or unset {name}"),
    HarmfulSetting("MPIR_CVAR_NOLOCAL", _WARNING, _SLOW_LOCAL),
    HarmfulSetting("MPIR_CVAR_CH4_NOLOCAL", _WARNING, _SLOW_LOCAL),
    HarmfulSetting("I_MPI_FABRICS", _WARNING, _SLOW_LOCAL, lambda v: "shm" not in v, _SHM_OFI),
    HarmfulSetting("I_MPI_PMI_LIBRARY", _NOTE, _JOBS_OF_ONE_RANK, bool, "unset {name} before mpirun"),
    HarmfulSetting("I_MPI_DEBUG", _NOTE, "Intel MPI prints into the output"),
    HarmfulSetting("UCX_LOG_LEVEL", _NOTE, "UCX prints into the output and is slower", _makes_ucx_print),
    HarmfulSetting("NCCL_DEBUG", _NOTE, "NCCL prints into the output", lambda v: v.upper() in ("INFO", "TRACE")),
    HarmfulSetting("NCCL_P2P_DISABLE", _WARNING, "GPUs of one host communicate through host memory"),
    HarmfulSetting("NCCL_SHM_DISABLE", _WARNING, "NCCL ranks of one host communicate through the network"),
    HarmfulSetting("NCCL_IB_DISABLE", _WARNING, "NCCL uses TCP between hosts"),
    HarmfulSetting("CUDA_LAUNCH_BLOCKING", _WARNING, "every kernel launch blocks, so that nothing overlaps"),
    HarmfulSetting("CUDA_VISIBLE_DEVICES", _WARNING, _NO_GPU, lambda v: v.strip() in ("", "-1", "NoDevFiles")),
    HarmfulSetting("PYTORCH_CUDA_ALLOC_CONF", _WARNING, _NO_CUDA_IPC, _prevents_cuda_ipc, _OTHER_ALLOCATOR),
    HarmfulSetting("HPCCOLL_DEBUG", _NOTE, "every collective first compares its arguments across the ranks"),
    HarmfulSetting("LD_PRELOAD", _NOTE, "a library is loaded before all others, perhaps another MPI", bool),
)


def check_environment(environ: Mapping[str, str], ranks: int, cores: int, default_threads: int) -> list[Finding]:
    """Return findings on harmful settings, thread counts and misspelt HPCCOLL_ variables, or one OK finding.

    Args:
        ranks: number of ranks of this job on this host.
        cores: number of cores that the ranks of this job on this host may use.
        default_threads: number of threads that torch starts per rank if OMP_NUM_THREADS is unset; 1 without torch.
    """
    findings = []
    for setting in HARMFUL_SETTINGS:
        value = environ.get(setting.name)
        if value is not None and setting.is_harmful(value):
            found = f"{setting.name}={value[:200]}: {setting.effect}"
            remedy = setting.remedy.format(name=setting.name)
            findings.append(Finding(AREA, setting.severity, found, f"variable {setting.name}", remedy))
    findings += _check_threads(environ.get("OMP_NUM_THREADS", ""), ranks, cores, default_threads)
    unknown = [
        name
        for name in sorted(environ)
        if name.startswith("HPCCOLL_") and name not in KNOWN_VARIABLES and not name.startswith(_TEST_VARIABLES)
    ]
    if unknown:
        found = f"{format_list(unknown)}: hpccoll reads no variable of that name"
        remedy = f"unset it; hpccoll reads {format_list(KNOWN_VARIABLES)}"
        findings.append(Finding(AREA, _WARNING, found, "names of variables with HPCCOLL_", remedy))
    checked = ", ".join(dict.fromkeys([setting.name for setting in HARMFUL_SETTINGS] + ["OMP_NUM_THREADS"]))
    return findings or [Finding(AREA, Severity.OK, "no harmful setting of a variable", f"checked {checked}")]


def report_network_variables(environ: Mapping[str, str]) -> Finding:
    """Return a finding that lists the environment variables by which the user has selected a network."""
    settings = [f"{name}={environ[name][:200]}" for name in _NETWORK_VARIABLES if name in environ]
    found = f"set: {', '.join(settings)}" if settings else "no variable selects the network: the libraries do"
    evidence = f"variables {', '.join(_NETWORK_VARIABLES)}"
    return Finding("network", _NOTE if settings else Severity.OK, found, evidence)


def _check_threads(omp_num_threads: str, ranks: int, cores: int, default_threads: int) -> list[Finding]:
    """Return a list with a warning if the ranks of a host start more threads than it has cores; else an empty list.

    Args:
        omp_num_threads: the value of OMP_NUM_THREADS; empty if it is not set.
        ranks: number of ranks on the host.
        cores: number of cores that the ranks may use.
        default_threads: number of threads that torch starts per rank if OMP_NUM_THREADS is not set; 1 without torch.
    """
    remedy = f"export OMP_NUM_THREADS={max(1, cores // max(1, ranks))}"
    if omp_num_threads.isdecimal() and int(omp_num_threads) * ranks > max(cores, ranks):
        threads = int(omp_num_threads) * ranks
        found = f"OMP_NUM_THREADS={omp_num_threads} on {ranks} ranks makes {threads} threads on {cores} cores"
    elif not omp_num_threads and default_threads > 1 and ranks * default_threads > cores:
        found = (
            f"OMP_NUM_THREADS is not set: torch may start {default_threads} threads in each of {ranks} ranks, on "
            f"{cores} cores"
        )
    else:
        return []
    return [Finding(AREA, _WARNING, found, "variable OMP_NUM_THREADS", remedy)]
