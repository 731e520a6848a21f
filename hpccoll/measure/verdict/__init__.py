"""The verdict of a benchmark in one screen of text: the fastest choice at each message size, and how reliable it is.

Start reading in the module `text`; the facts that it states are properties of `MeasuredCase` in measure/results. The
package re-exports nothing, because some of its modules import SciPy.
"""
