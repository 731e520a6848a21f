"""Tables and plots of measurements: rows while a benchmark runs, the full table, the plot of `--plot`, line styles.

The package re-exports nothing, because some of its modules import matplotlib.
"""
