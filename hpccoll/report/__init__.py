"""Shows result files as one self-contained HTML page: findings, curves, matrices of node pairs, and environment.

load.py reads files, and curves.py and scaling_curves.py group the measurements. findings/ finds problems and remedies,
the *_sections.py files make charts and tables, and page.py writes the HTML.
"""
