"""Random programs: trees of every operation, with a predicted outcome.

`vocabulary` generates them from a seed, `performer` executes them in runs, `interpreter` predicts their outcome in
plain Python, and `comparison` compares both.
"""
