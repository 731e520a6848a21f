# shellcheck shell=bash
# Functions for all job scripts: results directory, environment, choice of a launcher, signals and exit status.
# The scripts source this file and call `begin`, `step` and `finish`; do not submit it. Optional settings:
#
#   HPCCOLL_LAUNCHER  srun, mpirun, or auto (default): the first that starts all ranks as one job
#   HPCCOLL_SRUN_MPI  the --mpi= option of srun; the default depends on the MPI library
#   HPCCOLL_RESULTS   parent of the results directories; default: results/ in the directory of submission
#   HPCCOLL_RESUME    results directory of an earlier job to resume; default: a new directory
#   HPCCOLL_SLURM     this directory; needed by a script that was copied elsewhere

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
    step_pid='' warned='' STATUS=0
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
    check_hpccoll_on_all_nodes
    if declare -F before_mpi >/dev/null; then before_mpi; fi # preflight.sh defines it
    set_ranks_and_binding
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
    local problems
    # shellcheck disable=SC2016 # the nodes expand it
    problems=$(srun --mpi=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
        --overcommit --quiet bash -c '
            python=$(command -v python || command -v python3) || { echo "$(uname -n): no python in PATH"; exit; }
            why=$("$python" -c "import hpccoll.cli.main, mpi4py, numpy" 2>&1) || echo "$(uname -n): $python: ${why##*$'"'\n'"'}"
            command -v hpccoll >/dev/null || echo "$(uname -n): no command hpccoll in PATH"' 2>&1) ||
        problems="$problems
srun could not start on all nodes"
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

# set_launch_command NAME: set LAUNCH to the srun or mpirun command that this MPI library needs.
set_launch_command() {
    local per_node=$(((RANKS + NODES - 1) / NODES)) type=${HPCCOLL_SRUN_MPI:-} is_subset=''
    if [ "$NODES" -lt "$SLURM_JOB_NUM_NODES" ]; then is_subset=yes; fi
    case "$1" in
    srun)
        if [ -z "$type" ]; then
            case "$LIBRARY" in
            'Open MPI'*) type=pmix ;;
            MPICH*) type=pmi2 ;; # also for Intel MPI and MVAPICH; Cray's plugin is the site's default
            esac
        fi
        LAUNCH=(srun ${type:+--mpi="$type"} --nodes="$NODES" --ntasks="$RANKS" --kill-on-bad-exit=1)
        if [ -n "$is_subset" ]; then LAUNCH+=(--nodelist="$HOSTS"); fi
        # Without GPUs keep the site's binding: a missing affinity plugin would print a warning at each start.
        if [ ${#WRAP[@]} -gt 0 ]; then LAUNCH+=(--cpu-bind=none); fi
        ;;
    mpirun)
        # Both mpiruns start one daemon per node by srun. With GPUs, bind.sh does the binding instead.
        case "$LIBRARY" in
        'Open MPI'*)
            LAUNCH=(mpirun -n "$RANKS" --map-by "ppr:$per_node:node")
            if [ -n "$is_subset" ]; then LAUNCH+=(--host "${HOSTS//,/:$per_node,}:$per_node"); fi
            ;;
        *)
            LAUNCH=(mpirun -n "$RANKS" -ppn "$per_node")
            if [ -n "$is_subset" ]; then LAUNCH+=(-hosts "$HOSTS"); fi
            ;;
        esac
        if [ ${#WRAP[@]} -gt 0 ]; then LAUNCH+=(--bind-to none); fi
        # SLURM_NTASKS_PER_NODE would make srun start more than one daemon per node.
        LAUNCH=(env -u SLURM_NTASKS_PER_NODE "${LAUNCH[@]}")
        ;;
    *) fail 2 "unknown launcher HPCCOLL_LAUNCHER=$1; choose one of: auto, mpirun, srun" ;;
    esac
}

