"""The barrier-timing suite of `hpccoll barrier`: what barriers cost, how evenly ranks leave, and which rank is late.

Start reading with `RoundTimes` in round_times.py, which computes all metrics from the times of entries and exits.
`BarrierSuite` in suite.py measures barriers of several libraries in turns; straggler.py names the rank that is late.
"""
