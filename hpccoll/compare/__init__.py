"""Comparisons of benchmark results: of two sets of runs, of two commands that run in turns, or within one file.

Start reading at comparison.py. The package re-exports nothing, because some of its modules import SciPy.
"""
