# shellcheck shell=bash
# Functions for all job scripts: results directory, environment, steps, signals and exit status; launch.sh has those that
# start ranks. The scripts source this file and call `begin`, `step` and `finish`; do not submit it. Optional settings:
#
#   HPCCOLL_LAUNCHER  srun, mpirun, or auto (default): the first that starts all ranks as one job
#   HPCCOLL_SRUN_MPI  the --mpi= option of srun; the default depends on the MPI library
#   HPCCOLL_START_TIMEOUT  seconds in which a launcher must start all ranks; default: 45, plus 1 per 100 ranks
#   HPCCOLL_RESULTS   parent of the results directories; default: results/ in the directory of submission
#   HPCCOLL_RESUME    results directory of an earlier job to resume; default: a new directory
#   HPCCOLL_MOST_REQUEUES  restarts after which a job that the warning signal stops is not requeued; default: 20
#   HPCCOLL_SLURM     this directory; needed by a script that was copied elsewhere

# shellcheck source=slurm/launch.sh
source "$HPCCOLL_SLURM/launch.sh"

say() { printf 'hpccoll: %s\n' "$*"; }

# fail STATUS WORDS...: print an error, log it, and exit with STATUS, the exit status of hpccoll for this kind of error.
fail() {
    local status=$1
    shift
    printf 'Error: %s\n' "$*" >&2
    if [ -n "${RESULTS:-}" ] && [ -d "$RESULTS" ]; then log_event "failed, exit status $status: $*"; fi
    exit "$status"
}

# log_event WORDS...: append a line to ending.txt. Errors are ignored: a full disk must not change the exit status.
log_event() { printf '%s attempt %s: %s\n' "$(date +%FT%T)" "$((${SLURM_RESTART_COUNT:-0} + 1))" "$*" >>"$RESULTS/ending.txt" || true; }

# begin [NODES]: check the job, create its results directory, and choose a launcher for its first NODES nodes (default:
# all). Sets RESULTS, RANKS, and LAUNCH, the command prefix that starts a step. Exits with an error if a check fails.
begin() {
    set -uo pipefail
    require_job
    NODES=${1:-$SLURM_JOB_NUM_NODES}
    # In an array, SLURM_JOB_ID may be the ID of the whole array.
    JOB=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID:-}_$SLURM_ARRAY_TASK_ID}
    JOB=${JOB:-$SLURM_JOB_ID}
    make_results_dir
    # shellcheck source=slurm/env.sh
    source "$HPCCOLL_SLURM/env.sh"
    stop_file=$RESULTS/stop # the scripts pass it as --stop-file to hpccoll bench and hpccoll train
    rm -f "$stop_file"
    launch_pid='' warned='' STATUS=0
    trap on_warning USR1
    trap on_terminate TERM
    log_event "began on $SLURM_JOB_NODELIST"
    if [ "${SLURM_RESTART_COUNT:-0}" != 0 ]; then
        say "restart $SLURM_RESTART_COUNT on $SLURM_JOB_NODELIST; finished ${unit:-row}s are kept"
        local down
        if down=$(print_unusable_nodes ALL); then
            say "unusable nodes: $down"
            log_event "unusable nodes at this restart: $down"
        fi
    fi
    set_ranks_and_binding
    set_start_limit
    check_hpccoll_on_all_nodes
    if declare -F before_mpi >/dev/null; then before_mpi; fi # preflight.sh defines it
    choose_launcher
    say "$SLURM_JOB_NAME: $RANKS ranks on $NODES nodes ($HOSTS), by $LAUNCHER; results in $RESULTS"
}

# Exit with an explanation unless this is a SLURM job.
require_job() {
    if [ -n "${SLURM_JOB_ID:-}" ]; then return; fi
    if ! command -v sbatch >/dev/null; then
        fail 3 "no SLURM here: no command 'sbatch' in PATH. Run 'sbatch ${0##*/}' on a cluster's login node," \
            "'mpirun -n 4 hpccoll bench' for this machine alone, or 'hpccoll lab up' for a throw-away cluster on it"
    fi
    fail 2 "this script runs only in a SLURM job (SLURM_JOB_ID is not set); submit it: sbatch $0"
}

