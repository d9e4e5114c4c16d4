"""The simulation: many workers and producers in one process, on virtual time, with faults; the same each time.

A seed makes an `adversity`: what goes wrong. A `world` plays a `workload` under it, on an event loop of its own, and a
`watch` holds every write against what may never break. `scenario` has `simulate`, for workflows of one's own.
"""
