"""holdfast and its peers, measured side by side: `make bench`, or `python -m benchmarks.versus --help`.

Start with `__main__`, the order of things. `engines` and `workloads` say who is measured and what is asked of them,
`environments` installs the peers, `cells` measures one workload on one engine, `results` turns measurements into
medians and ratios, `report` and `plot` show them. The drivers are in `benchmarks.peers`. Nothing here imports a peer.
"""
