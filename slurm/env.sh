# shellcheck shell=bash
# What every job here runs in: where hpccoll is, and what MPI, UCX, libfabric and NCCL are told, each with its reason.
# Sourced by job.sh; nothing here needs an edit. Set in the environment of sbatch, or here for all jobs:
#
#   HPCCOLL_MODULES   modules of the site, such as "gcc openmpi cuda"; loaded first
#   HPCCOLL_VENV      the virtual environment with hpccoll; default the active one, else .venv of this checkout
#
# A variable that is set already is left alone: what a user or a site decided wins.

# --- Where hpccoll is -------------------------------------------------------------------------------------------------

if [ -n "${HPCCOLL_MODULES:-}" ]; then
    if ! command -v module >/dev/null; then
        for file in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /usr/share/lmod/lmod/init/bash; do
            # shellcheck disable=SC1090 # a site's file
            if [ -r "$file" ]; then source "$file" && break; fi
        done
    fi
    command -v module >/dev/null ||
        refuse 3 "HPCCOLL_MODULES=\"$HPCCOLL_MODULES\" asks for modules, and this node has none: no command 'module';" \
            "unset it, or source the site's module file in slurm/env.sh"
    # shellcheck disable=SC2086 # a list
    module load $HPCCOLL_MODULES || refuse 3 "module load $HPCCOLL_MODULES failed; see 'module avail'"
fi

HPCCOLL_VENV=${HPCCOLL_VENV:-${VIRTUAL_ENV:-}}
if [ -z "$HPCCOLL_VENV" ] && [ -x "$HPCCOLL_SLURM/../.venv/bin/python" ]; then
    HPCCOLL_VENV=$(cd "$HPCCOLL_SLURM/.." && pwd)/.venv
fi
# The wheel's mpirun lies beside its Python: first in PATH, it is the one that belongs to the library. A site's MPI has
# its mpirun from the module, which an environment without a wheel does not hide.
if [ -n "$HPCCOLL_VENV" ]; then export PATH="$HPCCOLL_VENV/bin:$PATH"; fi
export HPCCOLL_VENV

# --- Processes --------------------------------------------------------------------------------------------------------

# Each rank is one worker; a BLAS or OpenMP pool in each would put cores x cores threads on a node.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# Since SLURM 22.05 srun does not take --cpus-per-task over from sbatch: every rank would sit on one core.
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK:-$SLURM_CPUS_PER_TASK}; fi
# Output goes through pipes: unbuffered, a job that is killed has printed what it knew.
export PYTHONUNBUFFERED=1
# Some mpiruns give ranks a terminal: without this, tables in the output file would be full of its control codes.
export TERM=dumb NO_COLOR=1 COLUMNS=${COLUMNS:-200}

# --- Open MPI ---------------------------------------------------------------------------------------------------------

# Open MPI's mpirun refuses root. In a container, or on a cluster of one's own, root is often the only user there is.
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
# Bridges of containers and virtual machines have the same address on every node: messages sent there never arrive.
export OMPI_MCA_btl_tcp_if_exclude=${OMPI_MCA_btl_tcp_if_exclude:-lo,docker0,virbr0,podman0}

# --- MPICH ------------------------------------------------------------------------------------------------------------

# Nothing is needed. Cray MPICH takes device buffers with MPICH_GPU_SUPPORT_ENABLED=1, but MPI_Init fails with it unless
# mpi4py was linked with Cray's GTL library: set it yourself where that was done. Without it, hpccoll stages through
# pinned host memory.

# --- libfabric and UCX ------------------------------------------------------------------------------------------------

# On Slingshot, libfabric's default way of noticing freed memory hooks malloc, and deadlocks with allocators that have
# hooks of their own, as CUDA's and torch's do; the kernel's userfaultfd tells the same from outside.
if [ -d /sys/class/cxi ]; then export FI_MR_CACHE_MONITOR=${FI_MR_CACHE_MONITOR:-userfaultfd}; fi
# UCX warns on every rank where a network it knows is not there; errors still show.
export UCX_LOG_LEVEL=${UCX_LOG_LEVEL:-error}

# --- NCCL -------------------------------------------------------------------------------------------------------------

# The bridges again: NCCL takes the first interface that it finds for its bootstrap.
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-^lo,docker,virbr,podman}
# Warnings name the link that failed; INFO would fill the results.
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
# Gloo binds to what the host name resolves to, which is the loopback on some distributions; a site sets
# GLOO_SOCKET_IFNAME to its interface then. There is no name that fits everywhere, so none is set here.
