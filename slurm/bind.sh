#!/bin/bash
# bind.sh COMMAND...: bind this process to the cores next to its rank's GPU, then run COMMAND. On GPU nodes, job.sh runs
# it once per rank.
#
# Rank i of a node uses GPU i, as torch and hpccoll choose; if CUDA_VISIBLE_DEVICES is set, GPU i of that list. Every
# rank sees all of these GPUs, because CUDA IPC between two ranks needs both to see both GPUs. The kernel lists the
# cores near the GPU's PCI slot; memory that the rank touches first is allocated near them. Without nvidia-smi, taskset
# or the list of cores, the rank runs unbound.
rank=${SLURM_LOCALID:-${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-${PMI_LOCAL_RANK:-}}}}
# Under mpirun all ranks inherit SLURM_LOCALID=0 from the batch script, so the launcher's own variables come first.
rank=${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-$rank}}

slots=()
if [ -n "$rank" ] && command -v nvidia-smi >/dev/null && command -v taskset >/dev/null; then
    query=(nvidia-smi --query-gpu=pci.bus_id "--format=csv,noheader")
    if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
        # CUDA names a GPU by its number or its UUID, and stops reading the list at the first name that is no GPU.
        IFS=, read -ra visible <<<"$CUDA_VISIBLE_DEVICES"
        for name in "${visible[@]}"; do
            slot=$("${query[@]}" --id="$name" 2>/dev/null) || break
            slots+=("$slot")
        done
    else
        mapfile -t slots < <("${query[@]}" 2>/dev/null)
    fi
fi
if [ ${#slots[@]} -gt 0 ]; then
    slot=${slots[rank % ${#slots[@]}],,}
    # nvidia-smi writes the PCI domain with 8 digits, sysfs with 4.
    cores=$(cat "/sys/bus/pci/devices/${slot#0000}/local_cpulist" 2>/dev/null)
    # taskset fails for cores outside the job's allocation; the binding then stays unchanged.
    if [ -n "$cores" ]; then taskset --cpu-list --pid "$cores" $$ >/dev/null 2>&1; fi
fi
exec "$@"
