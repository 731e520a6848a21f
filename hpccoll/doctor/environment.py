"""Environment variables that are known to hurt. Only those listed here are ever looked at, or shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import format_list

AREA = "environment"
_KNOWN_OURS = ("HPCCOLL_DEBUG", "HPCCOLL_SHARED_DIR")
_OURS_IN_TESTS = ("HPCCOLL_TEST_", "HPCCOLL_OTHER_MPIRUN", "HPCCOLL_WRITE_GOLDEN")
_NETWORK = (
    "UCX_TLS",
    "UCX_NET_DEVICES",
    "FI_PROVIDER",
    "FI_TCP_IFACE",
    "OMPI_MCA_pml",
    "OMPI_MCA_btl",
    "OMPI_MCA_btl_tcp_if_include",
    "I_MPI_FABRICS",
    "I_MPI_OFI_PROVIDER",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_HCA",
)


@dataclass(frozen=True, slots=True)
class HarmfulVariable:
    """A variable, the values of it that hurt, why, and what to do."""

    name: str
    hurts: Callable[[str], bool]
    severity: Severity
    why: str
    remedy: str


def _on(value: str) -> bool:
    return value.strip().lower() not in ("", "0", "no", "off", "false", "none", "disable")


def _without_shared_memory(value: str) -> bool:
    """Whether a list of Open MPI's btl leaves shared memory out: `^sm,tcp` excludes, `tcp,self` includes only those."""
    names = set(value.lstrip("^").split(","))
    if value.startswith("^"):
        return bool(names & {"sm", "vader"})
    return not names & {"sm", "vader"}


def _without_self(value: str) -> bool:
    names = set(value.lstrip("^").split(","))
    return "self" in names if value.startswith("^") else "self" not in names


def _ucx_without_shared_memory(value: str) -> bool:
    names = set(value.lstrip("^").split(","))
    shared = {"all", "sm", "shm", "posix", "sysv", "xpmem", "cma", "knem"}
    return bool(names & {"sm", "shm"}) if value.startswith("^") else not names & shared


_SLOW_LOCAL = "ranks of one host talk through the network, many times slower"
_UNSET = "unset {name}"
HARMFUL_VARIABLES = (
    HarmfulVariable(
        "OMPI_MCA_btl", _without_self, Severity.PROBLEM, "a rank cannot send to itself", "add self, or unset {name}"
    ),
    HarmfulVariable(
        "OMPI_MCA_btl", _without_shared_memory, Severity.WARNING, _SLOW_LOCAL, "add sm (before Open MPI 5: vader)"
    ),
    HarmfulVariable("UCX_TLS", _ucx_without_shared_memory, Severity.WARNING, _SLOW_LOCAL, "add sm, or unset {name}"),
    HarmfulVariable("MPIR_CVAR_NOLOCAL", _on, Severity.WARNING, _SLOW_LOCAL, _UNSET),
    HarmfulVariable("MPIR_CVAR_CH4_NOLOCAL", _on, Severity.WARNING, _SLOW_LOCAL, _UNSET),
    HarmfulVariable(
        "I_MPI_FABRICS",
        lambda value: "shm" not in value,
        Severity.WARNING,
        _SLOW_LOCAL,
        "I_MPI_FABRICS=shm:ofi, or unset it",
    ),
    HarmfulVariable(
        "I_MPI_PMI_LIBRARY",
        bool,
        Severity.NOTE,
        "meant for srun: under mpirun, every rank becomes a job of its own",
        "unset {name} before mpirun",
    ),
    HarmfulVariable("I_MPI_DEBUG", _on, Severity.NOTE, "Intel MPI prints among the output", _UNSET),
    HarmfulVariable(
        "UCX_LOG_LEVEL",
        lambda v: v.lower() not in ("warn", "error", "fatal"),
        Severity.NOTE,
        "UCX prints, and slows",
        _UNSET,
    ),
    HarmfulVariable(
        "NCCL_DEBUG", lambda v: v.upper() in ("INFO", "TRACE"), Severity.NOTE, "NCCL prints among the output", _UNSET
    ),
    HarmfulVariable("NCCL_P2P_DISABLE", _on, Severity.WARNING, "GPUs of one host talk through host memory", _UNSET),
    HarmfulVariable(
        "NCCL_SHM_DISABLE", _on, Severity.WARNING, "NCCL's ranks of one host talk through the network", _UNSET
    ),
    HarmfulVariable("NCCL_IB_DISABLE", _on, Severity.WARNING, "NCCL uses TCP between hosts", _UNSET),
    HarmfulVariable(
        "CUDA_LAUNCH_BLOCKING", _on, Severity.WARNING, "every kernel is waited for: nothing overlaps", _UNSET
    ),
    HarmfulVariable(
        "CUDA_VISIBLE_DEVICES",
        lambda value: value.strip() in ("", "-1", "NoDevFiles"),
        Severity.WARNING,
        "every GPU is hidden",
        _UNSET,
    ),
    HarmfulVariable(
        "PYTORCH_CUDA_ALLOC_CONF",
        lambda value: "cudaMallocAsync" in value or "expandable_segments:True" in value,
        Severity.WARNING,
        "memory of this allocator cannot be exported by CUDA IPC, as MPI and symmetric memory do within a host",
        "unset {name}, or at least backend:cudaMallocAsync and expandable_segments:True in it",
    ),
    HarmfulVariable(
        "HPCCOLL_DEBUG", _on, Severity.NOTE, "every collective first compares its arguments across the ranks", _UNSET
    ),
    HarmfulVariable(
        "LD_PRELOAD", bool, Severity.NOTE, "a library is loaded before all others, perhaps another MPI", _UNSET
    ),
)


