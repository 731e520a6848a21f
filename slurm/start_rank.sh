#!/bin/bash
# start_rank.sh COMMAND...: run COMMAND, a rank of a job that continues after the loss of a node, on the rank's node.
#
# Open MPI's mpirun ends the job when it loses its daemon on another node. launch.sh therefore lets mpirun start this
# script once per rank on the first node. For ranks of other nodes, the script starts COMMAND by srun, and waits for it;
# the rank connects to mpirun over the network. If the rank or its node dies, this script kills itself, so that mpirun
# tells the other ranks. launch.sh sets RANK_NODES (names of the nodes) and NODE_RANKS (ranks per node).
IFS=, read -ra nodes <<<"$RANK_NODES"
number=$((OMPI_COMM_WORLD_RANK / NODE_RANKS))
node=${nodes[number]} left=$((OMPI_COMM_WORLD_SIZE - number * NODE_RANKS)) # ranks of this node and of later ones

# mpirun takes all ranks for ranks of one node.
export OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % NODE_RANKS))
OMPI_COMM_WORLD_LOCAL_SIZE=$((left < NODE_RANKS ? left : NODE_RANKS))
export OMPI_COMM_WORLD_NODE_RANK=$OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE

if [ "$number" = 0 ]; then exec "$@"; fi
srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" --mem=0 --mpi=none --cpu-bind=none --quiet "$@" </dev/null
status=$?
# The state of a node that does not answer ends with *.
if [ "$status" -ge 128 ] ||
    { [ "$status" != 0 ] && sinfo --noheader --nodes="$node" --format=%T | grep -qE 'down|fail|[*]$'; }; then
    kill -KILL $$
fi
exit "$status"
