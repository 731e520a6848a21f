"""Findings from probes that crash or hang, from stale shared memory, and from the output of tools."""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from multiprocessing import shared_memory as python_shared_memory
from pathlib import Path
from typing import Any

import pytest

from hpccoll.doctor import (
    gpu,
    limits,
    mpi_library,
    probe_cma,
    probe_cuda_ipc,
    shared_memory,
    torch_backends,
)
from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.requirements import require_capabilities
from hpccoll.errors import UnavailableError
from hpccoll.processes.command import CommandResult, run_python
from hpccoll.processes.start_limit import kill_after

SHM = Path("/dev/shm")
CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


@pytest.fixture
def left():
    """A file as MPICH leaves it when it is killed; no process has it open."""
    path = SHM / f"mpich_shm_doctor's test {os.getpid()}"
    path.write_bytes(bytes(5 << 20))
    yield path
    path.unlink(missing_ok=True)


def test_crashed_probes_become_findings():
    crashed = run_python(["-c", CRASH], 30)
    (problem, *_) = mpi_library.check_mpi_library(crashed, 10)
    assert (problem.severity, problem.found) == (Severity.PROBLEM, "MPI does not start")
    assert "SIGSEGV" in problem.evidence
    assert torch_backends.check_torch(crashed)[0].severity is Severity.WARNING
    assert gpu.check_cuda_ipc(crashed).severity is Severity.PROBLEM
    hung = run_python(["-c", "import time; time.sleep(600)"], 0.5)
    (slow,) = torch_backends.check_torch(hung)
    assert "--limit" in slow.remedy
    aware = gpu.judge_operations(
        [("send_recv", crashed), ("broadcast", CommandResult("x", True, True, "worked", "worked on 2 ranks\n"))]
    )
    assert [each.severity for each in aware] == [Severity.WARNING, Severity.OK]
    assert not any("cuda_aware" in each.provides for each in aware)


def test_stale_file_is_reported(left):
    (found,) = [each for each in shared_memory.check_stale_files(SHM) if str(left) in each.evidence]
    assert found.severity is Severity.WARNING
    assert "MPICH" in found.found
    assert "5 MiB" in found.evidence
    assert left.exists()  # never removed by us
    left.unlink()
    assert not any(str(left) in each.evidence for each in shared_memory.check_stale_files(SHM))


def test_few_stale_files_are_named_in_the_command_that_removes_them(tmp_path):
    left = tmp_path / "mpich_shm_1 2"
    left.write_bytes(b"x")
    (found,) = shared_memory.check_stale_files(tmp_path)
    assert found.remedy is not None
    assert shlex.split(found.remedy.partition("  (")[0]) == ["rm", "--", str(left)]


def test_many_stale_files_are_removed_by_an_option_and_not_by_a_line_of_27_paths(tmp_path):
    for number in range(27):
        (tmp_path / f"mpich_shm_{number}").write_bytes(b"x" * 1024)
    (found,) = shared_memory.check_stale_files(tmp_path)
    assert found.remedy is not None
    assert found.remedy.startswith("hpccoll doctor --remove-stale")
    assert "mpich" not in found.remedy
    assert "removed 27 files (27 KiB)" in shared_memory.remove_stale_files(tmp_path).found
    assert not list(tmp_path.iterdir())


def test_in_a_container_no_file_is_removed_because_processes_outside_of_it_may_use_it(tmp_path):
    namespace = tmp_path / "proc/self/ns/pid"
    namespace.parent.mkdir(parents=True)
    namespace.symlink_to("pid:[4026539999]")
    (tmp_path / "shm").mkdir()
    left = tmp_path / "shm/mpich_shm_1"
    left.write_bytes(b"x")
    assert "removed no files" in shared_memory.remove_stale_files(tmp_path / "shm", tmp_path).found
    assert left.exists()
    (found,) = shared_memory.check_stale_files(tmp_path / "shm", tmp_path)
    assert found.remedy is not None
    assert "rm " not in found.remedy


def test_files_in_use_are_not_removed(tmp_path):
    used = tmp_path / "mpich_shm_used"
    with used.open("w"):
        assert "removed 0 files" in shared_memory.remove_stale_files(tmp_path).found
    assert used.exists()


@pytest.mark.parametrize("hold", ["opened", "mapped"])
def test_file_in_use_is_not_stale(left, hold):
    # Another process has it; the mapped one keeps no descriptor.
    script = "import mmap, os, sys; f = os.open(sys.argv[1], os.O_RDWR)\n"
    script += "m = mmap.mmap(f, 4096) if sys.argv[2] == 'mapped' else None\n"
    script += "import ctypes; print('ready', flush=True); sys.stdin.read()"
    if hold == "mapped":
        script = textwrap.dedent("""
            import ctypes, os, sys
            f = os.open(sys.argv[1], os.O_RDWR)
            libc = ctypes.CDLL(None)
            libc.mmap.restype = ctypes.c_void_p
            libc.mmap(None, ctypes.c_size_t(4096), 3, 1, f, ctypes.c_long(0))
            os.close(f)
            print("ready", flush=True)
            sys.stdin.read()
        """)
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(left), hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        (mine,) = [each for each in shared_memory.list_library_files(SHM) if each.path == left]
        assert mine.in_use
        assert not any(str(left) in each.evidence for each in shared_memory.check_stale_files(SHM))
    finally:
        holder.communicate()
    (mine,) = [each for each in shared_memory.list_library_files(SHM) if each.path == left]
    assert not mine.in_use


