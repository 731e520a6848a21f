#!/usr/bin/env bash
# Run the tests of tests/mpi on real MPI ranks:
#
#   tests/run_mpi.sh ENVIRONMENT RANKS [PYTEST ARGUMENT]...
#
# Rank 0 prints the report; the output of the other ranks is shown only if the run fails. A run is killed after
# HPCCOLL_TEST_LIMIT seconds (default 3600). After 100 s in a test, every rank prints where it is, before
# the time limit of the test ends the run.
set -euo pipefail

if [ "$1" = --rank ]; then # one rank of the run, started by mpirun
    rank=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:?is not set: this launcher is neither MPICH nor Open MPI}}
    logs=$2
    shift 2
    set -- "$@" --basetemp="$logs/tmp$rank"
    [ "$rank" = 0 ] || exec "$@" >"$logs/rank$rank" 2>&1
    exec "$@"
fi

environment=$1 ranks=$2
shift 2
here=$(dirname "$(readlink -f "$0")")
bin=$(readlink -f "$environment")/bin

export PYTHONHASHSEED=0  # otherwise ranks iterate over the same set in different orders
export HPCCOLL_LINKS=off HPCCOLL_TUNING=off # a tuning table of this machine must not change the tests
export MALLOC_PERTURB_=165 # fill freed and uninitialised memory, so that wrong reads are detected
export OMP_NUM_THREADS=1 # ranks share the cores
# Open MPI refuses root and more ranks than cores by default. With more ranks than cores, ranks must be unbound and
# yield while they wait, otherwise each wait lasts a time slice. MPICH ignores these variables.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
export OMPI_MCA_mpi_yield_when_idle=1

color=no # Open MPI gives ranks a terminal even if there is none
[ -t 1 ] && color=yes
logs=$(mktemp -d)
# In `make test`, the Makefile removes files after all sessions that run beside each other: see tests/conftest.py.
export JOB_OF_TEST="$$ $(date +%s%N)" # marks all processes of the run, so that none is left
trap '"$bin/python" "$here/remaining_processes.py" "$JOB_OF_TEST" || true
[ -n "${HPCCOLL_TEST_BESIDE-}" ] || "$bin/python" "$here/leftovers.py" "$SECONDS" || true; rm -rf "$logs"' EXIT
echo "== $(basename "$environment"): $ranks ranks"
status=0
timeout --foreground --kill-after=10 "${HPCCOLL_TEST_LIMIT:-3600}" "$bin/mpirun" -n "$ranks" "$0" --rank "$logs" \
    "$bin/python" -m pytest --with-mpi --color=$color --tb=short \
    -p no:cacheprovider -o faulthandler_timeout=100 "$@" "$here/mpi" || status=$?
[ "$status" = 0 ] && exit
for log in "$logs"/rank*; do
    [ -s "$log" ] && echo "== ${log##*/} printed:" && tail -n 300 "$log" && echo
done
echo "== $(basename "$environment"), $ranks ranks: failed with status $status" |
    tee -a "${HPCCOLL_TEST_FAILURES:-/dev/null}" >&2
exit "$status"
