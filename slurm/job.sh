# shellcheck shell=bash
# What all jobs here share: results directory, environment, a launcher that was tried, signals, and a last word.
# Sourced by the scripts; not for sbatch. Functions for them: begin, step, finish. Settings, all optional:
#
#   HPCCOLL_LAUNCHER  srun, mpirun, or auto (default): the first that makes one job of all ranks
#   HPCCOLL_SRUN_MPI  the --mpi= of srun; default what fits the MPI library
#   HPCCOLL_RESULTS   where directories of results are made; default results/ where sbatch was called
#   HPCCOLL_RESUME    the directory of an earlier job to go on with, instead of one of this job's own
#   HPCCOLL_SLURM     this folder, where a script that was copied elsewhere does not find it

say() { printf 'hpccoll: %s\n' "$*"; }

# refuse STATUS WORDS...: end the job before it began, with the exit status that hpccoll gives to such an error.
refuse() {
    local status=$1
    shift
    printf 'Error: %s\n' "$*" >&2
    if [ -n "${RESULTS:-}" ] && [ -d "$RESULTS" ]; then note "refused, exit status $status: $*"; fi
    exit "$status"
}

# note WORDS...: a line in the log of what happened to the job. A full disk must not hide the job's own end.
note() { printf '%s attempt %s: %s\n' "$(date +%FT%T)" "$((${SLURM_RESTART_COUNT:-0} + 1))" "$*" >>"$RESULTS/ending.txt" || true; }

# begin [NODES]: all that is the same for every job, on the first NODES of its nodes or all. Sets RESULTS, RANKS and
# LAUNCH, the words that start a step.
begin() {
    set -uo pipefail
    in_a_job
    NODES=${1:-$SLURM_JOB_NUM_NODES}
    # Of an array, SLURM_JOB_ID may be the number of the whole array.
    JOB=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID:-}_$SLURM_ARRAY_TASK_ID}
    JOB=${JOB:-$SLURM_JOB_ID}
    make_results
    # shellcheck source=slurm/env.sh
    source "$HPCCOLL_SLURM/env.sh"
    stop_file=$RESULTS/stop # for `hpccoll bench --stop-file` and train's
    rm -f "$stop_file"
    step_pid='' warned='' STATUS=0
    trap on_warning USR1
    trap on_end TERM
    note "began on $SLURM_JOB_NODELIST"
    if [ "${SLURM_RESTART_COUNT:-0}" != 0 ]; then
        say "started again (restart $SLURM_RESTART_COUNT) on $SLURM_JOB_NODELIST; finished ${unit:-row}s are kept"
        local down
        if down=$(unusable_nodes ALL); then
            say "out of use now: $down"
            note "out of use when it began again: $down"
        fi
    fi
    hpccoll_is_everywhere
    if declare -F before_mpi >/dev/null; then before_mpi; fi # a script's own
    ranks_and_binding
    choose_launcher
    say "$SLURM_JOB_NAME: $RANKS ranks on $NODES nodes ($HOSTS), by $LAUNCHER; results in $RESULTS"
}

in_a_job() {
    if [ -n "${SLURM_JOB_ID:-}" ]; then return; fi
    if ! command -v sbatch >/dev/null; then
        refuse 3 "no SLURM here: no command 'sbatch' in PATH. On a cluster: sbatch ${0##*/}, on a login node." \
            "On this machine alone: mpirun -n 4 hpccoll bench. For a throw-away cluster on it: hpccoll lab up"
    fi
    refuse 2 "this is a job for SLURM, and no job is here (SLURM_JOB_ID is not set); submit it: sbatch $0"
}

# A job has one directory, which a requeued job finds again; the tasks of an array have one each within the array's.
make_results() {
    local base=${HPCCOLL_RESULTS:-${SLURM_SUBMIT_DIR:-$PWD}/results} why
    RESULTS=$base/$SLURM_JOB_NAME-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+/$SLURM_ARRAY_TASK_ID}
    RESULTS=${HPCCOLL_RESUME:-$RESULTS}
    if ! why=$(mkdir -p "$RESULTS" 2>&1 && : 2>&1 >"$RESULTS/.writable"); then
        local where=$RESULTS
        RESULTS=''
        refuse 2 "the results directory $where cannot be written on $(uname -n): ${why##*: };" \
            "name one that all nodes can write to: HPCCOLL_RESULTS=DIR sbatch ..."
    fi
    rm -f "$RESULTS/.writable"
    local output
    output=$(scontrol show job -o "$JOB" | sed -n 's/.* StdOut=\([^ ]*\).*/\1/p')
    if [ -f "$output" ]; then ln -sf "$output" "$RESULTS/output.txt"; fi
    export RESULTS
}

