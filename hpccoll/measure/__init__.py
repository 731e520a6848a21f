"""Benchmarks: time contenders side by side, validate results, summarise samples, write and compare result files.

A case is an operation, a size, a type, a buffer, an engine and an algorithm; a sample is the time of one iteration, the
maximum over ranks; a contender is an engine and algorithm that runs beside others. Start reading in `session`, then
`interleaved`, `statistics` and `result_file`. Modules are imported one by one: some load MPI, matplotlib or SciPy.
"""
