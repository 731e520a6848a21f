#!/bin/bash
# Trains a small model over a mesh of data, tensor and pipeline parallelism, and keeps its state: docs/training.md.
#
#   sbatch slurm/train.sh                                                      # dp: data parallel over 4 nodes x 2 ranks
#   sbatch slurm/train.sh dp=4,tp=2 --steps 500                                # a mesh; hpccoll train's options behind it
#   sbatch --nodes=8 --ntasks-per-node=4 slurm/train.sh dp=4,tp=4,pp=2         # sbatch's options come before
#   sbatch --gpus-per-node=4 --ntasks-per-node=4 slurm/train.sh dp=4,tp=4 --device cuda
#
# The mesh's numbers multiply to the ranks of the job. Ranks of an axis named tp follow each other: a tp of at most
# --ntasks-per-node stays within nodes. A job that is warned, or loses a node, goes on from its last checkpoint.
#
# Results: results/train-JOBID/train.jsonl, one record a step, and results/train-JOBID/checkpoint.

#SBATCH --job-name=train
##SBATCH --partition=debug          # the site's default unless you take one # away and name yours
#SBATCH --nodes=4                   # machines
#SBATCH --ntasks-per-node=2         # ranks on each; with GPUs one a GPU
##SBATCH --gpus-per-node=4          # GPUs on each; not --gpus-per-task, which breaks CUDA IPC between ranks
#SBATCH --time=00:30:00             # the job is ended after that
#SBATCH --signal=B:USR1@120         # seconds before, it is warned: it saves after the step under way and is requeued
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

case "${1:-}" in '' | -*) set -- dp "$@" ;; esac
# shellcheck disable=SC2034 # what job.sh says is kept
unit=step
begin
step train --checkpoint "$RESULTS/checkpoint" --stop-file "$stop_file" --json "$RESULTS/train.jsonl" "$@"
finish
