"""The flight recorder: writes a file per rank with the latest collectives, sends and receives of the rank.

`FlightRecorder` writes a ring of entries to a mapped file, which outlives the process even if a signal kills the
process. `CallRecorder` counts and records the calls on a communicator. The package hpccoll.recordings reads the files.
"""
