"""Result files as one self-contained HTML page: findings, curves, matrices of node pairs, and the environment.

Data flows from load.py (read files) to curves.py and scaling_curves.py (group measurements), then to findings/
(problems and remedies) and the *_sections.py files (charts and tables), and at last to page.py, which writes the HTML.
The package re-exports nothing, because a page imports jinja2, which only this command needs.
"""