# Every node must have what the first one has: MPI would only say that a process died.
hpccoll_is_everywhere() {
    local told
    # shellcheck disable=SC2016 # the nodes expand it
    told=$(srun --mpi=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
        --overcommit --quiet bash -c '
            python=$(command -v python || command -v python3) || { echo "$(uname -n): no python in PATH"; exit; }
            why=$("$python" -c "import hpccoll.cli.main, mpi4py, numpy" 2>&1) || echo "$(uname -n): $python: ${why##*$'"'\n'"'}"
            command -v hpccoll >/dev/null || echo "$(uname -n): no command hpccoll in PATH"' 2>&1) ||
        told="$told
srun could not start on all nodes"
    if [ -z "$told" ]; then return; fi
    refuse 3 "hpccoll is not on all nodes:
$told
Install it where all nodes see it, and name that with HPCCOLL_VENV=/shared/path/.venv (now '${HPCCOLL_VENV:-none}')"
}

ranks_and_binding() {
    local per_node=${SLURM_NTASKS_PER_NODE:-} gpus=${SLURM_GPUS_ON_NODE:-0}
    if [ "$NODES" -gt "$SLURM_JOB_NUM_NODES" ]; then
        refuse 2 "$NODES nodes are asked for, and this job has $SLURM_JOB_NUM_NODES; submit it with sbatch --nodes=$NODES"
    fi
    RANKS=${SLURM_NTASKS:-$((SLURM_JOB_NUM_NODES * ${per_node:-1}))}
    HOSTS=$SLURM_JOB_NODELIST
    if [ "$NODES" -lt "$SLURM_JOB_NUM_NODES" ]; then
        RANKS=$((NODES * ${per_node:-RANKS / SLURM_JOB_NUM_NODES}))
        HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n "$NODES" | paste -sd,)
    fi
    WRAP=()
    if [ "$gpus" = 0 ]; then return; fi
    WRAP=("$HPCCOLL_SLURM/bind.sh") # one rank a GPU, on the cores next to it
    if [ -n "$per_node" ] && [ "$per_node" != "$gpus" ]; then
        say "warning: $per_node ranks and $gpus GPUs a node; one rank a GPU is sbatch --ntasks-per-node=$gpus"
    fi
    if [ -n "${SLURM_GPUS_PER_TASK:-}${SLURM_TRES_PER_TASK:-}" ]; then
        say "warning: --gpus-per-task hides a rank's GPU from the others, and CUDA IPC fails; ask for --gpus-per-node"
    fi
}

# launcher_words NAME: LAUNCH for srun or mpirun, as this MPI needs them.
launcher_words() {
    local per_node=$(((RANKS + NODES - 1) / NODES)) type=${HPCCOLL_SRUN_MPI:-} some=''
    if [ "$NODES" -lt "$SLURM_JOB_NUM_NODES" ]; then some=yes; fi
    case "$1" in
    srun)
        if [ -z "$type" ]; then
            case "$LIBRARY" in
            'Open MPI'*) type=pmix ;;
            MPICH*) type=pmi2 ;; # also Intel MPI's and MVAPICH's protocol; Cray's plugin is the site's default
            esac
        fi
        LAUNCH=(srun ${type:+--mpi="$type"} --nodes="$NODES" --ntasks="$RANKS" --kill-on-bad-exit=1)
        if [ -n "$some" ]; then LAUNCH+=(--nodelist="$HOSTS"); fi
        # Without GPUs srun's own binding is left as the site has it: a plugin that is not there would warn each time.
        if [ ${#WRAP[@]} -gt 0 ]; then LAUNCH+=(--cpu-bind=none); fi
        ;;
    mpirun)
        # Both understand SLURM, and start their daemons by srun. bind.sh binds better than they where there are GPUs.
        case "$LIBRARY" in
        'Open MPI'*)
            LAUNCH=(mpirun -n "$RANKS" --map-by "ppr:$per_node:node")
            if [ -n "$some" ]; then LAUNCH+=(--host "${HOSTS//,/:$per_node,}:$per_node"); fi
            ;;
        *)
            LAUNCH=(mpirun -n "$RANKS" -ppn "$per_node")
            if [ -n "$some" ]; then LAUNCH+=(-hosts "$HOSTS"); fi
            ;;
        esac
        if [ ${#WRAP[@]} -gt 0 ]; then LAUNCH+=(--bind-to none); fi
        # Their daemons are one a node, whatever sbatch was told of tasks.
        LAUNCH=(env -u SLURM_NTASKS_PER_NODE "${LAUNCH[@]}")
        ;;
    *) refuse 2 "unknown launcher HPCCOLL_LAUNCHER=$1; choose one of: auto, mpirun, srun" ;;
    esac
}

