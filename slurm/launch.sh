# shellcheck shell=bash
# Functions for job.sh that choose a launcher (srun or mpirun), start ranks by it, and end a launch that hangs.

# Set start_limit, the seconds in which a launcher must start all ranks.
set_start_limit() { start_limit=${HPCCOLL_START_TIMEOUT:-$((45 + RANKS / 100))}; }

# set_launch_command NAME: set LAUNCHER, and LAUNCH to the srun or mpirun command that this MPI library needs.
set_launch_command() {
    local per_node=$(((RANKS + NODES - 1) / NODES)) type=${HPCCOLL_SRUN_MPI:-} is_subset='' start_rank=''
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
            LAUNCH=(mpirun ${survive:+--with-ft ulfm} -n "$RANKS")
            if [ -n "${survive:-}" ] && [ "$NODES" -gt 1 ]; then
                start_rank=yes LAUNCH+=(--host "$(uname -n):$RANKS")
            else
                LAUNCH+=(--map-by "ppr:$per_node:node")
                if [ -n "$is_subset" ]; then LAUNCH+=(--host "${HOSTS//,/:$per_node,}:$per_node"); fi
            fi
            ;;
        *)
            LAUNCH=(mpirun -n "$RANKS" -ppn "$per_node")
            if [ -n "$is_subset" ]; then LAUNCH+=(-hosts "$HOSTS"); fi
            ;;
        esac
        if [ ${#WRAP[@]} -gt 0 ] || [ -n "$start_rank" ]; then LAUNCH+=(--bind-to none); fi
        # SLURM_NTASKS_PER_NODE would make srun start more than one daemon per node.
        LAUNCH=(env -u SLURM_NTASKS_PER_NODE "${LAUNCH[@]}")
        if [ -n "$start_rank" ]; then add_rank_starter "$per_node"; fi
        ;;
    *) fail 2 "unknown launcher HPCCOLL_LAUNCHER=$1; choose one of: auto, mpirun, srun" ;;
    esac
    # shellcheck disable=SC2034 # job.sh prints it
    LAUNCHER="$1 of $LIBRARY"
}

# add_rank_starter PER_NODE: let the mpirun in LAUNCH start all ranks by start_rank.sh, as if on this node. mpirun then has
# no daemons on other nodes, with which it would end the job (docs/failures.md).
#   PRTE_MCA_ras                      mpirun does not use SLURM's nodes
#   PRTE_MCA_pmix_remote_connections  ranks connect to mpirun over the network
#   PMIX_MCA_gds                      mpirun sends the job's description, instead of sharing memory
#   OMPI_MCA_btl                      Open MPI sends all messages over TCP, because it takes all ranks for ranks of one node
add_rank_starter() {
    LAUNCH=(env PRTE_MCA_ras=^slurm PRTE_MCA_pmix_remote_connections=1 PMIX_MCA_gds=hash OMPI_MCA_btl="self,tcp"
        RANK_NODES="$(scontrol show hostnames "$HOSTS" | paste -sd,)" NODE_RANKS="$1"
        "${LAUNCH[@]}" "$HPCCOLL_SLURM/start_rank.sh")
}

# Set LIBRARY, and LAUNCHERS, the launchers to try, and choose the first that starts all ranks as one job. Each is
# tested, because a launcher that does not match the MPI library starts N jobs of one rank, and all of them succeed.
choose_launcher() {
    failures=''
    LIBRARY=$(python -c 'from hpccoll.runtime import job; print(job.get_mpi_library())') ||
        fail 3 "MPI cannot be loaded on $(uname -n); see the message above"
    LAUNCHERS=${HPCCOLL_LAUNCHER:-auto}
    if [ "$LAUNCHERS" = auto ]; then LAUNCHERS='srun mpirun'; fi
    until [ -z "$LAUNCHERS" ]; do
        set_launch_command "${LAUNCHERS%% *}"
        if try_launcher; then return; fi
        drop_launcher
    done
    fail 4 "$(describe_failures)"
}

