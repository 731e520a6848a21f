"""Benchmarks: time contenders side by side, validate results, summarise samples, write and compare result files.

A case is an operation, a size, a type, a buffer, an engine and an algorithm. A contender is an engine and algorithm
that is timed in turns with others. A sample is the time of one iteration, the maximum over ranks. Start reading in
`session`, then `interleaved`, `statistics` and `result_file`. The package re-exports nothing, because some of its
modules import MPI, matplotlib or SciPy.
"""