# Take the first launcher that makes one job of all ranks. One that does not belong to the MPI library starts N jobs of
# one rank each, which all succeed: so it is tried, and not believed.
choose_launcher() {
    local wanted=${HPCCOLL_LAUNCHER:-auto} name tried='' told
    LIBRARY=$(python -c 'from hpccoll.runtime import job; print(job.mpi_library())') ||
        refuse 3 "MPI cannot be loaded on $(uname -n); see above"
    if [ "$wanted" = auto ]; then wanted='srun mpirun'; fi
    for name in $wanted; do
        launcher_words "$name"
        if [ "$name" = srun ] && ! plugin_is_there; then
            tried+="
${LAUNCH[*]}: SLURM has no such plugin here (srun --mpi=list)"
            continue
        fi
        if told=$(timeout --kill-after=5 "${HPCCOLL_TRY_S:-120}" "${LAUNCH[@]}" python -c "
from hpccoll.runtime import job
from hpccoll.cli import main
import sys
try:
    size = job.world().size
except main.HpccollError as error:
    sys.exit(f'Error: {error}')
if size != $RANKS:
    sys.exit(f'Error: {size} ranks instead of $RANKS')
" 2>&1); then
            LAUNCHER="$name of $LIBRARY"
            return
        fi
        told=$(grep -m 1 Error: <<<"$told" || grep -m 1 . <<<"$told" || echo "no answer within ${HPCCOLL_TRY_S:-120} s")
        tried+="
${LAUNCH[*]}: ${told#*Error: }"
    done
    refuse 4 "no launcher starts $RANKS ranks as one job of $LIBRARY:$tried
Leave HPCCOLL_LAUNCHER at auto, set HPCCOLL_SRUN_MPI to one of 'srun --mpi=list', or load the MPI that hpccoll was built for"
}

plugin_is_there() {
    local word
    for word in "${LAUNCH[@]}"; do
        case "$word" in --mpi=*) srun --mpi=list 2>&1 | grep -qw "${word#--mpi=}" || return 1 ;; esac
    done
}

# step ARGUMENTS...: run `hpccoll ARGUMENTS` on all ranks; its exit status in STATUS. In the background, since bash acts
# on signals only between foreground commands.
step() {
    local status=130 found
    if [ -z "$warned" ]; then
        export HPCCOLL_STATUS_FILE=$RESULTS/.status
        rm -f "$HPCCOLL_STATUS_FILE"
        "${LAUNCH[@]}" ${WRAP[@]+"${WRAP[@]}"} hpccoll "$@" &
        step_pid=$!
        rang=yes
        while [ -n "$rang" ]; do # a signal that was trapped ends `wait`, not the step
            rang=''
            wait "$step_pid"
            found=$?
            if [ "$found" != 127 ]; then status=$found; fi
        done
        step_pid=''
        # srun gives the highest status of all ranks: 137 where it had to end those that waited for one with an error.
        if [ -s "$HPCCOLL_STATUS_FILE" ]; then status=$(cat "$HPCCOLL_STATUS_FILE"); fi
        rm -f "$HPCCOLL_STATUS_FILE"
    fi
    if [ "$status" -gt "$STATUS" ]; then STATUS=$status; fi
}

# SLURM's warning before the end, by --signal=B:USR1@seconds, or of whoever wants the nodes back.
on_warning() {
    warned=yes rang=yes
    touch "$stop_file"
    say "warned: the run stops after the ${unit:-row} under way, and begins again later"
}

# unusable_nodes NODES: print which of them SLURM cannot use, and why; status 1 where there are none.
unusable_nodes() {
    local words=(sinfo --noheader --Node --format='%N %T %E')
    if [ "$1" != ALL ]; then words+=(--nodes="$1"); fi
    "${words[@]}" 2>/dev/null | sort -u |
        awk '$2 ~ /down|drain|fail|unk|power|[*]$/ { state = $2; name = $1; $1 = $2 = ""; sub(/^ +/, "")
             line = line (line ? "; " : "") name " (" state ": " $0 ")" } END { if (line) print line; exit !line }'
}

