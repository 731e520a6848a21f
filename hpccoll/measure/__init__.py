"""Benchmarks: time collectives of several libraries side by side, validate results, write and compare result files.

A benchmark case is a combination of operation, message size, element type, buffer, engine (library) and algorithm. A
contender is an engine and algorithm that is timed in turns with others. A sample is the time of one iteration on the
slowest rank. Start reading in `session`, then `interleaved`, `statistics` and `results`. The package re-exports
nothing, because some of its modules import MPI, matplotlib or SciPy.
"""
