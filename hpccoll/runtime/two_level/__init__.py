"""Two-level collectives: shared memory within nodes and messages between nodes, pipelined.

executable.py makes a program for each segment of a message, and native/pipeline.h runs the programs.
"""
