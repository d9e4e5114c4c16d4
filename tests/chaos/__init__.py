"""Chaos: real processes under load on a real store, disturbed at random; then everything they did is examined.

`python -m tests.chaos --store sqlite --minutes 2`. Start reading at `storm`; what must hold stands in `invariants`,
and a further store is one more module in `places`.
"""
