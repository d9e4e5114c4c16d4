"""A deterministic simulation: many workers and producers in one process, on virtual time, with injected faults.

A seed determines an `adversity`: the faults of one simulation. A `world` plays a `workload` under it, on its own event
loop. A `watch` checks every write against the invariants. `scenario` has `simulate`, which plays your workflows.
"""
