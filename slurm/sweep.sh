#!/bin/bash
# Scaling: the same rows on 1, 2, 4, ... nodes, as a job array; when all are done, one report over all of them.
#
#   sbatch slurm/sweep.sh                                                      # 1, 2 and 4 nodes x 2 ranks
#   sbatch --nodes=16 --array=1,2,4,8,16 slurm/sweep.sh all_reduce all_to_all  # the array's indices are node counts
#   sbatch --nodes=8 --array=1,2,4,8%1 --gpus-per-node=4 --ntasks-per-node=4 slurm/sweep.sh all_reduce --buffer cuda
#
# Each task of the array holds --nodes of them and runs on as many as its index says. The first to start submits a small
# job that waits for all and writes the report.
#
# Results: results/sweep-JOBID/NODES/sweep.jsonl, and in results/sweep-JOBID the report: report.html, findings.jsonl,
# scaling.txt and scaling.jsonl.

#SBATCH --job-name=sweep
##SBATCH --partition=debug          # the site's default unless you take one # away and name yours
#SBATCH --array=1,2,4               # how many nodes each task runs on
#SBATCH --nodes=4                   # machines of each task: the largest index
#SBATCH --ntasks-per-node=2         # ranks on each; with GPUs one a GPU
##SBATCH --gpus-per-node=4          # GPUs on each; not --gpus-per-task, which breaks CUDA IPC between ranks
#SBATCH --time=00:30:00             # each task is ended after that
#SBATCH --signal=B:USR1@120         # seconds before, it is warned: it stops cleanly and is requeued
#SBATCH --requeue                   # a task that was interrupted, or lost a node, goes on where it was
#SBATCH --open-mode=append          # and adds to its output instead of overwriting it
#SBATCH --output=%x-%A_%a.out       # what it prints; %x is the job's name, %A the array's number, %a the task's

# SLURM runs a copy of this file: the rest is in the folder that it came from.
from=$(scontrol show job -o "${SLURM_JOB_ID:-}" 2>/dev/null | sed -n "s/.* Command=\([^ ]*\).*/\1/p;q")
for HPCCOLL_SLURM in "${HPCCOLL_SLURM:-}" "${from%/*}" "${0%/*}" "${SLURM_SUBMIT_DIR:-.}/slurm"; do
    if [ -r "$HPCCOLL_SLURM/job.sh" ]; then break; fi
done
# shellcheck source=slurm/job.sh
source "$HPCCOLL_SLURM/job.sh" || { echo "Error: set HPCCOLL_SLURM to the folder slurm/ of hpccoll" >&2; exit 3; }

begin "${SLURM_ARRAY_TASK_ID:-}"
merge_later
step bench "$@" --in-place --resume "$RESULTS/sweep.jsonl" --stop-file "$stop_file"
finish
