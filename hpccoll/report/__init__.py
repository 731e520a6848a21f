"""A report on result files as a single HTML page: findings, curves, matrices of node pairs, and the environment.

Data flows from load.py (read files) to curves.py and scaling_curves.py (group measurements), then to findings/
(problems and remedies) and the *_sections.py files (charts and tables), and at last to page.py, which writes the HTML.
The package re-exports nothing, because page.py imports jinja2, which only `hpccoll report` needs.
"""
