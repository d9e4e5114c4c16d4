"""Chaos: real processes under load on a real store, disturbed at random; then all their effects are checked.

`python -m tests.chaos --store sqlite --minutes 2`. Start reading at `storm`. The conditions are in `invariants`, and
each store is a module in `places`.
"""