def examine(environ: Mapping[str, str], ranks: int, cores: int, own_cores: int, torch: bool) -> list[Finding]:
    """Return findings on the environment.

    Args:
        environ: the variables; those that are not listed in this file are not read.
        ranks: of this job, on this host.
        cores: that they have together.
        own_cores: that this one may run on; more threads than that it does not start by itself.
        torch: whether torch is installed, whose threads multiply with the ranks.
    """
    found = []
    for rule in HARMFUL_VARIABLES:
        value = environ.get(rule.name)
        if value is not None and rule.hurts(value):
            shown = f"{rule.name}={value[:200]}"
            remedy = rule.remedy.format(name=rule.name)
            found.append(Finding(AREA, rule.severity, f"{shown}: {rule.why}", f"variable {rule.name}", remedy))
    found += _threads(environ, ranks, cores, own_cores if torch else 1)
    strange = [
        name
        for name in sorted(environ)
        if name.startswith("HPCCOLL_") and name not in _KNOWN_OURS and not name.startswith(_OURS_IN_TESTS)
    ]
    if strange:
        told = f"{format_list(strange)}: hpccoll reads no variable of that name"
        remedy = f"unset it; hpccoll reads {format_list(_KNOWN_OURS)}"
        found.append(Finding(AREA, Severity.WARNING, told, "names of variables with HPCCOLL_", remedy))
    return found or [Finding(AREA, Severity.OK, "no variable that is known to hurt", f"looked at {_looked_at()}")]


def check_network_variables(environ: Mapping[str, str]) -> list[Finding]:
    """Return which of the variables that choose a network are set."""
    told = [f"{name}={environ[name][:200]}" for name in _NETWORK if name in environ]
    found = f"set: {', '.join(told)}" if told else "no variable chooses the network: the libraries do"
    return [Finding("network", Severity.NOTE if told else Severity.OK, found, f"variables {', '.join(_NETWORK)}")]


def _threads(environ: Mapping[str, str], ranks: int, cores: int, unasked: int) -> list[Finding]:
    value = environ.get("OMP_NUM_THREADS", "")
    per_rank = max(1, cores // max(1, ranks))
    remedy = f"export OMP_NUM_THREADS={per_rank}"
    if value.isdecimal() and int(value) * ranks > max(cores, ranks):
        told = f"OMP_NUM_THREADS={value} on {ranks} ranks makes {int(value) * ranks} threads on {cores} cores"
        return [Finding(AREA, Severity.WARNING, told, "variable OMP_NUM_THREADS", remedy)]
    if value or unasked < 2 or ranks * unasked <= cores:
        return []
    told = f"OMP_NUM_THREADS is not set: each of {ranks} ranks may start {unasked} threads for torch, on {cores} cores"
    return [Finding(AREA, Severity.WARNING, told, "variable OMP_NUM_THREADS", remedy)]


def _looked_at() -> str:
    return ", ".join(dict.fromkeys([rule.name for rule in HARMFUL_VARIABLES] + ["OMP_NUM_THREADS"]))
