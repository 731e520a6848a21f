"""The command line: one click group (main.py), and one thin file per command that calls the library and prints.

The package re-exports nothing, because a command's module is imported only when the command runs: `--help` stays fast.
"""
