#!/usr/bin/env bash
# Runs the tests of tests/mpi on a number of real MPI ranks:
#
#   tests/run_mpi.sh ENVIRONMENT RANKS [PYTEST ARGUMENT]...
#
# Rank 0 reports; what the others print is kept in files and shown when the run fails. A run ends after
# HPCCOLL_TEST_LIMIT seconds (600) whatever happens.
set -euo pipefail

if [ "$1" = --rank ]; then # what mpirun starts: one rank of the run
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

export PYTHONHASHSEED=0  # or ranks would walk through the same set in different orders
export HPCCOLL_TUNING=off # a table on this machine must not decide what tests run
export MALLOC_PERTURB_=165 # memory that was let go of, or never filled, does not look as if it were right
export OMP_NUM_THREADS=1 # ranks share the cores; more threads would only fight over them
# Open MPI refuses root and more ranks than cores unless told otherwise. More ranks than cores also need unbound ranks
# that yield while they wait, or each wait lasts a time slice. MPICH reads none of these.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
export OMPI_MCA_mpi_yield_when_idle=1

color=no # Open MPI gives ranks a terminal even where there is none
[ -t 1 ] && color=yes
logs=$(mktemp -d)
trap '"$bin/python" "$here/leftovers.py" "$SECONDS" || true; rm -rf "$logs"' EXIT
echo "== $(basename "$environment"): $ranks ranks"
status=0
timeout --foreground --kill-after=10 "${HPCCOLL_TEST_LIMIT:-600}" "$bin/mpirun" -n "$ranks" "$0" --rank "$logs" \
    "$bin/python" -m pytest --with-mpi --color=$color --tb=short \
    -p no:cacheprovider "$@" "$here/mpi" || status=$?
[ "$status" = 0 ] && exit
for log in "$logs"/rank*; do
    [ -s "$log" ] && echo "== ${log##*/} printed:" && tail -n 80 "$log" && echo
done
echo "== $(basename "$environment"), $ranks ranks: failed with status $status" >&2
exit "$status"
