"""Mutants: bugs put into holdfast on purpose, one at a time, to see whether the tests notice.

`make mutants` says for each which layer of the proof caught it. Begin in `catalogue.py`, which lists them.
"""
