"""The command line: one click group (main.py) and one thin file per command, which parses, calls and prints.

Start with main.py. The package re-exports nothing: a command is imported when it is used, so that `--help` is fast.
"""
