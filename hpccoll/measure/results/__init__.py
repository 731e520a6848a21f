"""Result files and what is read from them: one record per measurement, comparisons of engines, times over nodes.

The package re-exports nothing, because some of its modules import SciPy.
"""
