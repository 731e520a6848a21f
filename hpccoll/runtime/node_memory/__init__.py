"""The memory that the ranks of a node share, and its barriers and counters for synchronisation.

Start with node.py. The ranks of a node map one segment of memory (segment.py). Ranks wait for each other at a barrier
(node_barrier.py), or count their arrivals at the steps of a pipeline. symmetric.py makes arrays that all ranks of a
node can address. cross_memory.py finds out whether ordinary memory of other processes can be read.
"""
