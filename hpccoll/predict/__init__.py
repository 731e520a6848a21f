"""Predicts the times of algorithms on machine models, and fits the parameters of a machine model to measured times.

Start with `forecast.py`, which simulates an algorithm for a rank count, a machine and a message size. The machines
are in `machine_catalogue.py`; `fit.py` fits one to measurements.
The package re-exports nothing, because fits import SciPy and maps matplotlib.
"""
