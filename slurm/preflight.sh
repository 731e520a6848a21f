#!/bin/bash
# Before a long job: every pair of nodes measured, every node alone; names the slow and the broken, and prints --exclude=.
#
#   sbatch --nodes=64 slurm/preflight.sh
#   sbatch $(cat results/preflight-JOBID/exclude.txt) my_long_job.sh           # leaves out what was found
#
# Exit status: 0 all is well, 1 something is slow, 4 something is broken.
# Results: results/preflight-JOBID/preflight.jsonl and exclude.txt, and the tables in preflight-JOBID.out.

#SBATCH --job-name=preflight
##SBATCH --partition=debug          # the site's default unless you take one # away and name yours
#SBATCH --nodes=4                   # machines; preflight compares them, so 3 at least
#SBATCH --ntasks-per-node=1         # one rank a node, which keeps all its cores busy when it measures the node
#SBATCH --exclusive                 # whole nodes: another job on one would make it look slow
#SBATCH --time=00:20:00             # the job is ended after that; n nodes take about 5 (n - 1) x 0.1 s
#SBATCH --output=%x-%j.out          # what it prints; %x is the job's name, %j its number

# SLURM runs a copy of this file: the rest is in the folder that it came from.
from=$(scontrol show job -o "${SLURM_JOB_ID:-}" 2>/dev/null | sed -n "s/.* Command=\([^ ]*\).*/\1/p;q")
for HPCCOLL_SLURM in "${HPCCOLL_SLURM:-}" "${from%/*}" "${0%/*}" "${SLURM_SUBMIT_DIR:-.}/slurm"; do
    if [ -r "$HPCCOLL_SLURM/job.sh" ]; then break; fi
done
# shellcheck source=slurm/job.sh
source "$HPCCOLL_SLURM/job.sh" || { echo "Error: set HPCCOLL_SLURM to the folder slurm/ of hpccoll" >&2; exit 3; }

# MPI itself needs every link: over a broken one it would hang in its start, and say nothing of where.
ARGUMENTS=("$@")
before_mpi() {
    srun --mpi=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --quiet \
        hpccoll preflight --reach --json "$RESULTS/preflight.jsonl" --exclude-file "$RESULTS/exclude.txt" \
        ${ARGUMENTS[@]+"${ARGUMENTS[@]}"} || { STATUS=$? && finish; }
}

HPCCOLL_NODE_WAIT_S=0 # a node that is out of reach has been named by then
begin
export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}
step preflight --json "$RESULTS/preflight.jsonl" --exclude-file "$RESULTS/exclude.txt" "$@"
finish