def test_files_with_other_names_are_not_listed():
    other = python_shared_memory.SharedMemory(create=True, size=4096)
    try:
        assert other.name not in {each.path.name for each in shared_memory.list_library_files(SHM)}
    finally:
        other.close()
        other.unlink()


def test_unattached_sysv_segments_are_reported(tmp_path):
    table = tmp_path / "proc/sysvipc/shm"
    table.parent.mkdir(parents=True)
    head = "key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime rss swap"
    rows = [
        f"0 {number} 1600 {1 << 20} 71 71 {held} {os.getuid()} 0 0 0 0 0 0 0 0" for number, held in ((5, 0), (6, 2))
    ]
    table.write_text("\n".join([head, *rows]))
    (found,) = shared_memory.check_sysv_segments(tmp_path)
    assert found.remedy.endswith("ipcrm -m 5")
    table.write_text("\n".join([head, rows[1]]))
    assert shared_memory.check_sysv_segments(tmp_path) == []


def test_cross_memory_attach_outcomes():
    finding = limits.check_cross_memory_attach(30)
    assert finding.provides in (("cma",), ())
    assert finding.evidence.startswith("process_vm_readv, a parent reads its child: ")
    text = ctypes.create_string_buffer(b"text")
    address = ctypes.addressof(text)
    assert probe_cma.read_process(os.getpid(), address, b"text") == "worked"
    assert probe_cma.read_process(os.getpid(), address, b"else") == "read something else"
    no_process = 2**22 + 1  # above the highest process id that Linux gives
    assert probe_cma.read_process(no_process, address, b"text").startswith("refused (ESRCH")


def test_cross_memory_probe_does_not_load_mpi():
    script = "import sys, hpccoll.doctor.probe_cma; print('mpi4py.MPI' in sys.modules)"
    assert run_python(["-c", script], 30).stdout == "False\n"


def test_process_is_killed_after_the_time_limit():
    script = "from hpccoll.processes.start_limit import kill_after\nimport time\n"
    script += "with kill_after(1.0, 'MPI did not come'): time.sleep(600)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert done.stderr == "MPI did not come\n"
    with kill_after(60.0, "not needed"):
        pass


def test_missing_device_is_a_problem_only_if_the_kernel_has_one():
    info: dict[str, Any] = {"nodes": [], "visible": None, "devices": [], "error": "libcuda.so.1 cannot be loaded"}
    assert gpu.report_no_device(info).severity is Severity.NOTE
    hidden = gpu.report_no_device(info | {"nodes": ["/dev/nvidia0"], "visible": ""})
    assert hidden.severity is Severity.PROBLEM
    assert "--gpus all" in hidden.remedy


class SharedGpu:
    """Device memory and events of two processes, for `CudaDriver`; `fails` names the call that fails."""

    fails = ""

    def __init__(self):
        self.log: list[str] = []

    def __getattr__(self, name):
        def call(*_):
            self.log.append(name)
            if name == self.fails:
                raise RuntimeError(f"{name} returned 801")
            return b"handle"

        return call

    def write(self, _, data):
        self.data = data

    def read(self, *_):
        return self.data


@pytest.mark.parametrize("fails", ["", "export_memory", "export_event", "open_event", "record_event"])
def test_events_must_be_shared_as_well_as_memory(monkeypatch, fails):
    driver = SharedGpu()
    driver.fails = fails

    def run(arguments, _):
        outcome = probe_cuda_ipc.open_shared_memory(*map(bytes.fromhex, arguments[2:]))
        return CommandResult("probe", True, True, "", f"{outcome}\n")

    monkeypatch.setattr(probe_cuda_ipc, "CudaDriver", lambda: driver)
    monkeypatch.setattr(probe_cuda_ipc, "run_python", run)
    text = json.dumps(probe_cuda_ipc.share_memory())
    found = gpu.check_cuda_ipc(CommandResult("probe", True, True, "", text))
    if fails:
        assert (found.severity, found.provides) == (Severity.PROBLEM, ())
        assert f"{fails} returned 801" in found.evidence
    else:
        assert (found.severity, found.provides) == (Severity.OK, ("ipc",))
        assert driver.log.index("record_event") < driver.log.index("synchronize_event")


