"""What holdfast costs, measured, each figure beside the machine's own limit, a bare commit.

`python -m benchmarks.versus` (`make bench`) measures it side by side with its peers, whose drivers are in `peers`.
`python -m benchmarks` runs all other modules, which look at holdfast alone and in more detail; each of them runs alone,
too.
"""
