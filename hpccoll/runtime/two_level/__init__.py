"""Two-level collectives: shared memory within nodes and messages between nodes, pipelined.

executable.py makes the programs of the segments, which native/pipeline.h runs.
"""
