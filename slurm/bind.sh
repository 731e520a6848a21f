#!/bin/bash
# Run a rank on the cores next to its GPU: bind.sh COMMAND... On GPU nodes, job.sh starts it once per rank.
#
# Rank i of a node uses GPU i, as torch and hpccoll choose. All GPUs stay visible, because CUDA IPC between two ranks
# needs both to see both GPUs. The kernel knows the cores near the GPU's PCI slot; memory that the rank touches first is
# allocated there too. Without nvidia-smi, taskset or that information, the rank runs unbound.
rank=${SLURM_LOCALID:-${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-${PMI_LOCAL_RANK:-}}}}
# mpirun's ranks inherit the batch script's SLURM_LOCALID, which is 0 for all, so its own variables come first.
rank=${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-$rank}}

slots=()
if [ -n "$rank" ] && command -v nvidia-smi >/dev/null && command -v taskset >/dev/null; then
    mapfile -t slots < <(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader 2>/dev/null)
fi
if [ ${#slots[@]} -gt 0 ]; then
    slot=${slots[rank % ${#slots[@]}],,}
    # nvidia-smi writes the PCI domain with 8 digits, sysfs with 4.
    cores=$(cat "/sys/bus/pci/devices/${slot#0000}/local_cpulist" 2>/dev/null)
    # taskset fails for cores outside the job's allocation; the binding then stays unchanged.
    if [ -n "$cores" ]; then taskset --cpu-list --pid "$cores" $$ >/dev/null 2>&1; fi
fi
exec "$@"
