"""Two-level collectives: shared memory within nodes and messages between them, pipelined.

Start with executable.py; pipeline_task.py runs one segment of a collective.
"""
