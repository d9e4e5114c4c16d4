"""Comparison of holdfast with its peers: `make bench`, or `python -m benchmarks.versus --help`.

Start with `__main__`, which has the sequence. `engines` and `workloads` define who and what is measured, and
`environments` installs the peers. `cells` measures one workload on one engine. `results` computes medians and ratios,
`report` and `plot` show them. The drivers are in `benchmarks.peers`. Nothing here imports a peer.
"""
