"""Measures barriers for `hpccoll barrier`: their cost, how evenly ranks leave them, and which rank enters them late.

Start reading with `RoundTimes` in round_times.py, which computes all metrics from the times of entries and exits.
`BarrierSuite` in suite.py measures barriers of several libraries in turns; straggler.py names the rank that is late to
barriers.
"""