# Create the results directory and set RESULTS. A requeued job uses the same one; an array has a subdirectory per task.
make_results_dir() {
    local base=${HPCCOLL_RESULTS:-${SLURM_SUBMIT_DIR:-$PWD}/results} why
    RESULTS=$base/$SLURM_JOB_NAME-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+/$SLURM_ARRAY_TASK_ID}
    RESULTS=${HPCCOLL_RESUME:-$RESULTS}
    if ! why=$(mkdir -p "$RESULTS" 2>&1 && : 2>&1 >"$RESULTS/.writable"); then
        local dir=$RESULTS
        RESULTS=''
        fail 2 "the results directory $dir cannot be written on $(uname -n): ${why##*: };" \
            "name one that all nodes can write: HPCCOLL_RESULTS=DIR sbatch ..."
    fi
    rm -f "$RESULTS/.writable"
    local output
    output=$(scontrol show job -o "$JOB" | sed -n 's/.* StdOut=\([^ ]*\).*/\1/p')
    if [ -f "$output" ]; then ln -sf "$output" "$RESULTS/output.txt"; fi
    export RESULTS
}

# Exit with the names of the nodes that lack hpccoll, if any: MPI would report only that a process died.
check_hpccoll_on_all_nodes() {
    local problems limit=$((3 * start_limit)) # a cold import from a shared file system is slow
    # shellcheck disable=SC2016 # the nodes expand it
    problems=$(timeout --kill-after=5 "$limit" srun --mpi=none --nodes="$SLURM_JOB_NUM_NODES" \
        --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --overcommit --quiet bash -c '
            python=$(command -v python || command -v python3) || { echo "$(uname -n): no python in PATH"; exit; }
            why=$("$python" -c "import hpccoll.cli.main, mpi4py, numpy" 2>&1) || echo "$(uname -n): $python: ${why##*$'"'\n'"'}"
            command -v hpccoll >/dev/null || echo "$(uname -n): no command hpccoll in PATH"' 2>&1) ||
        problems="$problems
srun did not start on all nodes, or did not end within $limit s"
    if [ -z "$problems" ]; then return; fi
    fail 3 "hpccoll is not on all nodes:
$problems
Install it in a directory that all nodes see, and set HPCCOLL_VENV=/shared/path/.venv (now '${HPCCOLL_VENV:-none}')"
}

# Set RANKS, HOSTS (the nodes in use) and WRAP (the command that binds a rank to its GPU's cores).
set_ranks_and_binding() {
    local per_node=${SLURM_NTASKS_PER_NODE:-} gpus=${SLURM_GPUS_ON_NODE:-0}
    if [ "$NODES" -gt "$SLURM_JOB_NUM_NODES" ]; then
        fail 2 "$NODES nodes are needed, but this job has $SLURM_JOB_NUM_NODES; submit it with sbatch --nodes=$NODES"
    fi
    RANKS=${SLURM_NTASKS:-$((SLURM_JOB_NUM_NODES * ${per_node:-1}))}
    HOSTS=$SLURM_JOB_NODELIST
    if [ "$NODES" -lt "$SLURM_JOB_NUM_NODES" ]; then
        RANKS=$((NODES * ${per_node:-RANKS / SLURM_JOB_NUM_NODES}))
        HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n "$NODES" | paste -sd,)
    fi
    WRAP=()
    if [ "$gpus" = 0 ]; then return; fi
    WRAP=("$HPCCOLL_SLURM/bind.sh")
    if [ -n "$per_node" ] && [ "$per_node" != "$gpus" ]; then
        say "warning: $per_node ranks and $gpus GPUs per node; for one rank per GPU: sbatch --ntasks-per-node=$gpus"
    fi
    if [ -n "${SLURM_GPUS_PER_TASK:-}${SLURM_TRES_PER_TASK:-}" ]; then
        say "warning: --gpus-per-task hides each rank's GPU from the others, so CUDA IPC fails; use --gpus-per-node"
    fi
}

# step ARGUMENTS...: run `hpccoll ARGUMENTS` on all ranks and wait, unless a warning signal has come; STATUS becomes the
# highest exit status so far. If the ranks do not start, name the launcher, and try the next. The command runs in the
# background, because bash handles signals only between foreground commands.
step() {
    launch_status=130 failures=''
    if [ -z "$LAUNCHERS" ]; then launch_status=4; fi # all failed in an earlier step
    until [ -n "$warned" ] || [ -z "$LAUNCHERS" ]; do
        if run_step "$@"; then break; fi
        launch_status=4
        failures+="
${LAUNCH[*]}: $start_failure$(name_lost_message "$RESULTS/output.txt")"
        drop_launcher
        log_event "$LAUNCHER failed: $start_failure"
        if [ -z "$LAUNCHERS" ]; then
            printf 'Error: %s\n' "$(describe_failures)" >&2
        else
            launch_status=130 # if a warning signal ends the loop, the requeued job runs the step
            if [ -z "$warned" ]; then say "warning: $LAUNCHER failed: $start_failure; ${LAUNCHERS%% *} is tried next"; fi
            set_launch_command "${LAUNCHERS%% *}"
        fi
    done
    if [ "$launch_status" -gt "$STATUS" ]; then STATUS=$launch_status; fi
}

