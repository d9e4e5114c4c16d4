"""Benchmarks of holdfast, each figure beside the limit of the machine, a bare commit.

`python -m benchmarks.versus` (`make bench`) compares it with its peers, whose drivers are in `peers`. `python -m
benchmarks` runs all other modules, which measure holdfast alone and in more detail; each of them runs alone, too.
"""
