#!/bin/bash
# Runs a rank on the cores next to its GPU: bind.sh COMMAND... Started by job.sh on GPU nodes, once a rank.
#
# Rank i of a node has GPU i (as torch and hpccoll choose), and all GPUs stay visible: CUDA IPC between ranks needs both
# ends to see both. The kernel knows which cores share a NUMA node with the GPU's PCI slot; memory that the rank touches
# first then lies there too. Where anything of that is not to be had, the rank runs unbound.
rank=${SLURM_LOCALID:-${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-${PMI_LOCAL_RANK:-}}}}
# mpirun hands on the batch script's own SLURM_LOCALID, which is 0 for all.
rank=${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-$rank}}

slots=()
if [ -n "$rank" ] && command -v nvidia-smi >/dev/null && command -v taskset >/dev/null; then
    mapfile -t slots < <(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader 2>/dev/null)
fi
if [ ${#slots[@]} -gt 0 ]; then
    slot=${slots[rank % ${#slots[@]}],,}
    cores=$(cat "/sys/bus/pci/devices/${slot#0000}/local_cpulist" 2>/dev/null) # nvidia-smi has four zeros more
    # Cores outside this job's share are refused: then it stays as it was.
    if [ -n "$cores" ]; then taskset --cpu-list --pid "$cores" $$ >/dev/null 2>&1; fi
fi
exec "$@"