# Return 0 if the command LAUNCH starts all ranks as one job; otherwise append the reason to `failures`, and return 1.
try_launcher() {
    local output=$RESULTS/.launcher
    if ! has_srun_plugin; then
        failures+="
${LAUNCH[*]}: SLURM lacks this plugin; see srun --mpi=list"
        return 1
    fi
    launch '' python -c "
from hpccoll.runtime import job
from hpccoll.cli import main
import sys
try:
    size = job.get_world().size
except main.HpccollError as error:
    sys.exit(f'Error: {error}')
if size != $RANKS:
    sys.exit(f'Error: {size} ranks instead of $RANKS')
" >"$output" 2>&1 && wait_for_launch
    if [ "$launch_status" = 0 ]; then return; fi
    local why
    why=${start_failure:-$(grep -a -m 1 Error: "$output" || grep -a -m 1 . "$output")}
    failures+="
${LAUNCH[*]}: ${why#*Error: }$(name_lost_message "$output")"
    return 1
}

# Remove the first of LAUNCHERS, which failed.
drop_launcher() {
    case "$LAUNCHERS" in
    *' '*) LAUNCHERS=${LAUNCHERS#* } ;;
    *) LAUNCHERS='' ;;
    esac
}

# Print the reason why each launcher failed, and a remedy.
describe_failures() {
    printf '%s\n' "no launcher starts $RANKS ranks as one job of $LIBRARY:$failures" \
        "Unset HPCCOLL_LAUNCHER, set HPCCOLL_SRUN_MPI to a name from 'srun --mpi=list', or load the MPI that hpccoll was" \
        "built for; if ranks only start slowly, raise HPCCOLL_START_TIMEOUT (now $start_limit s)"
}

# launch FILE COMMAND...: start COMMAND on all ranks in the background, and wait until they all run, when hpccoll creates
# FILE, or until the launch ends; with an empty FILE, until it ends. If this takes longer than `start_limit` seconds, end
# the launch, set `start_failure` to the reason, and return 1. Sets `launch_pid` and `launch_status`.
launch() {
    local begin=$SECONDS
    export HPCCOLL_START_FILE=$1
    shift
    rm -f "$HPCCOLL_START_FILE"
    start_failure='' launch_status=4
    "${LAUNCH[@]}" "$@" &
    launch_pid=$!
    until [ -e "$HPCCOLL_START_FILE" ] || ! kill -0 "$launch_pid" 2>/dev/null; do
        if [ $((SECONDS - begin)) -ge "$start_limit" ]; then
            end_launch
            start_failure="the $RANKS ranks did not all start within $start_limit s (HPCCOLL_START_TIMEOUT)"
            return 1
        fi
        sleep 0.2
    done
    return 0 # the status of the loop is that of `sleep`, which a signal may have ended
}

# End the launch, and the ranks that a killed launcher leaves behind.
end_launch() {
    local step tries
    kill -TERM "$launch_pid" 2>/dev/null
    for ((tries = 0; tries < 25; tries++)); do
        if ! kill -0 "$launch_pid" 2>/dev/null; then break; fi
        sleep 0.2
    done
    kill -KILL "$launch_pid" 2>/dev/null
    for step in $(squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format=%i); do
        case "$step" in *.[0-9]*) scancel --signal=KILL "$step" ;; esac
    done
    wait "$launch_pid" 2>/dev/null
    launch_pid=''
}

# Wait for the end of the launch; set `launch_status` to its exit status. A trapped signal ends `wait` but not the launch.
wait_for_launch() {
    local found
    signaled=yes
    while [ -n "$signaled" ]; do
        signaled=''
        wait "$launch_pid"
        found=$?
        if [ "$found" != 127 ]; then launch_status=$found; fi
    done
    launch_pid=''
}

# name_lost_message FILE: if the output in FILE shows that SLURM lost a message of MPICH, print a clause that says so.
name_lost_message() {
    if grep -aq 'mpi/pmi2: .*client request' "$1" 2>/dev/null; then
        printf '; SLURM%ss plugin mpi/pmi2 lost the end of a message of %s (it reads 1,024 bytes)' "'" "$LIBRARY"
    fi
}

# Return 0 if SLURM has the plugin that the --mpi= option in LAUNCH names, or LAUNCH has no such option.
has_srun_plugin() {
    local word
    for word in "${LAUNCH[@]}"; do
        case "$word" in --mpi=*) srun --mpi=list 2>&1 | grep -qw "${word#--mpi=}" || return 1 ;; esac
    done
}