# run_step ARGUMENTS...: run `hpccoll ARGUMENTS` by the command LAUNCH, wait, and set `launch_status`. Returns 1, with the
# reason in `start_failure`, if the ranks did not start.
run_step() {
    export HPCCOLL_STATUS_FILE=$RESULTS/.status
    rm -f "$HPCCOLL_STATUS_FILE"
    launch "$RESULTS/.started" ${WRAP[@]+"${WRAP[@]}"} hpccoll "$@" || return 1
    wait_for_launch
    if [ -s "$HPCCOLL_STATUS_FILE" ]; then
        # srun returns the highest status of all ranks: 137 if it killed ranks that waited for a failed one.
        launch_status=$(cat "$HPCCOLL_STATUS_FILE")
        rm -f "$HPCCOLL_STATUS_FILE"
    elif [ "$launch_status" != 0 ] && [ ! -e "$RESULTS/.started" ]; then
        start_failure="it ended with status $launch_status before all $RANKS ranks had started; see the messages above"
        return 1
    fi
    rm -f "$RESULTS/.started"
}

# Handle SIGUSR1, which SLURM sends before the time limit (--signal=B:USR1@seconds) and an administrator may send.
on_warning() {
    warned=yes signaled=yes
    touch "$stop_file"
    say "warned: the run stops after the current ${unit:-row}, is requeued, and resumes"
}

# print_unusable_nodes NODES: print the nodes of NODES (or ALL) that SLURM cannot use, and why; return 1 if none.
print_unusable_nodes() {
    local command=(sinfo --noheader --Node --format='%N %T %E')
    if [ "$1" != ALL ]; then command+=(--nodes="$1"); fi
    "${command[@]}" 2>/dev/null | sort -u |
        awk '$2 ~ /down|drain|fail|unk|power|[*]$/ { state = $2; name = $1; $1 = $2 = ""; sub(/^ +/, "")
             line = line (line ? "; " : "") name " (" state ": " $0 ")" } END { if (line) print line; exit !line }'
}

# Handle SIGTERM, which SLURM sends at the time limit, after scancel or after a node failure, KillWait seconds before it
# kills the job. Results are on disk already; print and log the reason, and exit.
on_terminate() {
    trap '' TERM USR1
    local line down why
    # The job's state is COMPLETING by now, but SLURM has written the reason to the job's output.
    line=$(grep -a "CANCELLED AT" "$RESULTS/output.txt" 2>/dev/null | tail -n 1)
    case "$line" in
    *"TIME LIMIT"*) why="the time limit was reached" ;;
    *PREEMPTION*) why="preempted" ;;
    *REQUEUE*) why="requeued" ;;
    *"NODE FAILURE"*) why="a node failed" ;;
    *) why="cancelled" ;;
    esac
    if down=$(print_unusable_nodes "$SLURM_JOB_NODELIST"); then why="a node failed: $down"; fi
    why+="; results so far are in $RESULTS"
    printf 'Error: %s\n' "$why" >&2
    log_event "$why"
    if [ -n "$launch_pid" ]; then kill -TERM "$launch_pid" 2>/dev/null; fi
    exit 143
}

# quote STRING: print STRING in single quotes, as one word of a shell command.
quote() {
    local apostrophe="'\\''"
    printf "'%s'" "${1//\'/$apostrophe}"
}

# requeue REASON: requeue the job, and exit; fail with the reason after too many restarts.
requeue() {
    if [ "${SLURM_RESTART_COUNT:-0}" -ge "${HPCCOLL_MOST_REQUEUES:-20}" ]; then
        fail 4 "$1, after ${SLURM_RESTART_COUNT:-0} restarts (HPCCOLL_MOST_REQUEUES);" \
            "resume by: HPCCOLL_RESUME=$(quote "$RESULTS") sbatch ..."
    fi
    log_event "$1; to be requeued"
    say "stopped before the last ${unit:-row}; the requeued job resumes"
    trap 'exit 0' TERM
    if scontrol requeue "$JOB"; then
        sleep "${HPCCOLL_REQUEUE_S:-60}" # until SLURM ends this attempt
    fi
    fail 4 "could not requeue; resume by: HPCCOLL_RESUME=$(quote "$RESULTS") sbatch ..."
}

