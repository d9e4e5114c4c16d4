"""What holdfast costs, measured. `python -m benchmarks` runs everything; each module runs alone, too.

Timings depend on the machine, so every figure stands beside the machine's own limit, a bare commit.
"""
