"""Forecasts of plans on machines that are described rather than present, and machines fitted to measured times.

Start with `forecast.py`: the simulation of an algorithm for a rank count, a machine and a message size. The machines
are in `machine_catalogue.py`; `fit.py` fits one to measurements.
"""
