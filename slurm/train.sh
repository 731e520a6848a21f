#!/bin/bash
# Train a small model on a mesh of data, tensor and pipeline parallelism, with checkpoints; see docs/training.md.
#
#   sbatch slurm/train.sh                                                      # dp: data parallel over 4 nodes x 2 ranks
#   sbatch slurm/train.sh dp=4,tp=2 --steps 500                                # a mesh; hpccoll train's options come after
#   sbatch --nodes=8 --ntasks-per-node=4 slurm/train.sh dp=4,tp=4,pp=2         # sbatch's options come before
#   sbatch slurm/train.sh dp --profile trace.json                              # a trace of all ranks for ui.perfetto.dev
#   sbatch slurm/train.sh dp --model course --compare                          # compares with torch's DDP; keeps no checkpoint
#   sbatch --gpus-per-node=4 --ntasks-per-node=4 slurm/train.sh dp=4,tp=4 --device cuda
#   SURVIVE=1 sbatch --no-kill slurm/train.sh dp           # continues without dead ranks and nodes, with Open MPI
#
# The product of the mesh's sizes is the number of ranks. Ranks of the axis tp are consecutive, so a tp of at most
# --ntasks-per-node stays within a node. A job that is warned, or loses a node, resumes from its last checkpoint. With
# SURVIVE=1, training continues in the same job after the death of a rank; with --no-kill, by which SLURM does not end
# the job, also after the death of a node. The job is requeued if too few ranks are left, or if the first node dies.
#
# Results: results/train-JOBID/train.jsonl, one record per step, and results/train-JOBID/checkpoint.

#SBATCH --job-name=train
##SBATCH --partition=debug          # remove one # and name a partition; default: the site's
#SBATCH --nodes=4                   # number of nodes
#SBATCH --ntasks-per-node=2         # ranks per node; with GPUs, one per GPU
##SBATCH --gpus-per-node=4          # GPUs per node; --gpus-per-task would break CUDA IPC
#SBATCH --time=00:30:00             # time limit
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

case "${1:-}" in '' | -*) set -- dp "$@" ;; esac
# shellcheck disable=SC2034 # job.sh uses it in messages
unit=step
survive=''
if [ -n "${SURVIVE:-}" ]; then
    survive=yes HPCCOLL_LAUNCHER=mpirun # srun cannot start jobs that continue after a death
    set -- "$@" --survive
fi
begin
case " $* " in
*' --compare '*) step train --json "$RESULTS/train.jsonl" --overwrite "$@" ;; # a comparison has no state to resume from
*) step train --checkpoint "$RESULTS/checkpoint" --stop-file "$stop_file" --json "$RESULTS/train.jsonl" "$@" ;;
esac
if [ -n "$survive" ]; then require_summary; fi
finish