def test_nvidia_smi_output():
    row = "0, NVIDIA A100, 550.54.15, {mig}, Default, {persistence}, 40960 MiB"
    calm = CommandResult("nvidia-smi", True, True, "worked", row.format(mig="Disabled", persistence="Enabled"))
    assert [each.severity for each in gpu.parse_smi_query(calm)] == [Severity.OK]
    text = row.format(mig="Enabled", persistence="Disabled")
    _, mig, persistence = gpu.parse_smi_query(CommandResult("nvidia-smi", True, True, "worked", text))
    assert "nvidia-smi -mig 0" in mig.remedy
    assert "nvidia-smi -pm 1" in persistence.remedy
    matrix = "\tGPU0\tGPU1\tNIC0\nGPU0\t X \t{0}\tPXB\t0-31\nGPU1\t{0}\t X \tSYS\t0-31\n\nLegend:\n  X = Self\n"
    (fast,) = gpu.parse_smi_topology(CommandResult("nvidia-smi topo -m", True, True, "worked", matrix.format("NV12")))
    assert (fast.severity, fast.found) == (Severity.OK, "links between GPUs: NV12")
    (slow,) = gpu.parse_smi_topology(CommandResult("nvidia-smi topo -m", True, True, "worked", matrix.format("SYS")))
    assert slow.severity is Severity.NOTE


def test_exclusive_devices_and_missing_peer_access():
    info = {
        "cuda": "13.0",
        "visible": None,
        "devices": [{"name": "A", "mode": "default"}, {"name": "A", "mode": "default"}],
    }
    assert [each.severity for each in gpu.check_devices(info | {"peers": {"0-1": True, "1-0": True}})] == [
        Severity.OK
    ] * 2
    strict = info | {"devices": [{"name": "A", "mode": "exclusive_process"}], "peers": {}}
    assert "nvidia-smi -c DEFAULT" in gpu.check_devices(strict)[1].remedy
    apart = gpu.check_devices(info | {"peers": {"0-1": False, "1-0": True}})[1]
    assert "1 of 2 pairs" in apart.found


@pytest.mark.parametrize(
    ("words", "whose"),
    [
        ("HYDRA build details:\n    Version:      5.0.2\n", "MPICH 5.0.2"),
        ("mpirun (Open MPI) 5.0.11\n", "Open MPI 5.0.11"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240701", "Intel MPI 2021.13"),
        ("something else 1.0", None),
    ],
)
def test_mpirun_is_identified_by_its_version_output(words, whose):
    assert mpi_library.identify_mpirun(words) == whose


TOLD = {
    "library": "MPICH 5.0.2",
    "version": "MPICH Version: 5.0.2\nMPICH Device:       ch4:ofi",
    "standard": [4, 1],
    "compiled": [4, 1],
    "threads": "multiple",
    "extension": "/env/MPI.so",
    "files": ["/env/lib/libmpi.so.12"],
}


def test_mpirun_of_another_mpi_is_a_problem(tmp_path, monkeypatch):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = mpi_library.check_mpirun(TOLD, 10)
    assert found.severity is Severity.PROBLEM
    assert "N jobs of one rank each" in found.found
    assert mpi_library.check_mpirun(TOLD | {"library": "Open MPI 5.0.11"}, 10).severity is Severity.OK
    mpirun.write_text("#!/bin/sh\nexec sleep 600\n")
    assert mpi_library.check_mpirun(TOLD, 0.5).severity is Severity.NOTE


def test_a_note_states_what_the_thread_level_turns_off():
    mpich = TOLD | {"library": "MPICH 5.0.2", "threads": "multiple"}
    [note] = mpi_library.check_thread_level(mpich)
    assert note.severity is Severity.NOTE
    assert "mpi4py.rc.thread_level" in note.remedy
    assert not mpi_library.check_thread_level(mpich | {"threads": "funneled"})
    assert not mpi_library.check_thread_level(mpich | {"library": "Open MPI 5.0.11"})


def test_library_build_and_duplicate_libraries():
    assert mpi_library.check_mpich_device(TOLD)[0].severity is Severity.OK
    assert (
        mpi_library.check_mpich_device(TOLD | {"version": "MPICH Device:   ch3:nemesis"})[0].severity
        is Severity.WARNING
    )
    assert mpi_library.check_duplicates(TOLD) == []
    (two,) = mpi_library.check_duplicates(TOLD | {"files": ["/env/lib/libmpi.so.12", "/opt/lib/libmpi.so.40"]})
    assert two.severity is Severity.PROBLEM
    assert mpi_library.check_mpi4py_build(TOLD | {"compiled": [5, 0]}).severity is Severity.NOTE


def test_required_capability_must_be_proven_on_every_host():
    here = Finding("torch", Severity.OK, "torch 2", "", provides=("torch",), hosts=("a",))
    slow = Finding("torch", Severity.WARNING, "torch does not load", "no answer", hosts=("b",))
    require_capabilities(["torch"], [here], 1)
    with pytest.raises(UnavailableError, match=r"--require torch: not available on 1 of 2 hosts: torch does not load"):
        require_capabilities(["torch"], [here, slow], 2)
    none = Finding("gpu", Severity.NOTE, "no CUDA device", "libcuda.so.1 cannot be loaded")
    with pytest.raises(UnavailableError, match=r"--require ipc: .*no CUDA device.*; --require nccl: ") as caught:
        require_capabilities(["ipc", "nccl"], [none], 1)
    assert caught.value.exit_status == 3
