"""Predicts the times of algorithms on machine models, and fits the parameters of a machine model to measured times.

Start with `forecast.py`, which simulates an algorithm for a rank count, a machine model and a message size. Machine
models are read by `machine_catalogue.py` and fitted by `fit.py`. The package re-exports nothing, because `fit.py`
imports SciPy and `winner_map.py` imports matplotlib.
"""
