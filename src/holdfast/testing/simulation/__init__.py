"""The simulation: many workers and producers in one process, on virtual time, with faults; the same each time.

A seed makes a `plan` of what is to happen. A `world` plays it on an event loop of its own, and a `watch` holds every
write against what may never break. `holdfast.testing.simulate` is the command.
"""
