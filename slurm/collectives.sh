#!/bin/bash
# Benchmark every operation over message sizes: the algorithms that may be the fastest, and all engines.
#
#   sbatch slurm/collectives.sh
#   sbatch --gpus-per-node=4 --ntasks-per-node=4 slurm/collectives.sh --buffer cuda
#
# Results: results/collectives-JOBID/OPERATION.jsonl, and the tables in collectives-JOBID.out.

#SBATCH --job-name=collectives
##SBATCH --partition=debug          # remove one # and name a partition; default: the site's
#SBATCH --nodes=4                   # number of nodes
#SBATCH --ntasks-per-node=2         # ranks per node; with GPUs, one per GPU
##SBATCH --gpus-per-node=4          # GPUs per node; --gpus-per-task would break CUDA IPC
#SBATCH --time=02:00:00             # time limit
#SBATCH --signal=B:USR1@120         # warn the job this many seconds before the limit: it stops cleanly and is requeued
#SBATCH --requeue                   # SLURM restarts a job that was interrupted or lost a node; it resumes
#SBATCH --open-mode=append          # a restarted job appends to its output file
#SBATCH --output=%x-%j.out          # output file; %x is the job's name, %j its ID

# SLURM runs a copy of this file, so look for job.sh in the directory of the original.
original=$(scontrol show job -o "${SLURM_JOB_ID:-}" 2>/dev/null | sed -n "s/.* Command=\([^ ]*\).*/\1/p;q")
for HPCCOLL_SLURM in "${HPCCOLL_SLURM:-}" "${original%/*}" "${0%/*}" "${SLURM_SUBMIT_DIR:-.}/slurm"; do
    if [ -r "$HPCCOLL_SLURM/job.sh" ]; then break; fi
done
# shellcheck source=slurm/job.sh
source "$HPCCOLL_SLURM/job.sh" || { echo "Error: set HPCCOLL_SLURM to the folder slurm/ of hpccoll" >&2; exit 3; }

begin
for operation in all_reduce reduce_scatter all_gather all_to_all broadcast reduce gather scatter barrier; do
    step bench "$operation" -e 16M --out-of-place --resume "$RESULTS/$operation.jsonl" --stop-file "$stop_file" "$@"
done
finish
