"""Tables and plots of measurements, the rows that a benchmark prints while it runs, and the line styles of plots.

The package re-exports nothing, because some of its modules import matplotlib.
"""
