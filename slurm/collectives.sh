#!/bin/bash
# Every operation over sizes, each with all its algorithms and engines, side by side in one run.
#
#   sbatch slurm/collectives.sh
#   sbatch --gpus-per-node=4 --ntasks-per-node=4 slurm/collectives.sh --buffer cuda
#
# Results: results/collectives-JOBID/OPERATION.jsonl, and the tables in collectives-JOBID.out.

#SBATCH --job-name=collectives
##SBATCH --partition=debug          # the site's default unless you take one # away and name yours
#SBATCH --nodes=4                   # machines
#SBATCH --ntasks-per-node=2         # ranks on each; with GPUs one a GPU
##SBATCH --gpus-per-node=4          # GPUs on each; not --gpus-per-task, which breaks CUDA IPC between ranks
#SBATCH --time=02:00:00             # the job is ended after that
#SBATCH --signal=B:USR1@120         # seconds before, it is warned: it stops cleanly and is requeued
#SBATCH --requeue                   # a job that was interrupted, or lost a node, goes on where it was
#SBATCH --open-mode=append          # and adds to its output instead of overwriting it
#SBATCH --output=%x-%j.out          # what it prints; %x is the job's name, %j its number

# SLURM runs a copy of this file: the rest is in the folder that it came from.
from=$(scontrol show job -o "${SLURM_JOB_ID:-}" 2>/dev/null | sed -n "s/.* Command=\([^ ]*\).*/\1/p;q")
for HPCCOLL_SLURM in "${HPCCOLL_SLURM:-}" "${from%/*}" "${0%/*}" "${SLURM_SUBMIT_DIR:-.}/slurm"; do
    if [ -r "$HPCCOLL_SLURM/job.sh" ]; then break; fi
done
# shellcheck source=slurm/job.sh
source "$HPCCOLL_SLURM/job.sh" || { echo "Error: set HPCCOLL_SLURM to the folder slurm/ of hpccoll" >&2; exit 3; }

begin
for operation in all_reduce reduce_scatter all_gather all_to_all broadcast reduce gather scatter barrier; do
    step bench "$operation" -e 16M --out-of-place --resume "$RESULTS/$operation.jsonl" --stop-file "$stop_file" "$@"
done
finish
