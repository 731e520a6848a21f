"""The verdict of a benchmark in one screen of text: the fastest choice per message size, by how much, and how sure.

Start reading in `text`; its facts are properties of `MeasuredCase` in measure/results. The package re-exports nothing,
because some of its modules import SciPy.
"""
