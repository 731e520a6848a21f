"""Two-level collectives: shared memory within nodes and messages between nodes, pipelined.

Start reading in executable.py; pipeline_task.py runs one segment of a collective.
"""
