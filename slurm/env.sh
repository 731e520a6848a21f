# shellcheck shell=bash
# The environment of every job: the location of hpccoll; settings of MPI, UCX, libfabric and NCCL with their reasons.
# Sourced by job.sh; no edit is needed. Set these in the environment of sbatch, or here for all jobs:
#
#   HPCCOLL_MODULES   modules of the site to load first, such as "gcc openmpi cuda"
#   HPCCOLL_VENV      the virtual environment with hpccoll; default: the active one, else .venv of this checkout
#
# A variable that is already set keeps its value, so settings of the user and the site have priority.

# --- Location of hpccoll ----------------------------------------------------------------------------------------------

if [ -n "${HPCCOLL_MODULES:-}" ]; then
    if ! command -v module >/dev/null; then
        for file in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /usr/share/lmod/lmod/init/bash; do
            # shellcheck disable=SC1090 # a site's file
            if [ -r "$file" ]; then source "$file" && break; fi
        done
    fi
    command -v module >/dev/null ||
        fail 3 "HPCCOLL_MODULES=\"$HPCCOLL_MODULES\" needs the command 'module', which this node lacks;" \
            "unset it, or source the site's module file in slurm/env.sh"
    # shellcheck disable=SC2086 # a list
    module load $HPCCOLL_MODULES || fail 3 "module load $HPCCOLL_MODULES failed; see 'module avail'"
fi

HPCCOLL_VENV=${HPCCOLL_VENV:-${VIRTUAL_ENV:-}}
if [ -z "$HPCCOLL_VENV" ] && [ -x "$HPCCOLL_SLURM/../.venv/bin/python" ]; then
    HPCCOLL_VENV=$(cd "$HPCCOLL_SLURM/.." && pwd)/.venv
fi
# An MPI wheel installs its mpirun beside its Python, so put that directory first in PATH. An environment without a
# wheel has no mpirun and does not hide the one of the site's module.
if [ -n "$HPCCOLL_VENV" ]; then export PATH="$HPCCOLL_VENV/bin:$PATH"; fi
export HPCCOLL_VENV

# --- Processes --------------------------------------------------------------------------------------------------------

# One thread per rank: a BLAS or OpenMP pool in each rank would start cores x cores threads on a node.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# Since SLURM 22.05 srun does not inherit --cpus-per-task from sbatch: without this, every rank is bound to one core.
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK:-$SLURM_CPUS_PER_TASK}; fi
# Output goes through pipes; without buffering, a killed job loses no output.
export PYTHONUNBUFFERED=1
# Some mpirun implementations give ranks a terminal; without this, tables in the output file contain control codes.
export TERM=dumb NO_COLOR=1 COLUMNS=${COLUMNS:-200}

# --- Open MPI ---------------------------------------------------------------------------------------------------------

# Open MPI's mpirun refuses root, which is often the only user in a container.
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
# Bridges of containers and virtual machines have the same address on every node, so messages to them never arrive.
export OMPI_MCA_btl_tcp_if_exclude=${OMPI_MCA_btl_tcp_if_exclude:-lo,docker0,virbr0,podman0}

# --- MPICH ------------------------------------------------------------------------------------------------------------

# No setting is needed. Cray MPICH accepts device buffers with MPICH_GPU_SUPPORT_ENABLED=1, but then MPI_Init fails
# unless mpi4py is linked with Cray's GTL library; set it only in that case. Without it, hpccoll stages device buffers
# through pinned host memory.

# --- libfabric and UCX ------------------------------------------------------------------------------------------------

# On Slingshot, libfabric detects freed memory by hooks in malloc, which deadlock with allocators that have hooks of
# their own, such as CUDA's and torch's. The kernel's userfaultfd detects it without hooks.
if [ -d /sys/class/cxi ]; then export FI_MR_CACHE_MONITOR=${FI_MR_CACHE_MONITOR:-userfaultfd}; fi
# UCX prints a warning on every rank for each absent network type; errors are still printed.
export UCX_LOG_LEVEL=${UCX_LOG_LEVEL:-error}

# --- NCCL -------------------------------------------------------------------------------------------------------------

# Exclude bridges, because NCCL bootstraps over the first interface that it finds.
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-^lo,docker,virbr,podman}
# Warnings name a failed link; INFO would flood the output.
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
# Gloo binds to the address of the host name, which is the loopback on some distributions; there, set
# GLOO_SOCKET_IFNAME to the site's interface. No name suits every site, so none is set here.
