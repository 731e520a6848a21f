"""Comparisons of results of `hpccoll bench`: two sets of runs, two commands in turns, and guidelines within one file.

Start reading at comparison.py. The package re-exports nothing, because some of its modules import SciPy.
"""
