"""Benchmarks: time collectives of several libraries side by side, validate their results, and write result files.

A benchmark case is a combination of operation, message size, element type, buffer, engine (library) and algorithm. A
contender is a combination of engine and algorithm, which is timed in turns with other contenders. A sample is the time
of one iteration on the slowest rank. Start reading in the module `session`, then in `interleaved` and `results`. The
package re-exports nothing, because some of its modules import MPI, matplotlib or SciPy.
"""
