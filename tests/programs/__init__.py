"""Random programs: trees of every operation there is, of which it is known beforehand what must come of them.

`vocabulary` grows them from a seed, `performer` carries them out in runs, `interpreter` works out in plain Python what
must come of them, and `comparison` holds the one against the other.
"""
