"""Mutants: small faults, planted into hpccoll one at a time, each of which a test of `make test` must find.

`python -m tests.mutation` plants the mutants of mutants.jsonl and runs the test that each of them names; `--draw`
draws new ones. A mutant that survives names a hole in the tests.
"""