# SLURM ends the job: time limit, scancel, or a node that died. What has been found is on disk; say why, and be quick.
on_end() {
    trap '' TERM USR1
    local told down why
    # SLURM's state is only COMPLETING now, but it has written its reason into the output.
    told=$(grep -a "CANCELLED AT" "$RESULTS/output.txt" 2>/dev/null | tail -n 1)
    case "$told" in
    *"TIME LIMIT"*) why="the time limit was reached" ;;
    *PREEMPTION*) why="preempted" ;;
    *REQUEUE*) why="requeued" ;;
    *"NODE FAILURE"*) why="a node failed" ;;
    *) why="cancelled" ;;
    esac
    if down=$(unusable_nodes "$SLURM_JOB_NODELIST"); then why="a node failed: $down"; fi
    why+="; results so far are in $RESULTS"
    printf 'Error: %s\n' "$why" >&2
    note "$why"
    if [ -n "$step_pid" ]; then kill -TERM "$step_pid" 2>/dev/null; fi
    exit 143
}

# finish: the last word on the job, by its exit status; begins it again where it was only interrupted.
finish() {
    local down
    if [ -n "$warned" ] && [ "$STATUS" -ge 128 ]; then
        rm -f "$stop_file"
        note "stopped at the warning signal; to be requeued"
        say "stopped with ${unit:-row}s left; requeued, and goes on by itself"
        trap 'exit 0' TERM
        if scontrol requeue "$JOB"; then
            sleep "${HPCCOLL_REQUEUE_S:-60}" # until SLURM ends this attempt
        fi
        refuse 4 "could not requeue; go on with: HPCCOLL_RESUME=$RESULTS sbatch ..."
    fi
    case "$STATUS" in
    0) note "complete" ;;
    1) note "complete, exit status 1: a result was wrong, or something was found" ;;
    2 | 3) note "exit status $STATUS: see the messages" ;;
    *)
        # SLURM notices a dead node only after a while (SlurmdTimeout); it is asked again for some seconds.
        local until=$((SECONDS + ${HPCCOLL_NODE_WAIT_S:-20}))
        until down=$(unusable_nodes "$SLURM_JOB_NODELIST") || [ "$SECONDS" -ge "$until" ]; do sleep 1; done
        note "the step failed, exit status $STATUS${down:+; nodes that failed: $down}"
        printf 'Error: the step failed, exit status %s%s; results so far are in %s\n' \
            "$STATUS" "${down:+; nodes that failed: $down}" "$RESULTS" >&2
        ;;
    esac
    exit "$STATUS"
}

# merge_later: submit, once for an array, the job that waits for all its tasks and writes the report over them.
merge_later() {
    local folder words
    folder=$(dirname "$RESULTS")
    if ! mkdir "$folder/merging" 2>/dev/null; then return; fi
    words=(sbatch --parsable --job-name="$SLURM_JOB_NAME-report" --dependency="afterany:$SLURM_ARRAY_JOB_ID"
        --partition="$SLURM_JOB_PARTITION" ${SLURM_JOB_ACCOUNT:+--account="$SLURM_JOB_ACCOUNT"} --nodes=1 --ntasks=1
        --time=00:10:00 --output="$folder/report.out"
        --wrap "bash -c 'HPCCOLL_SLURM=\$0; source \"\$0/job.sh\"; merge \"\$1\"' '$HPCCOLL_SLURM' '$folder'")
    if "${words[@]}" >"$folder/merging/job"; then
        say "job $(cat "$folder/merging/job") writes the report when all are done"
    else
        say "warning: a job cannot be submitted from here; when all are done: hpccoll scaling $folder"
    fi
}

# merge FOLDER: put all tasks' results side by side.
merge() {
    RESULTS=$1
    # shellcheck source=slurm/env.sh
    source "$HPCCOLL_SLURM/env.sh"
    tail -qn 1 "$RESULTS"/*/ending.txt | grep -v ': complete$' || true # the tasks that did not end well
    hpccoll scaling "$RESULTS" --json "$RESULTS/scaling.jsonl" | tee "$RESULTS/scaling.txt"
    STATUS=${PIPESTATUS[0]}
    hpccoll report "$RESULTS"/*/sweep.jsonl -o "$RESULTS/report.html" --json "$RESULTS/findings.jsonl" || STATUS=$?
    exit "$STATUS"
}