# wait_for_down_nodes: print the nodes of the job that SLURM cannot use; return 1 if there are none. SLURM detects a dead
# node only after SlurmdTimeout, so ask repeatedly.
wait_for_down_nodes() {
    local until=$((SECONDS + ${HPCCOLL_NODE_WAIT_S:-20}))
    until print_unusable_nodes "$SLURM_JOB_NODELIST"; do
        if [ "$SECONDS" -ge "$until" ]; then return 1; fi
        sleep 1
    done
}

# require_summary: set STATUS to 4 if training has not ended, because mpirun ends with status 0 when it has lost a node.
require_summary() {
    if [ "$STATUS" = 0 ] && ! tail -n 1 "$RESULTS/train.jsonl" | grep -q '"kind":"train_summary"'; then
        STATUS=4
        printf 'Error: mpirun ended before the training was complete\n' >&2
    fi
}

# finish: log and print how the job ended, and exit with its status; requeue it if the warning signal stopped it, or if
# training that survives deaths ended because nodes failed.
finish() {
    local down=''
    if [ -n "$warned" ] && [ "$STATUS" -ge 128 ]; then
        rm -f "$stop_file"
        requeue "stopped at the warning signal"
    fi
    # Training that survives deaths ends with status 3 if too few ranks are left, as after the failure of nodes.
    if [ "$STATUS" -gt 3 ] || { [ -n "${survive:-}" ] && [ "$STATUS" = 3 ]; }; then down=$(wait_for_down_nodes); fi
    if [ -n "${survive:-}" ] && [ -n "$down" ]; then requeue "training ended, because nodes failed: $down"; fi
    case "$STATUS" in
    0) log_event "complete" ;;
    1) log_event "complete, exit status 1: a result was wrong, or preflight found a fault" ;;
    2 | 3) log_event "exit status $STATUS: see the messages" ;;
    *)
        log_event "the step failed, exit status $STATUS${down:+; nodes that failed: $down}"
        printf 'Error: the step failed, exit status %s%s; results so far are in %s\n' \
            "$STATUS" "${down:+; nodes that failed: $down}" "$RESULTS" >&2
        ;;
    esac
    exit "$STATUS"
}

# submit_report_job: submit a job that waits for all tasks of the array and writes the report; only in the first task.
submit_report_job() {
    local dir command
    dir=$(dirname "$RESULTS")
    if ! mkdir "$dir/merging" 2>/dev/null; then return; fi
    command=(sbatch --parsable --job-name="$SLURM_JOB_NAME-report" --dependency="afterany:$SLURM_ARRAY_JOB_ID"
        --partition="$SLURM_JOB_PARTITION" ${SLURM_JOB_ACCOUNT:+--account="$SLURM_JOB_ACCOUNT"} --nodes=1 --ntasks=1
        --time=00:10:00 --output="$dir/report.out"
        --wrap "bash -c 'HPCCOLL_SLURM=\$0; source \"\$0/job.sh\"; write_report \"\$1\"' $(quote "$HPCCOLL_SLURM") $(quote "$dir")")
    if "${command[@]}" >"$dir/merging/job"; then
        say "job $(cat "$dir/merging/job") writes the report after all tasks"
    else
        say "warning: the report job could not be submitted; after all tasks, type: hpccoll scaling $dir"
    fi
}

# write_report DIR: compare the results of all tasks in DIR; write scaling.txt and report.html; exit.
write_report() {
    RESULTS=$1
    # shellcheck source=slurm/env.sh
    source "$HPCCOLL_SLURM/env.sh"
    tail -qn 1 "$RESULTS"/*/ending.txt | grep -v ': complete$' || true # the tasks that failed
    hpccoll scaling "$RESULTS" --overwrite --json "$RESULTS/scaling.jsonl" | tee "$RESULTS/scaling.txt"
    STATUS=${PIPESTATUS[0]}
    hpccoll report "$RESULTS"/*/sweep.jsonl -o "$RESULTS/report.html" --overwrite --json "$RESULTS/findings.jsonl" || STATUS=$?
    exit "$STATUS"
}
