#!/bin/bash
# Find slow and broken nodes and links before a long job: measure every node and every pair, and print --exclude=.
#
#   sbatch --nodes=64 slurm/preflight.sh
#   sbatch $(cat results/preflight-JOBID/exclude.txt) my_long_job.sh           # excludes the nodes that were found
#
# Exit status: 0 no fault, 1 a node or link is slow, 4 one is broken.
# Results: results/preflight-JOBID/preflight.jsonl and exclude.txt, and the tables in preflight-JOBID.out.

#SBATCH --job-name=preflight
##SBATCH --partition=debug          # remove one # and name a partition; default: the site's
#SBATCH --nodes=4                   # number of nodes; at least 3, because preflight compares them
#SBATCH --ntasks-per-node=1         # one rank per node; it uses all cores when it measures the node
#SBATCH --exclusive                 # whole nodes: another job would make a node look slow
#SBATCH --time=00:20:00             # time limit; n nodes take about 5 (n - 1) x 0.1 s
#SBATCH --output=%x-%j.out          # output file; %x is the job's name, %j its ID

# SLURM runs a copy of this file, so look for job.sh in the directory of the original.
original=$(scontrol show job -o "${SLURM_JOB_ID:-}" 2>/dev/null | sed -n "s/.* Command=\([^ ]*\).*/\1/p;q")
for HPCCOLL_SLURM in "${HPCCOLL_SLURM:-}" "${original%/*}" "${0%/*}" "${SLURM_SUBMIT_DIR:-.}/slurm"; do
    if [ -r "$HPCCOLL_SLURM/job.sh" ]; then break; fi
done
# shellcheck source=slurm/job.sh
source "$HPCCOLL_SLURM/job.sh" || { echo "Error: set HPCCOLL_SLURM to the folder slurm/ of hpccoll" >&2; exit 3; }

# MPI would hang at startup over a broken link without naming it, so test the links without MPI first.
ARGUMENTS=("$@")
before_mpi() {
    # Reports of nodes count only with this secret, because anybody who reaches a node can connect to its port.
    HPCCOLL_PREFLIGHT_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') && export HPCCOLL_PREFLIGHT_SECRET
    srun --mpi=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --quiet \
        hpccoll preflight --reach --overwrite --json "$RESULTS/preflight.jsonl" --exclude-file "$RESULTS/exclude.txt" \
        ${ARGUMENTS[@]+"${ARGUMENTS[@]}"} || { STATUS=$? && finish; }
}

HPCCOLL_NODE_WAIT_S=0 # unreachable nodes are named before MPI starts, so do not wait for SLURM to detect them
begin
export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}
step preflight --overwrite --json "$RESULTS/preflight.jsonl" --exclude-file "$RESULTS/exclude.txt" "$@"
finish
