"""Simulations of holdfast itself. A seed makes a `plan`, a `workload` plays it, and `__main__.py` is the command."""
