#!/bin/bash
# Benchmark the same operations on 1, 2, 4, ... nodes, as a job array, then write one scaling report.
#
#   sbatch slurm/sweep.sh                                                      # 1, 2 and 4 nodes x 2 ranks
#   sbatch --nodes=16 --array=1,2,4,8,16 slurm/sweep.sh all_reduce all_to_all  # the array's indices are node counts
#   sbatch --nodes=8 --array=1,2,4,8%1 --gpus-per-node=4 --ntasks-per-node=4 slurm/sweep.sh all_reduce --buffer cuda
#
# Each task of the array allocates --nodes nodes and runs on as many as its index. The first task to start submits a
# small job that waits for all tasks and writes the report.
#
# Results: results/sweep-JOBID/NODES/sweep.jsonl, and in results/sweep-JOBID the report: report.html, findings.jsonl,
# scaling.txt and scaling.jsonl.

#SBATCH --job-name=sweep
##SBATCH --partition=debug          # remove one # and name a partition; default: the site's
#SBATCH --array=1,2,4               # number of nodes of each task
#SBATCH --nodes=4                   # nodes that each task allocates: the largest index
#SBATCH --ntasks-per-node=2         # ranks per node; with GPUs, one per GPU
##SBATCH --gpus-per-node=4          # GPUs per node; --gpus-per-task would break CUDA IPC
#SBATCH --time=00:30:00             # time limit of each task
#SBATCH --signal=B:USR1@120         # warn the job this many seconds before the limit: it stops cleanly and is requeued
#SBATCH --requeue                   # an interrupted task, or one that lost a node, resumes
#SBATCH --open-mode=append          # a restarted job appends to its output file
#SBATCH --output=%x-%A_%a.out       # output file; %x is the job's name, %A the array's ID, %a the task's index

# SLURM runs a copy of this file, so look for job.sh in the directory of the original.
original=$(scontrol show job -o "${SLURM_JOB_ID:-}" 2>/dev/null | sed -n "s/.* Command=\([^ ]*\).*/\1/p;q")
for HPCCOLL_SLURM in "${HPCCOLL_SLURM:-}" "${original%/*}" "${0%/*}" "${SLURM_SUBMIT_DIR:-.}/slurm"; do
    if [ -r "$HPCCOLL_SLURM/job.sh" ]; then break; fi
done
# shellcheck source=slurm/job.sh
source "$HPCCOLL_SLURM/job.sh" || { echo "Error: set HPCCOLL_SLURM to the folder slurm/ of hpccoll" >&2; exit 3; }

begin "${SLURM_ARRAY_TASK_ID:-}"
submit_report_job
step bench "$@" --resume "$RESULTS/sweep.jsonl" --stop-file "$stop_file"
finish
