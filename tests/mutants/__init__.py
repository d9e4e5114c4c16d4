"""Mutants: bugs put into holdfast on purpose, one at a time, to check that the tests detect them.

`make mutants` prints for each which layer of tests caught it. Start in `catalogue.py`, which lists them.
"""
