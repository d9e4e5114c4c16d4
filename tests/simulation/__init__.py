"""Simulations of holdfast itself. A seed makes a `plan`, a `workload` executes it, and `__main__.py` is the command."""
