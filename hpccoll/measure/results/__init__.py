"""Result files of benchmarks, comparisons of the engines in a file, and times as a function of the number of nodes.

The package re-exports nothing, because some of its modules import SciPy.
"""