# Set LAUNCH, LAUNCHER and LIBRARY by the first launcher that starts all ranks as one job. Each is tested, because a
# launcher that does not match the MPI library starts N jobs of one rank, and all of them succeed.
choose_launcher() {
    local wanted=${HPCCOLL_LAUNCHER:-auto} name failures='' output
    LIBRARY=$(python -c 'from hpccoll.runtime import job; print(job.get_mpi_library())') ||
        fail 3 "MPI cannot be loaded on $(uname -n); see the message above"
    if [ "$wanted" = auto ]; then wanted='srun mpirun'; fi
    for name in $wanted; do
        set_launch_command "$name"
        if [ "$name" = srun ] && ! has_srun_plugin; then
            failures+="
${LAUNCH[*]}: SLURM lacks this plugin; see srun --mpi=list"
            continue
        fi
        if output=$(timeout --kill-after=5 "${HPCCOLL_TRY_S:-120}" "${LAUNCH[@]}" python -c "
from hpccoll.runtime import job
from hpccoll.cli import main
import sys
try:
    size = job.get_world().size
except main.HpccollError as error:
    sys.exit(f'Error: {error}')
if size != $RANKS:
    sys.exit(f'Error: {size} ranks instead of $RANKS')
" 2>&1); then
            LAUNCHER="$name of $LIBRARY"
            return
        fi
        output=$(grep -m 1 Error: <<<"$output" || grep -m 1 . <<<"$output" ||
            echo "no answer within ${HPCCOLL_TRY_S:-120} s")
        failures+="
${LAUNCH[*]}: ${output#*Error: }"
    done
    fail 4 "no launcher starts $RANKS ranks as one job of $LIBRARY:$failures
Unset HPCCOLL_LAUNCHER, set HPCCOLL_SRUN_MPI to a name from 'srun --mpi=list', or load the MPI that hpccoll was built for"
}

# Return 0 if SLURM has the plugin that the --mpi= option in LAUNCH names, or LAUNCH has no such option.
has_srun_plugin() {
    local word
    for word in "${LAUNCH[@]}"; do
        case "$word" in --mpi=*) srun --mpi=list 2>&1 | grep -qw "${word#--mpi=}" || return 1 ;; esac
    done
}

# step ARGUMENTS...: run `hpccoll ARGUMENTS` on all ranks and wait, unless a warning signal has come; STATUS becomes the
# highest exit status so far. The command runs in the background, because bash handles signals only between foreground
# commands.
step() {
    local status=130 found
    if [ -z "$warned" ]; then
        export HPCCOLL_STATUS_FILE=$RESULTS/.status
        rm -f "$HPCCOLL_STATUS_FILE"
        "${LAUNCH[@]}" ${WRAP[@]+"${WRAP[@]}"} hpccoll "$@" &
        step_pid=$!
        signaled=yes
        while [ -n "$signaled" ]; do # a trapped signal ends `wait` but not the command
            signaled=''
            wait "$step_pid"
            found=$?
            if [ "$found" != 127 ]; then status=$found; fi
        done
        step_pid=''
        # srun returns the highest status of all ranks: 137 if it killed ranks that waited for a failed one.
        if [ -s "$HPCCOLL_STATUS_FILE" ]; then status=$(cat "$HPCCOLL_STATUS_FILE"); fi
        rm -f "$HPCCOLL_STATUS_FILE"
    fi
    if [ "$status" -gt "$STATUS" ]; then STATUS=$status; fi
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
    if [ -n "$step_pid" ]; then kill -TERM "$step_pid" 2>/dev/null; fi
    exit 143
}

# finish: log and print how the job ended, and exit with its status; requeue it if the warning signal stopped it.
finish() {
    local down
    if [ -n "$warned" ] && [ "$STATUS" -ge 128 ]; then
        rm -f "$stop_file"
        log_event "stopped at the warning signal; to be requeued"
        say "stopped before the last ${unit:-row}; the requeued job resumes"
        trap 'exit 0' TERM
        if scontrol requeue "$JOB"; then
            sleep "${HPCCOLL_REQUEUE_S:-60}" # until SLURM ends this attempt
        fi
        fail 4 "could not requeue; resume by: HPCCOLL_RESUME=$RESULTS sbatch ..."
    fi
    case "$STATUS" in
    0) log_event "complete" ;;
    1) log_event "complete, exit status 1: a result was wrong, or preflight found a fault" ;;
    2 | 3) log_event "exit status $STATUS: see the messages" ;;
    *)
        # SLURM detects a dead node only after SlurmdTimeout, so ask repeatedly.
        local until=$((SECONDS + ${HPCCOLL_NODE_WAIT_S:-20}))
        until down=$(print_unusable_nodes "$SLURM_JOB_NODELIST") || [ "$SECONDS" -ge "$until" ]; do sleep 1; done
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
        --wrap "bash -c 'HPCCOLL_SLURM=\$0; source \"\$0/job.sh\"; write_report \"\$1\"' '$HPCCOLL_SLURM' '$dir'")
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
