"""Result files as one page that a browser shows: what was found, the curves, the pairs of nodes, the environment.

The files are read once (load.py), what is drawn is gathered from them (series.py, scaling.py, pairs.py, distance.py),
judged (judge*.py) and put into one HTML file (page.py, templates/) that carries its pictures (chart.py, heat.py) and
asks no network for anything.
"""
